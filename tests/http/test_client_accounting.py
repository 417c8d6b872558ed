"""Thousands of requests, ending in every way: nothing is left, and all is counted once."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import evenly
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome
from evenly.http.client.errors import HttpError
from evenly.http.client.httpx_transport import Transport
from evenly.http.client.session import Session
from tests.http.raw_backend import (
    LOAD,
    OVERLOADED,
    Arrival,
    Counts,
    RawBackend,
    hang,
    open_files,
    quick,
    raw_backends,
    reply,
    settled,
    target,
    until,
)
from tests.http.test_loops import run_on

REQUESTS = 3_000
WORKERS = 64
SEED = 20_260_301

# How a request is to end: what the backend does with it, and what the caller does.
ENDINGS = {
    "ok": ("ok", "read"),
    "error": ("error", "read"),
    "refused": ("refuse", "read"),
    "cut": ("cut", "read"),
    "cut in the body": ("part", "read"),
    "no http": ("nonsense", "read"),
    "timeout": ("hang", "time out"),
    "timeout in the body": ("slow", "time out"),
    "expired": ("ok", "be late"),
    "cancelled before": ("ok", "cancel at once"),
    "cancelled during": ("hang", "cancel later"),
    "cancelled in the body": ("slow", "cancel later"),
    "abandoned": ("slow", "leave"),
    "dropped": ("slow", "drop"),
    "cut off": ("hang", "wait for the kill"),
}
SECONDS = {"time out": 0.02, "wait for the kill": 0.5}


ANSWERS = {
    "error": reply(500, b"as asked", LOAD),
    "refuse": reply(503, b"as asked", OVERLOADED, LOAD),
    "nonsense": b"\x00nonsense",
}


async def act(arrival: Arrival) -> bytes | None:
    """Do what the path says."""
    word = arrival.target.strip("/")
    if word in ANSWERS:
        return ANSWERS[word]
    if word == "cut":
        arrival.writer.transport.abort()
        return None
    if word in {"part", "slow"}:
        arrival.writer.write(reply(200, b"part", LOAD, length=1000))
        await arrival.writer.drain()
    if word in {"hang", "slow"}:
        await hang(arrival)
    return reply(200, arrival.body or b"ok", LOAD) if word == "ok" else None


class Story:
    """Make the requests, of a session or of httpx."""

    def __init__(self, session: Session, client: httpx.AsyncClient, rng: random.Random) -> None:
        self.session = session
        self.client = client
        self.rng = rng
        self.results: Counter[tuple[str, str]] = Counter()

    async def work(self, requests: int) -> None:
        for _ in range(requests):
            ending = self.rng.choice(list(ENDINGS))
            word, what = ENDINGS[ending]
            streams = (self._stream, self._httpx)
            use = self.rng.choice(streams if what in {"leave", "drop"} else (*streams, self._get))
            try:
                result = await self._treat(use, word, what)
            except (HttpError, httpx.HTTPError) as error:
                result = type(error).__name__
            except asyncio.CancelledError:
                result = "cancelled"
            self.results[ending, result] += 1

    async def _treat(self, use: Any, word: str, what: str) -> str:
        if what == "be late":
            with evenly.request_context(deadline_seconds=-1.0):
                return str(await use(word, 30.0, what))
        if not what.startswith("cancel"):
            return str(await use(word, SECONDS.get(what, 30.0), what))
        task = asyncio.create_task(use(word, 30.0, "read"))
        if what == "cancel later":
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))
        else:
            for _ in range(self.rng.randrange(5)):
                await asyncio.sleep(0)
        task.cancel()
        return str(await task)

    def _body(self) -> dict[str, Any]:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"o"
            await asyncio.sleep(0)
            yield b"k"

        return self.rng.choice(({}, {"data": b"ok"}, {"data": chunks()}))

    async def _get(self, word: str, seconds: float, what: str) -> str:
        method = self.rng.choice(("GET", "POST"))
        options = self._body() if method == "POST" else {}
        response = await self.session.request(
            method, f"/{word}", timeout_seconds=seconds, **options
        )
        return str(response.status)

    async def _stream(self, word: str, seconds: float, what: str) -> str:
        async with self.session.stream("GET", f"/{word}", timeout_seconds=seconds) as response:
            if what in {"leave", "drop"}:
                await anext(response)
                return "left"
            await response.read()
            return str(response.status)

    async def _httpx(self, word: str, seconds: float, what: str) -> str:
        timeout = httpx.Timeout(seconds, read=seconds)
        request = self.client.build_request("GET", f"http://search/{word}", timeout=timeout)
        if what == "drop":
            response = await self.client.send(request, stream=True)
            del response
            return "dropped"
        if what == "leave":
            response = await self.client.send(request, stream=True)
            await response.aclose()
            return "left"
        return str((await self.client.send(request)).status_code)


async def kill_now_and_then(backends: list[RawBackend], rng: random.Random) -> None:
    while True:
        await asyncio.sleep(0.15)
        backend = rng.choice(backends)
        await backend.stop()
        await asyncio.sleep(0.02)
        await backend.start()


@pytest.mark.parametrize(
    ("seed", "loop"), [(SEED, "asyncio"), (SEED + 1, "asyncio"), (SEED + 2, "uvloop")]
)
def test_every_attempt_is_counted_once_and_nothing_is_left(seed: int, loop: str) -> None:
    run_on(loop, play(seed))


async def play(seed: int) -> None:
    rng = random.Random(seed)
    task = ClientTaskConfig(
        throttle=ThrottleConfig(name="off"),  # Else most would be refused here.
        retry=RetryConfig(budget_ratio=1.0),
    )
    config = quick(task=task)
    counts = Counts()
    async with raw_backends(3, act) as backends:
        files, tasks = open_files(), len(asyncio.all_tasks())
        session = Session(target(*backends), config=config, observer=counts)
        transport = Transport(target(*backends), config=config, observer=counts)
        client = httpx.AsyncClient(transport=transport)
        story = Story(session, client, rng)
        killer = asyncio.create_task(kill_now_and_then(backends, rng))
        async with asyncio.timeout(120):
            await asyncio.gather(*(story.work(REQUESTS // WORKERS) for _ in range(WORKERS)))
        assert not killer.done()
        killer.cancel()
        await asyncio.wait([killer])

        await settled(session.service)
        assert transport.service is session.service
        assert len(counts.begun) == len(counts.finished) > REQUESTS / 2
        assert all(view.active == 0 for view in session.snapshot().backends)
        # Every ending that there is was seen, and those that have only one name had it.
        assert set(counts.finished) == set(Outcome) - {Outcome.DONT_RETRY, Outcome.OUT_OF_QUOTA}
        results = story.results
        assert {name for name, _ in results} == set(ENDINGS)
        assert results["ok", "200"] > 0
        assert results["error", "500"] > 0
        assert sum(results["expired", name] for name in ("Timeout", "PoolTimeout")) == sum(
            count for (ending, _), count in results.items() if ending == "expired"
        )
        await client.aclose()
        await session.close()
        del client, session, transport, story
        gc.collect()
        for backend in backends:
            await backend.stop()
        await until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)
