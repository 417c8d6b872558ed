"""Requests that end in every way, and what is no request: nothing is left, each is counted once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from typing import Any

import pytest

from evenly.core.request import Outcome
from evenly.errors import Overloaded
from tests.http.asgi_backend import Backend, Client, backend, echo, hello, respond, until

REQUESTS = 1280
WORKERS = 32
SEED = 20_260_106


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Do what the path says."""
    assert scope["type"] == "http"
    word = scope["path"][1:]
    if word == "error":
        await respond(send, b"", status=500)
    elif word == "raise":
        raise ValueError
    elif word == "refuse":
        raise Overloaded
    elif word == "hang":
        while (await receive())["type"] != "http.disconnect":
            pass
    elif word == "stream":
        await stream(receive, send)
    else:
        await echo(scope, receive, send)


async def stream(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    leaving = asyncio.ensure_future(wait_for_end(receive))
    try:
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.001)
    finally:
        leaving.cancel()


async def wait_for_end(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Story:
    """Make requests on connections of one's own."""

    def __init__(self, made: Backend, rng: random.Random) -> None:
        self.made = made
        self.rng = rng
        self.done: Counter[str] = Counter()

    async def work(self, requests: int) -> None:
        client = await self.made.connect()
        endings = [name for name in dir(self) if name.startswith("end_")]
        for _ in range(requests):
            name = self.rng.choice(endings)
            if not await getattr(self, name)(client):
                await client.close()
                client = await self.made.connect()
            self.done[name] += 1

    async def end_ok(self, client: Client) -> bool:
        return (await client.get()).status == 200

    async def end_body(self, client: Client) -> bool:
        return (await client.post(b"x" * 5000)).body == b"x" * 5000

    async def end_error(self, client: Client) -> bool:
        return (await client.get("/error")).status == 500

    async def end_raise(self, client: Client) -> bool:
        assert (await client.get("/raise")).status == 500
        return False

    async def end_refused_below(self, client: Client) -> bool:
        return (await client.get("/refuse")).status == 503

    async def end_expired(self, client: Client) -> bool:
        return (await client.get(headers=[("evenly-deadline-ms", "-1")])).status == 504

    async def end_vanished(self, client: Client) -> bool:
        await client.send("GET", "/hang")
        await asyncio.sleep(0.005 * self.rng.random())
        client.vanish()
        return False

    async def end_vanished_at_once(self, client: Client) -> bool:
        await client.send("POST", "/", [("content-length", "9")], b"half")
        client.vanish()
        return False

    async def end_abandoned_stream(self, client: Client) -> bool:
        await client.send("GET", "/stream")
        await client.head()
        await client.chunk()
        client.vanish()
        return False

    async def end_pipelined(self, client: Client) -> bool:
        for _ in range(3):
            await client.send("GET")
        return [(await client.answer()).status for _ in range(3)] == [200] * 3

    async def end_malformed(self, client: Client) -> bool:
        await client.write(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
        assert (await client.head()).status == 400
        return False

    async def end_health(self, client: Client) -> bool:
        return (await client.get("/readyz")).status == 200


async def test_every_request_is_finished_once_and_nothing_is_left() -> None:
    print(f"seed {SEED}")  # noqa: T201 -- to replay it
    async with backend(app) as made:
        story = Story(made, random.Random(SEED))
        await asyncio.gather(*[story.work(REQUESTS // WORKERS) for _ in range(WORKERS)])

        await until(lambda: made.runtime.active == 0)
        ledger = made.ledger
        assert len(story.done) == 12
        # A second `finish` of one request would have raised `UsageError`, and shown as more here.
        assert len(ledger.admitted) == len(ledger.outcomes)
        outcomes = Counter(ledger.outcomes)
        print(outcomes, story.done)  # noqa: T201 -- shown when it fails
        assert outcomes[Outcome.ERROR] == story.done["end_error"] + story.done["end_raise"]
        assert outcomes[Outcome.DONT_RETRY] == story.done["end_refused_below"]
        assert outcomes[Outcome.OK] == (
            story.done["end_ok"] + story.done["end_body"] + 3 * story.done["end_pipelined"]
        )
        # Who vanished at once may not have been read.
        assert (
            0
            < outcomes[Outcome.CANCELLED]
            <= (
                story.done["end_vanished"]
                + story.done["end_vanished_at_once"]
                + story.done["end_abandoned_stream"]
            )
        )
        assert outcomes[Outcome.CANCELLED] >= story.done["end_abandoned_stream"]
        assert len(ledger.rejected) == story.done["end_expired"] + story.done["end_refused_below"]
        assert made.runtime.snapshot().waiting == 0
        assert made.runtime.snapshot().task.active == 0
    gc.collect()


async def test_pipelined_requests_are_answered_in_order_and_a_broken_one_costs_no_count() -> None:
    async with backend(app) as made:
        client = await made.connect()
        await client.write(
            b"".join(
                b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1\r\n\r\n%d" % number
                for number in range(5)
            )
        )
        client.methods = ["POST"] * 5
        assert [(await client.answer()).body for _ in range(5)] == [b"%d" % n for n in range(5)]
        assert await made.ended(5) == [Outcome.OK] * 5


async def test_whoever_pipelines_and_vanishes_leaves_nothing_behind() -> None:
    may_end = asyncio.Event()

    # It does not wait for the client to leave: uvicorn tells the last of the pipelined requests
    # only, and that one has not begun.
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await may_end.wait()
        await hello(scope, receive, send)

    async with backend(slow) as made:
        client = await made.connect()
        await client.write(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n" * 5)
        await until(lambda: made.runtime.active == 1)
        client.vanish()
        await asyncio.sleep(0.01)
        may_end.set()

        await made.outcome()  # The others were never begun.


async def test_a_body_that_comes_byte_by_byte_holds_one_request_and_no_more() -> None:
    async with backend(app) as made:
        slow, quick = await made.connect(), await made.connect()
        await slow.send("POST", "/", [("content-length", "20")])
        for _ in range(10):
            await slow.write(b"x")
            assert (await quick.get()).status == 200
        assert made.runtime.active == 1
        await slow.write(b"x" * 10)
        assert (await slow.answer()).body == b"x" * 20
        assert await made.ended(11) == [Outcome.OK] * 11


@pytest.mark.parametrize(
    "headers",
    [
        [("evenly-criticality", "\xff" * 50), ("evenly-customer", "\x80"), ("baggage", "=;,%")],
        [("evenly-deadline-ms", "nan"), ("x-envoy-attempt-count", "9" * 5000)],
        [("evenly-deadline-ms", "9" * 10_000), ("user-agent", "x" * 20_000)],
        [("baggage", "a=b," * 4000)] * 3,
        [("evenly-customer", f"c{number}") for number in range(200)],
    ],
    ids=["bytes", "numbers", "long", "baggage", "many"],
)
async def test_malformed_and_huge_headers_cost_nothing_but_their_request(headers: Any) -> None:
    async with backend(hello) as made:
        client = await made.connect()
        lines = [b"GET / HTTP/1.1", b"host: test"]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers]
        await client.write(b"\r\n".join([*lines, b"", b""]))
        with contextlib.suppress(ConnectionError):
            status = (await client.head()).status
            assert status in {200, 400, 431}
        await until(lambda: len(made.ledger.outcomes) == len(made.ledger.admitted))
        assert made.runtime.active == 0
        assert (await made.get()).status == 200
