"""10,000 calls of all four kinds, ending in every way: nothing is left, and all is counted once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

import evenly.grpc
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome
from tests.grpc.plain import (
    KINDS,
    OVERLOADED,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    UNARY_UNARY,
    Context,
    Counts,
    PlainBackend,
    answer,
    open_files,
    plain_backends,
    quick,
    settled,
    target,
    until,
)

CALLS = 10_000
WORKERS = 64
SEED = 20_260_105

# How a call is to end: what the backend does with it, and what the caller does.
ENDINGS = {
    "ok": (b"ok", "read"),
    "error": (b"error", "read"),
    "refused": (b"refuse", "read"),
    "timeout": (b"hang", "time out"),
    "expired": (b"ok", "be late"),
    "cancelled before": (b"ok", "cancel at once"),
    "cancelled during": (b"hang", "cancel later"),
    "task cancelled": (b"hang", "cancel the task"),
    "abandoned": (b"endless", "drop"),
    "abandoned before": (b"hang", "drop at once"),
    "never awaited": (b"ok", "forget"),
    "cut off": (b"hang", "wait for the kill"),
}


async def act(word: bytes, context: Context) -> bytes:
    """Do what a message says."""
    if word == b"error":
        await context.abort(grpc.StatusCode.INTERNAL, "as asked")
    if word == b"refuse":
        await context.abort(grpc.StatusCode.UNAVAILABLE, "as asked", OVERLOADED)
    if word == b"hang":
        await asyncio.Event().wait()
    return word


async def unary(message: bytes, context: Context) -> bytes:
    return await act(message, context)


async def stream(message: bytes, context: Context) -> AsyncIterator[bytes]:
    yield await act(message, context)
    while message == b"endless":
        await asyncio.sleep(0.001)
        yield message


async def unary_of_stream(messages: AsyncIterator[bytes], context: Context) -> bytes:
    reply = b""
    async for message in messages:
        reply = await act(message, context)
    return reply


async def stream_of_stream(
    messages: AsyncIterator[bytes], context: Context
) -> AsyncIterator[bytes]:
    async for message in messages:
        async for reply in stream(message, context):
            yield reply


class Record:
    """Keep which calls were made and how they ended for their callers."""

    def __init__(self) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.results: Counter[tuple[str, str]] = Counter()


class Story:
    """Make the calls."""

    def __init__(self, channel: evenly.grpc.Channel, rng: random.Random, record: Record) -> None:
        self.methods: dict[str, Any] = {
            "unary_unary": channel.unary_unary(UNARY_UNARY),
            "unary_stream": channel.unary_stream(UNARY_STREAM),
            "stream_unary": channel.stream_unary(STREAM_UNARY),
            "stream_stream": channel.stream_stream(STREAM_STREAM),
        }
        self.rng = rng
        self.record = record

    async def work(self, calls: int) -> None:
        for _ in range(calls):
            kind = self.rng.choice(KINDS)
            ending = self.rng.choice(list(ENDINGS))
            self.record.results[ending, await self._make(kind, ending)] += 1
            self.record.done[kind, ending] += 1

    async def _make(self, kind: str, ending: str) -> str:
        word, what = ENDINGS[ending]
        timeout = {"time out": 0.02, "be late": -1.0, "wait for the kill": 0.5}.get(what, 30.0)
        call = self.methods[kind](self._message(kind, word), timeout=timeout)
        try:
            await self._treat(call, kind, what)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        except asyncio.CancelledError:
            return "cancelled"
        return "ok"

    def _message(self, kind: str, word: bytes) -> Any:
        if kind.startswith("unary"):
            return word
        if self.rng.random() < 0.5:
            return iter([word])

        async def later() -> AsyncIterator[bytes]:
            await asyncio.sleep(0)
            yield word

        return later()

    async def _treat(self, call: Any, kind: str, what: str) -> None:
        has_stream = kind.endswith("stream")
        if what in {"read", "time out", "be late", "wait for the kill"}:
            await answer(call)
        elif what == "cancel at once":
            call.cancel()
            await answer(call)
        elif what == "cancel later":
            await asyncio.sleep(0.01 * self.rng.random())
            call.cancel()
            await answer(call)
        elif what == "cancel the task":
            waiting = asyncio.ensure_future(answer(call))
            await asyncio.sleep(0.01 * self.rng.random())
            waiting.cancel()
            await waiting
        elif what == "drop" and has_stream:
            await call.read()
        elif what in {"drop", "drop at once"} and not has_stream:
            call.cancel()  # What awaits one message cannot be dropped: gRPC holds it.
        # The others are forgotten here.


async def restart_now_and_then(backends: list[PlainBackend], rng: random.Random) -> None:
    """Cut off whatever one backend has under way, and let it come back."""
    while True:
        await asyncio.sleep(0.3)
        backend = rng.choice(backends)
        await backend.stop(None)
        await asyncio.sleep(0.05)
        await backend.start()


async def run(calls: int, seed: int, counts: Counts) -> Record:
    """Make so many calls through one channel and close it."""
    task = ClientTaskConfig(
        active_limit=10_000,
        throttle=ThrottleConfig(name="off"),  # Else most would be refused here.
        retry=RetryConfig(budget_ratio=1.0),
    )
    config = quick(task=task, idempotent_methods=(UNARY_UNARY, UNARY_STREAM))
    rng = random.Random(seed)
    async with plain_backends(3) as backends:
        for backend in backends:
            backend.unary_unary, backend.unary_stream = unary, stream
            backend.stream_unary, backend.stream_stream = unary_of_stream, stream_of_stream
        channel = evenly.grpc.channel(target(*backends), config=config, observer=counts)
        await channel.channel_ready()
        record = Record()
        story = Story(channel, rng, record)
        restarting = asyncio.create_task(restart_now_and_then(backends, rng))
        await asyncio.gather(*[story.work(calls // WORKERS) for _ in range(WORKERS)])
        restarting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await restarting
        connections = [*channel.service.connections.values()]

        await settled(channel)
        assert {view.active for view in channel.snapshot().backends} == {0}
        await channel.close()
        assert [connection for connection in connections if not connection.is_closed] == []
    return record


async def test_every_attempt_is_finished_once_and_nothing_is_left() -> None:
    print(f"seed {SEED}")  # noqa: T201 -- to replay it
    await run(640, SEED, Counts())  # What gRPC opens once and keeps is open after this.
    gc.collect()
    files = open_files()
    tasks = len(asyncio.all_tasks())
    counts = Counts()

    # A multiple of the number of workers: 64 · 157 = 10,048.
    record = await run(-(-CALLS // WORKERS) * WORKERS, SEED + 1, counts)

    assert sum(record.done.values()) >= CALLS
    assert set(record.done) == {(kind, ending) for kind in KINDS for ending in ENDINGS}
    # A second `finish` of one attempt would have raised `UsageError`, and shown as more here.
    assert len(counts.begun) == len(counts.finished)
    assert max(counts.begun) > 1  # There were retries.
    outcomes = Counter(counts.finished)
    print(outcomes, record.results)  # noqa: T201 -- shown when it fails
    for outcome in (
        Outcome.OK,
        Outcome.ERROR,
        Outcome.OVERLOADED,
        Outcome.TIMEOUT,
        Outcome.LOST,
        Outcome.CANCELLED,
    ):
        assert outcomes[outcome] > 0
    gc.collect()
    await until(lambda: len(asyncio.all_tasks()) == tasks)
    await until(lambda: open_files() <= files)
