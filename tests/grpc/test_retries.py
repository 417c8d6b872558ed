"""A call is made again only where that is allowed, and never once its caller has seen an answer."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from evenly.core.balancing.backend import BackendSnapshot
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.report import LoadReport
from evenly.wire.load_header import format_load
from tests.grpc.plain import (
    ANSWERS,
    DONT_RETRY,
    KINDS,
    OVERLOADED,
    QUOTA,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    UNARY_UNARY,
    Context,
    Counts,
    Listed,
    PlainBackend,
    answer,
    begin,
    connections,
    joined,
    plain_backends,
    quick,
    served,
    settled,
    silent_listener,
    target,
    until,
)

every_kind = pytest.mark.parametrize("kind", KINDS)


def one_refuses(backends: list[PlainBackend]) -> None:
    """Refuse the first call that comes, at whichever backend."""
    for backend in backends:
        backend.refuses_with = OVERLOADED

    def serve_again() -> None:
        for backend in backends:
            backend.refuses_with = None

    for backend in backends:
        backend.on_refused = serve_again


@every_kind
async def test_what_an_overloaded_backend_refuses_is_sent_elsewhere(kind: str) -> None:
    counts = Counts()
    async with served(2, config=quick(), observer=counts) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        one_refuses(backends)

        call = begin(channel, kind)

        assert await answer(call) == ANSWERS[kind]
        assert call.attempts == 2
        first, second = sorted(backends, key=lambda backend: backend.address == call.backend)
        assert (first.requests, second.requests) == (1, 1)
        assert "grpc-previous-rpc-attempts" not in first.arrivals[0].metadata
        assert second.arrivals[0].metadata["grpc-previous-rpc-attempts"] == "1"
        assert await call.code() is grpc.StatusCode.OK
        assert counts.begun == [1, 2]
        assert [outcome.name for outcome in counts.finished] == ["OVERLOADED", "OK"]


@every_kind
@pytest.mark.parametrize(
    ("trailers", "kind_of_error", "is_retryable", "attempts"),
    [
        pytest.param(OVERLOADED, evenly.Overloaded, True, 3, id="overloaded"),
        pytest.param(DONT_RETRY, evenly.Overloaded, False, 1, id="do not retry"),
        pytest.param(QUOTA, evenly.QuotaExceeded, False, 1, id="out of quota"),
    ],
)
async def test_a_refusal_is_raised_as_grpc_s_error_and_ours(
    kind: str,
    trailers: tuple[tuple[str, str], ...],
    kind_of_error: type[evenly.RejectedError],
    is_retryable: bool,
    attempts: int,
) -> None:
    async with served(3, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 3)
        for backend in backends:
            backend.refuses_with = trailers
        call = begin(channel, kind)

        with pytest.raises(grpc.aio.AioRpcError, match="refused") as raised:
            await answer(call)

        error = raised.value
        assert isinstance(error, kind_of_error)
        assert isinstance(error, evenly.grpc.RejectedRpcError)
        assert (error.where, error.retryable) == ("remote", is_retryable)
        assert error.code() is await call.code()
        assert error.details() == await call.details() == "refused"
        assert ("evenly-reject", trailers[0][1]) in tuple(await call.trailing_metadata())
        assert ("evenly-reject", trailers[0][1]) in tuple(error.trailing_metadata() or ())
        assert call.attempts == sum(backend.requests for backend in backends) == attempts
        await settled(channel)

        again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
        assert type(again) is type(error)
        assert (again.code(), again.details()) == (error.code(), "refused")
        assert (again.where, again.retryable) == ("remote", is_retryable)


async def test_a_refusal_that_nobody_awaits_is_retried_all_the_same() -> None:
    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        one_refuses(backends)
        call = channel.unary_unary(UNARY_UNARY)(b"x")

        await until(call.done)

        assert call.attempts == 2
        await settled(channel)


@pytest.mark.parametrize(
    ("methods", "attempts"),
    [
        pytest.param((), 1, id="not declared"),
        pytest.param((UNARY_UNARY,), 2, id="declared"),
        pytest.param(("/test.Echo/*",), 2, id="all of the service"),
        pytest.param(("/test.Other/*",), 1, id="another service"),
    ],
)
async def test_a_lost_connection_is_retried_only_for_what_may_be_done_twice(
    methods: tuple[str, ...], attempts: int
) -> None:
    counts = Counts()
    config = quick(idempotent_methods=methods)
    async with served(2, config=config, observer=counts) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        arrived = asyncio.Event()

        async def hang(request: bytes, context: Context) -> bytes:
            arrived.set()
            await asyncio.Event().wait()
            return b""

        for backend in backends:
            backend.unary_unary = hang
        call = channel.unary_unary(UNARY_UNARY)(b"x")
        await arrived.wait()
        lost, other = sorted(backends, key=lambda backend: backend.address != call.backend)
        other.unary_unary = PlainBackend().unary_unary

        await lost.stop()

        if attempts == 2:
            assert await call == b"x"
            assert other.arrivals[0].metadata["grpc-previous-rpc-attempts"] == "1"
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        assert call.attempts == attempts
        assert counts.finished[0].name == "LOST"
        await settled(channel)


@pytest.mark.parametrize("ending", ["lost", "refused"])
async def test_nothing_is_retried_once_a_message_was_seen(ending: str) -> None:
    go_on = asyncio.Event()

    async def begin_and_fail(_: object, context: Context) -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "refused", OVERLOADED)

    config = quick(idempotent_methods=("/test.Echo/*",))
    async with served(2, config=config) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        for backend in backends:
            backend.unary_stream = begin_and_fail
        call = channel.unary_stream(UNARY_STREAM)(b"x")
        assert await call.read() == b"first"

        if ending == "lost":
            serving = next(one for one in backends if one.address == call.backend)
            await serving.stop()
        else:
            go_on.set()

        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()  # However often.
        assert call.attempts == sum(backend.requests for backend in backends) == 1
        await settled(channel)


@pytest.mark.parametrize("size", [1, 1000, 200_000], ids=str)
@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "plain"])
async def test_a_stream_of_requests_is_sent_again_from_its_start(is_async: bool, size: int) -> None:
    messages = [bytes([number]) * size for number in range(1, 2 + (size < 200_000))]

    async def later() -> AsyncIterator[bytes]:
        for message in messages:
            await asyncio.sleep(0)
            yield message

    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        one_refuses(backends)
        one = channel.stream_unary(STREAM_UNARY)(later() if is_async else messages)
        assert await one == b"".join(messages)
        one_refuses(backends)
        each = channel.stream_stream(STREAM_STREAM)(later() if is_async else messages)
        assert await answer(each) == messages
        assert (one.attempts, each.attempts) == (2, 2)


async def test_what_was_written_is_sent_again_from_its_start() -> None:
    async def refuse_late(requests: AsyncIterator[bytes], context: Context) -> bytes:
        read = [await anext(aiter(requests)) for _ in range(3)]
        refused.append(b"".join(read))
        for backend in backends:
            backend.stream_unary = joined
        await context.abort(grpc.StatusCode.UNAVAILABLE, "refused", OVERLOADED)
        return b""

    refused: list[bytes] = []
    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        for backend in backends:
            backend.stream_unary = refuse_late
        call = channel.stream_unary(STREAM_UNARY)()
        for word in (b"a", b"b", b"c", b"d"):
            await call.write(word)
        await call.done_writing()

        assert await call == b"abcd"
        assert refused == [b"abc"]
        assert call.attempts == 2


async def test_a_stream_is_not_sent_again_when_too_much_of_it_is_gone() -> None:
    async def refuse_late(requests: AsyncIterator[bytes], context: Context) -> bytes:
        for _ in range(5):  # 5 × 64 KiB are more than the 256 KiB that are kept.
            await anext(aiter(requests))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "refused", OVERLOADED)
        return b""

    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        for backend in backends:
            backend.stream_unary = refuse_late
        call = channel.stream_unary(STREAM_UNARY)([bytes(65_536)] * 6)

        with pytest.raises(evenly.Overloaded):
            await call

        assert call.attempts == 1
        await settled(channel)


async def test_an_answer_that_began_commits_the_stream_of_requests() -> None:
    """Else everything sent in a long conversation would be kept up to the limit."""

    async def answer_then_refuse(
        requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            if request == b"two":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "refused", OVERLOADED)

    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        for backend in backends:
            backend.stream_stream = answer_then_refuse
        call = channel.stream_stream(STREAM_STREAM)()
        await call.write(b"one")
        assert await call.read() == b"one"
        await call.write(b"two")
        assert await call.read() == b"two"
        with pytest.raises(evenly.Overloaded):
            await call.read()
        assert call.attempts == 1


@every_kind
async def test_a_refusal_whose_retry_finds_no_connection_stands(kind: str) -> None:
    """The backend refuses and leaves; the one that is listed instead never answers."""
    async with plain_backends(1) as [refusing], silent_listener() as silent:
        listed = Listed(refusing)
        async with evenly.grpc.channel(listed, config=quick(connect_seconds=0.2)) as channel:
            await channel.channel_ready()  # On a machine that pauses, at a later trial.

            async def refuse(_: object, context: Context) -> bytes:
                listed.say(silent)
                await until(lambda: silent in [view.address for view in views()])
                await context.abort(grpc.StatusCode.UNAVAILABLE, "refused", OVERLOADED)
                return b""

            async def refuse_stream(_: object, context: Context) -> AsyncIterator[bytes]:
                yield await refuse(_, context)

            def views() -> Sequence[BackendSnapshot]:
                return channel.snapshot().backends

            refusing.unary_unary = refusing.stream_unary = refuse
            refusing.unary_stream = refusing.stream_stream = refuse_stream
            call = begin(channel, kind)

            with pytest.raises(evenly.Overloaded):
                await answer(call)

            assert (call.attempts, call.backend) == (1, refusing.address)
            assert await call.details() == "refused"
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert (await call.trailing_metadata())["evenly-reject"] == "overloaded"
            await settled(channel)


@every_kind
async def test_every_attempt_carries_the_same_metadata(kind: str) -> None:
    async with served(2, config=quick()) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        one_refuses(backends)

        await answer(begin(channel, kind, metadata=iter([("colour", "blue")])))

        arrivals = [arrival for backend in backends for arrival in backend.arrivals]
        assert [arrival.metadata["colour"] for arrival in arrivals] == ["blue", "blue"]


async def test_a_report_in_the_trailers_of_a_refusal_is_heard() -> None:
    async with served(1, config=quick()) as ([backend], channel):
        report = LoadReport(boot=5, sequence=1, utilization=0.75, lame_duck=True)
        backend.refuses_with = DONT_RETRY
        backend.trailers = (("evenly-load", format_load(report)),)
        with pytest.raises(evenly.Overloaded):
            await channel.unary_unary(UNARY_UNARY)(b"x")

        (view,) = channel.snapshot().backends
        assert (view.utilization, view.state.name) == (0.75, "LAME_DUCK")


async def test_a_loop_per_call_has_one_budget() -> None:
    task = ClientTaskConfig(throttle=ThrottleConfig(name="off"))

    async def call(where: str) -> None:
        async with evenly.grpc.channel(where, config=quick(task=task)) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(UNARY_UNARY)(b"x")

    def run(where: str) -> None:
        for _ in range(10):
            asyncio.run(call(where))

    async with plain_backends(3) as backends:
        for backend in backends:
            backend.refuses_with = OVERLOADED
        await asyncio.to_thread(run, target(*backends))

        # Three to begin with, and one that ten requests earn.
        assert sum(backend.requests for backend in backends) == 10 + 3 + 1
