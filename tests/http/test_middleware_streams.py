from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from evenly.core.request import Outcome
from evenly.http.server.middleware import Middleware
from tests.http.asgi_backend import (
    OURS,
    QUICK,
    Ledger,
    backend,
    echo,
    hello,
    respond,
    until,
)

DEADLINE = ("evenly-deadline-ms", "30")


class Steps:
    """An application that sends a chunk each time it is told to."""

    def __init__(self) -> None:
        self.next = asyncio.Semaphore(0)
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200})
        for number in range(3):
            await self.next.acquire()
            body = b"%d" % number
            await send({"type": "http.response.body", "body": body, "more_body": number < 2})


async def test_a_response_is_passed_on_as_it_comes_and_counts_until_its_end() -> None:
    app = Steps()
    async with backend(app) as made:
        client = await made.connect()
        await client.send("GET", headers=OURS)
        assert (await client.head()).get("evenly-load") is not None
        for number in range(3):
            assert made.runtime.active == 1
            app.next.release()
            assert await client.chunk() == b"%d" % number
        assert await client.chunk() == b""
        assert await made.outcome() is Outcome.OK


async def test_a_body_is_read_as_it_comes_and_counts_meanwhile() -> None:
    async with backend(echo) as made:
        client = await made.connect()
        await client.send("POST", headers=[("transfer-encoding", "chunked")])
        for number in range(3):
            await client.write(b"3\r\n%03d\r\n" % number)
            await until(lambda: made.runtime.active == 1)
        await client.write(b"0\r\n\r\n")

        assert (await client.answer()).body == b"000001002"
        assert await made.outcome() is Outcome.OK


async def test_whoever_vanishes_while_it_sends_has_given_up() -> None:
    async with backend(echo) as made:
        client = await made.connect()
        await client.send("POST", headers=[("content-length", "100")], body=b"half")
        await until(lambda: made.runtime.active == 1)
        client.vanish()

        assert await made.outcome() is Outcome.CANCELLED


async def test_whoever_vanishes_after_its_deadline_timed_out() -> None:
    async with backend(echo) as made:
        client = await made.connect()
        await client.send("POST", headers=[DEADLINE, ("content-length", "100")], body=b"half")
        await until(lambda: made.runtime.active == 1)
        await asyncio.sleep(0.04)
        client.vanish()

        assert await made.outcome() is Outcome.TIMEOUT


async def test_whoever_vanishes_from_a_stream_has_given_up() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 100
            await asyncio.sleep(0.001)

    async def endpoint(_: Any) -> StreamingResponse:
        return StreamingResponse(endless())

    async with backend(Starlette(routes=[Route("/", endpoint)])) as made:
        client = await made.connect()
        await client.send("GET")
        assert (await client.head()).status == 200
        await client.chunk()
        client.vanish()

        assert await made.outcome() is Outcome.CANCELLED


async def test_an_answer_after_the_deadline_is_a_timeout_and_the_application_is_not_cancelled() -> (
    None
):
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await asyncio.sleep(0.05)
        await hello(scope, receive, send)

    async with backend(slow) as made:
        answer = await made.get(headers=[DEADLINE])

        assert (answer.status, answer.body) == (200, b"hello")
        assert await made.outcome() is Outcome.TIMEOUT


async def test_a_failure_after_the_deadline_is_a_failure() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await asyncio.sleep(0.05)
        await respond(send, b"broken", status=500)

    async with backend(broken) as made:
        assert (await made.get(headers=[DEADLINE])).status == 500
        assert await made.outcome() is Outcome.ERROR


async def test_what_is_done_after_the_response_does_not_make_it_late() -> None:
    async def later() -> None:
        await asyncio.sleep(0.05)
        raise ValueError

    async def endpoint(_: Any) -> PlainTextResponse:
        return PlainTextResponse("ok", background=BackgroundTask(later))

    async with backend(Starlette(routes=[Route("/", endpoint)])) as made:
        answer = await made.get(headers=[DEADLINE])

        assert answer.body == b"ok"
        assert made.runtime.active == 1  # It ends when the application does ...
        assert await made.outcome() is Outcome.OK  # ... as the client has seen it.


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (204, Outcome.OK),
        (301, Outcome.OK),
        (404, Outcome.OK),
        (429, Outcome.OK),
        (500, Outcome.ERROR),
        (501, Outcome.ERROR),
        (503, Outcome.ERROR),
        (504, Outcome.TIMEOUT),
    ],
)
async def test_a_request_ends_as_its_status_says(status: int, outcome: Outcome) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await respond(send, b"", status=status)

    async with backend(app) as made:
        answer = await made.get()

        assert answer.status == status
        assert answer.get("evenly-load") is not None
        assert await made.outcome() is outcome


async def raise_at_once(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError


def raise_when_called(scope: Any, receive: Any, send: Any) -> Any:
    raise ValueError


async def return_at_once(scope: Any, receive: Any, send: Any) -> None:
    return


async def begin_with_the_body(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.mark.parametrize(
    "app", [raise_at_once, raise_when_called, return_at_once, begin_with_the_body]
)
async def test_without_a_response_the_server_answers_and_it_is_an_error(app: Any) -> None:
    async with backend(app) as made:
        assert (await made.get()).status == 500
        assert await made.outcome() is Outcome.ERROR


@pytest.mark.parametrize("is_raised", [False, True])
async def test_half_a_response_is_an_error(is_raised: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if is_raised:
            raise ValueError

    async with backend(app) as made:
        client = await made.connect()
        await client.send("GET")
        await client.head()
        assert await client.chunk() == b"half"
        assert await client.is_closed()
        assert await made.outcome() is Outcome.ERROR


# Servers that say more than uvicorn: called by hand.


class Server:
    """A server that says by an `OSError` that the client has left (ASGI 2.4)."""

    def __init__(self, *, leaves_at: int) -> None:
        self.leaves_at = leaves_at
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        if len(self.sent) == self.leaves_at:
            raise OSError("the client has left")
        self.sent.append(message)

    async def receive(self) -> Any:
        return {"type": "http.disconnect"}

    async def serve(self, app: Any, **scope: Any) -> list[Outcome]:
        ledger = Ledger()
        guard = Middleware(app, config=QUICK, observer=ledger)
        made = {"type": "http", "method": "GET", "path": "/", "headers": [], **scope}
        with contextlib.suppress(OSError):
            await guard(made, self.receive, self.send)
        assert guard.runtime.active == 0
        guard.stop()
        return ledger.outcomes


@pytest.mark.parametrize("leaves_at", [0, 1])
async def test_a_server_may_say_that_the_client_has_left(leaves_at: int) -> None:
    server = Server(leaves_at=leaves_at)
    outcomes = await server.serve(hello, asgi={"version": "3.0", "spec_version": "2.4"})

    assert outcomes == [Outcome.CANCELLED]
    assert len(server.sent) == leaves_at


async def test_an_application_that_swallows_it_has_served_nobody() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(OSError):
            await hello(scope, receive, send)

    outcomes = await Server(leaves_at=1).serve(app, asgi={"spec_version": "2.4"})
    assert outcomes == [Outcome.CANCELLED]


async def test_who_answers_a_client_that_has_left_has_served_nobody() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await hello(scope, receive, send)

    assert await Server(leaves_at=9).serve(app) == [Outcome.CANCELLED]


async def test_the_end_of_the_response_is_no_leaving() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        assert (await receive())["type"] == "http.disconnect"

    assert await Server(leaves_at=9).serve(app) == [Outcome.OK]


@pytest.mark.parametrize("kind", ["http.response.pathsend", "http.response.zerocopysend"])
async def test_a_file_is_a_body_too(kind: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "trailers": True})
        await send({"type": kind, "path": "/file"})
        await send({"type": "http.response.trailers", "headers": []})

    server = Server(leaves_at=9)
    assert await server.serve(app) == [Outcome.OK]
    assert [message["type"] for message in server.sent][1:] == [kind, "http.response.trailers"]
    assert server.sent[0]["trailers"] is True


async def test_whoever_is_cancelled_has_ended() -> None:
    started = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    serving = asyncio.ensure_future(Server(leaves_at=9).serve(app))
    await started.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
