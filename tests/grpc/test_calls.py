"""The four kinds of call behave as `grpc.aio`'s own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
import evenly.context
import evenly.grpc
from tests.grpc.plain import (
    ANSWERS,
    KINDS,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    UNARY_UNARY,
    Context,
    Counts,
    answer,
    begin,
    echo,
    served,
    settled,
    until,
)

CALL_TYPES = {
    "unary_unary": grpc.aio.UnaryUnaryCall,
    "unary_stream": grpc.aio.UnaryStreamCall,
    "stream_unary": grpc.aio.StreamUnaryCall,
    "stream_stream": grpc.aio.StreamStreamCall,
}

every_kind = pytest.mark.parametrize("kind", KINDS)


async def hang(_: object, context: Context) -> bytes:
    await asyncio.Event().wait()
    return b""


async def hang_stream(_: object, context: Context) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def hangs(backend: Any) -> None:
    backend.unary_unary = backend.stream_unary = hang
    backend.unary_stream = backend.stream_stream = hang_stream


@every_kind
async def test_a_call_is_answered_and_says_by_whom(kind: str) -> None:
    async with served(2) as (backends, channel):
        call = begin(channel, kind)

        assert isinstance(call, CALL_TYPES[kind])
        assert await answer(call) == ANSWERS[kind]
        assert [backend.address for backend in backends if backend.requests] == [call.backend]
        assert call.attempts == 1
        assert await call.code() is grpc.StatusCode.OK
        assert await call.details() == ""
        assert call.done()
        assert not call.cancelled()
        assert not call.cancel()  # It is over.


@every_kind
async def test_metadata_travels_both_ways(kind: str) -> None:
    async def first(context: Context) -> None:
        await context.send_initial_metadata((("first", "1"),))
        context.set_trailing_metadata((("last", "2"), ("raw-bin", b"\0\xff")))

    async def unary(_: object, context: Context) -> bytes:
        await first(context)
        return b""

    async def stream(_: object, context: Context) -> AsyncIterator[bytes]:
        await first(context)
        yield b""

    async with served() as ([backend], channel):
        backend.unary_unary = backend.stream_unary = unary
        backend.unary_stream = backend.stream_stream = stream
        call = begin(channel, kind, metadata=(("colour", "blue"), ("data-bin", b"\1\xfe")))
        await answer(call)

        sent = backend.arrivals[0].metadata
        assert (sent["colour"], sent["data-bin"]) == ("blue", b"\1\xfe")
        assert (await call.initial_metadata())["first"] == "1"
        assert (await call.trailing_metadata())["last"] == "2"
        assert (await call.trailing_metadata())["raw-bin"] == b"\0\xff"


async def test_metadata_may_be_of_any_kind_that_grpc_takes() -> None:
    async with served() as ([backend], channel):
        call = channel.unary_unary(UNARY_UNARY)
        await call(b"", metadata=grpc.aio.Metadata(("a", "1")))
        await call(b"", metadata=[("a", "1")])
        with evenly.request_context(customer="indexer"):  # There is something to add.
            await call(b"", metadata=grpc.aio.Metadata(("a", "1")))
            await call(b"", metadata=iter([("a", "1")]))

        assert [arrival.metadata["a"] for arrival in backend.arrivals] == ["1"] * 4


@every_kind
async def test_an_error_is_raised_as_it_came(kind: str) -> None:
    async def unary(_: object, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("why", "because"),))
        return b""

    async def stream(_: object, context: Context) -> AsyncIterator[bytes]:
        await unary(_, context)
        yield b""

    async with served() as ([backend], channel):
        backend.unary_unary = backend.stream_unary = unary
        backend.unary_stream = backend.stream_stream = stream
        call = begin(channel, kind)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer(call)

        assert raised.value.code() is await call.code() is grpc.StatusCode.NOT_FOUND
        assert raised.value.details() == await call.details() == "no such thing"
        trailers = raised.value.trailing_metadata()
        assert trailers is not None
        assert trailers["why"] == "because"
        assert "no such thing" in await call.debug_error_string()
        assert not isinstance(raised.value, evenly.RejectedError)
        assert (call.attempts, backend.requests) == (1, 1)


@every_kind
async def test_a_deadline_that_passes_while_the_backend_works_ends_the_call(kind: str) -> None:
    async with served() as ([backend], channel):
        hangs(backend)
        await channel.channel_ready()
        call = begin(channel, kind, timeout=0.5)  # More than a machine pauses before it is sent.
        remaining = call.time_remaining()

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer(call)

        assert remaining is not None
        assert 0.0 < remaining <= 0.5
        assert call.time_remaining() == 0.0
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert call.attempts == 1
        await settled(channel)


async def test_a_deadline_that_has_passed_sends_nothing() -> None:
    async with served() as ([backend], channel):
        call = channel.unary_unary(UNARY_UNARY)(b"", timeout=-1.0)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call

        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "(local)" in (raised.value.details() or "")
        assert (call.attempts, call.backend, backend.requests) == (0, None, 0)


async def test_a_call_without_a_timeout_has_no_deadline() -> None:
    async with served() as ([backend], channel):
        call = channel.unary_unary(UNARY_UNARY)(b"")
        await call

        assert call.time_remaining() is None
        assert backend.arrivals[0].seconds_left is None


@every_kind
async def test_a_call_can_be_cancelled_while_the_backend_works(kind: str) -> None:
    counts = Counts()
    async with served(observer=counts) as ([backend], channel):
        hangs(backend)
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await until(lambda: backend.requests)

        assert call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.done()
        assert call.cancelled()
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert not call.cancel()
        await settled(channel)
        assert [outcome.name for outcome in counts.finished] == ["CANCELLED"]


@every_kind
async def test_a_call_can_be_cancelled_before_it_was_sent(kind: str) -> None:
    async with served() as ([backend], channel):
        call = begin(channel, kind)  # The backends are not known yet.

        assert call.cancel()

        assert call.done()
        with pytest.raises(asyncio.CancelledError):
            await answer(call)
        assert call.cancelled()
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert await call.initial_metadata() == await call.trailing_metadata() == ()
        assert (call.attempts, call.backend, backend.requests) == (0, None, 0)


@every_kind
async def test_cancelling_the_task_that_waits_cancels_the_call(kind: str) -> None:
    async with served() as ([backend], channel):
        hangs(backend)
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await until(lambda: backend.requests)

        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.cancelled()
        await settled(channel)


@every_kind
async def test_cancelling_the_task_that_waits_for_a_backend_cancels_the_call(kind: str) -> None:
    async with served() as ([backend], channel):
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await asyncio.sleep(0)  # It waits now, and the list of backends is not there.

        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.cancelled()
        assert backend.requests == 0


@every_kind
async def test_a_cancelled_status_that_was_received_is_an_error_and_not_a_cancellation(
    kind: str,
) -> None:
    async def unary(_: object, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.CANCELLED)
        return b""

    async def stream(_: object, context: Context) -> AsyncIterator[bytes]:
        await unary(_, context)
        yield b""

    counts = Counts()
    async with served(observer=counts) as ([backend], channel):
        backend.unary_unary = backend.stream_unary = unary
        backend.unary_stream = backend.stream_stream = stream

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer(begin(channel, kind))

        assert raised.value.code() is grpc.StatusCode.CANCELLED
        assert [outcome.name for outcome in counts.finished] == ["LOST"]


@every_kind
async def test_done_callbacks_are_called_with_the_call_whenever_they_are_added(kind: str) -> None:
    async with served() as (_, channel):
        seen: list[tuple[str, Any, bool]] = []

        def note(when: str, call: Any) -> None:
            seen.append((when, call, call.done()))

        call = begin(channel, kind)
        call.add_done_callback(lambda ended: note("before", ended))
        await answer(call)
        await until(lambda: seen)
        call.add_done_callback(lambda ended: note("after", ended))
        await until(lambda: len(seen) == 2)

        assert seen == [("before", call, True), ("after", call, True)]


async def test_a_callback_that_raises_does_not_keep_the_others_from_being_called() -> None:
    def fail(_: object) -> None:
        raise ValueError("a user's mistake")

    async with served() as (_, channel):
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        seen: list[Any] = []
        call = channel.unary_unary(UNARY_UNARY)(b"")
        call.add_done_callback(fail)
        call.add_done_callback(seen.append)
        await call
        await until(lambda: seen)

        assert str(complaints[0]["exception"]) == "a user's mistake"
        await settled(channel)


async def test_a_call_may_be_awaited_more_than_once() -> None:
    async with served() as ([backend], channel):
        call = channel.unary_unary(UNARY_UNARY)(b"hello")

        assert list(await asyncio.gather(answer(call), answer(call))) == [[b"hello"], [b"hello"]]
        assert await call == b"hello"
        assert backend.requests == 1


async def test_a_call_that_nobody_awaits_is_made_all_the_same() -> None:
    async with served() as ([backend], channel):
        channel.unary_unary(UNARY_UNARY)(b"hello")
        await until(lambda: backend.requests)
        await settled(channel)


@every_kind
async def test_wait_for_connection_returns_once_it_was_sent(kind: str) -> None:
    async with served() as (_, channel):
        call = begin(channel, kind)
        await call.wait_for_connection()

        assert call.attempts == 1
        assert await answer(call) == ANSWERS[kind]


@every_kind
async def test_wait_for_connection_raises_what_the_call_ended_with(kind: str) -> None:
    async with served() as (_, channel):
        call = begin(channel, kind, timeout=-1.0)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.wait_for_connection()

        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_parameters_have_the_names_that_grpc_gives_them() -> None:
    async with served() as (_, channel):
        assert await channel.unary_unary(UNARY_UNARY)(request=b"a", timeout=5) == b"a"
        assert await answer(channel.unary_stream(UNARY_STREAM)(request=b"a")) == [b"a"] * 3
        assert await channel.stream_unary(STREAM_UNARY)(request_iterator=[b"a"]) == b"a"
        each = channel.stream_stream(STREAM_STREAM)([b"a"], 5.0)  # By position, too.
        assert await answer(each) == [b"a"]
        with pytest.raises(TypeError):
            channel.unary_unary(UNARY_UNARY)()  # type: ignore[call-arg]


async def test_serializers_are_used_on_both_sides() -> None:
    async with served() as ([backend], channel):
        backend.unary_unary = echo
        call = channel.unary_unary(UNARY_UNARY, str.encode, bytes.decode)
        each = channel.stream_stream(STREAM_STREAM, str.encode, bytes.decode)

        assert await call("grüße") == "grüße"
        assert [word async for word in each(iter(["a", "b"]))] == ["a", "b"]
