"""Streams of requests and responses: written, read, mixed up, dropped, cut short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

import evenly
import evenly.context
import evenly.grpc
from tests.grpc.plain import (
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    Context,
    Counts,
    answer,
    begin,
    served,
    settled,
    until,
)


async def test_messages_can_be_written_and_read_in_turns() -> None:
    async with served() as (_, channel):
        call = channel.stream_stream(STREAM_STREAM)()
        for message in (b"one", b"two"):
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        await call.done_writing()  # A second time does nothing.

        assert await call.read() is grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_backend_may_answer_before_it_has_read_everything() -> None:
    async def first(requests: AsyncIterator[bytes], context: Context) -> bytes:
        return await anext(aiter(requests))

    async def first_of_stream(
        requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        yield await anext(aiter(requests))

    counts = Counts()
    async with served(observer=counts) as ([backend], channel):
        backend.stream_unary, backend.stream_stream = first, first_of_stream
        # gRPC itself answers most of the second kind with INTERNAL, because a message that cannot
        # be sent any more overwrites the status.
        for _ in range(50):
            one = channel.stream_unary(STREAM_UNARY)([b"x"] * 20)
            each = channel.stream_stream(STREAM_STREAM)([b"x"] * 20)
            assert await answer(one) == await answer(each) == [b"x"]
            assert await one.code() is await each.code() is grpc.StatusCode.OK
        await settled(channel)
        assert {outcome.name for outcome in counts.finished} == {"OK"}


async def test_a_call_can_be_cancelled_while_its_status_may_still_change() -> None:
    """gRPC says INTERNAL at first of a message that could not be sent, and hears why later."""

    async def first(requests: AsyncIterator[bytes], context: Context) -> bytes:
        return await anext(aiter(requests))

    hits = 0
    async with served() as ([backend], channel):
        backend.stream_unary = first
        for _ in range(100):
            call = channel.stream_unary(STREAM_UNARY)([b"x"] * 20)
            while not call.done():
                if call._inner is not None and call._inner.done():
                    call.cancel()
                    assert call.done()
                    hits += 1
                await asyncio.sleep(0)
        await settled(channel)
    assert hits > 0  # It is so in nine of ten.


async def test_messages_can_be_written_and_answered_by_one() -> None:
    async with served() as (_, channel):
        call = channel.stream_unary(STREAM_UNARY)()
        await asyncio.gather(call.write(b"a"), call.write(b"b"), call.write(b"c"))
        await call.done_writing()

        assert await call == b"abc"


async def test_a_stream_can_be_read_message_by_message() -> None:
    async with served() as (_, channel):
        call = channel.unary_stream(UNARY_STREAM)(b"x")

        assert [await call.read() for _ in range(4)] == [b"x", b"x", b"x", grpc.aio.EOF]


async def test_the_two_ways_of_reading_cannot_be_mixed() -> None:
    async with served() as (_, channel):
        call = channel.unary_stream(UNARY_STREAM)(b"x")
        await call.read()
        with pytest.raises(grpc.aio.UsageError):
            aiter(call)

        call = channel.unary_stream(UNARY_STREAM)(b"x")
        assert [message async for message in call] == [b"x"] * 3
        with pytest.raises(grpc.aio.UsageError):
            await call.read()


async def test_what_has_an_iterator_cannot_be_written_to() -> None:
    async with served() as (_, channel):
        for call in (begin(channel, "stream_unary"), begin(channel, "stream_stream")):
            with pytest.raises(grpc.aio.UsageError):
                await call.write(b"x")
            with pytest.raises(grpc.aio.UsageError):
                await call.done_writing()
            await answer(call)


async def test_nothing_can_be_written_after_the_end() -> None:
    async with served() as (_, channel):
        call = channel.stream_stream(STREAM_STREAM)()
        await call.done_writing()
        with pytest.raises(asyncio.InvalidStateError, match="half closed"):
            await call.write(b"x")
        assert await call.read() is grpc.aio.EOF
        with pytest.raises(asyncio.InvalidStateError, match="finished"):
            await call.write(b"x")
        await call.done_writing()  # As gRPC: nothing happens.


async def test_writing_to_a_call_that_failed_raises_its_status() -> None:
    async def refuse(_: object, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        return b""

    async with served() as ([backend], channel):
        backend.stream_unary = refuse
        call = channel.stream_unary(STREAM_UNARY)()

        async def write_on() -> None:
            while True:
                await call.write(b"x")

        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
            await write_on()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await settled(channel)


async def test_cancelling_a_write_cancels_the_call() -> None:
    async with served() as (_, channel):
        call = channel.stream_stream(STREAM_STREAM)()
        writing = asyncio.ensure_future(call.write(b"x"))
        await asyncio.sleep(0)  # The backends are not known yet.
        writing.cancel()

        with pytest.raises(asyncio.CancelledError):
            await writing
        assert call.cancelled()


@pytest.mark.parametrize("how", ["plainly", "with a callback"])
@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
async def test_a_stream_that_is_dropped_half_way_is_given_up(kind: str, how: str) -> None:
    ended: list[str] = []

    async def endless(_: object, context: Context) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            ended.append("here")

    counts = Counts()
    async with served(observer=counts) as ([backend], channel):
        backend.unary_stream = backend.stream_stream = endless
        source: asyncio.Queue[bytes] = asyncio.Queue()
        if kind == "unary_stream":
            call = channel.unary_stream(UNARY_STREAM)(b"")
        else:
            call = channel.stream_stream(STREAM_STREAM)(until_none(source))
        assert await call.read() == b"x"
        if how == "with a callback":
            call.add_done_callback(lambda _, kept=call: ended.append("callback"))  # A cycle.

        del call

        await settled(channel)
        await until(lambda: "here" in ended)
        assert [outcome.name for outcome in counts.finished] == ["CANCELLED"]
        # Also what waited for the next message to send.
        await until(lambda: not any("RequestStream" in repr(task) for task in asyncio.all_tasks()))
        if how == "with a callback":
            await until(lambda: "callback" in ended)


async def until_none(queue: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while message := await queue.get():
        yield message


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected yet"])
async def test_a_source_that_raises_cancels_the_call(is_connected: bool) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("a user's mistake")

    async with served() as (_, channel):
        if is_connected:
            await channel.channel_ready()
        for source in (failing(), (1 // 0 for _ in [0])):
            call = channel.stream_unary(STREAM_UNARY)(source)
            with pytest.raises(asyncio.CancelledError):
                await call
            assert call.cancelled()
        await settled(channel)


async def test_what_a_source_does_runs_in_the_context_of_the_call() -> None:
    seen: list[str] = []

    async def source() -> AsyncIterator[bytes]:
        seen.append(evenly.context.current_request().customer)
        yield b"x"

    async with served() as (_, channel):
        with evenly.request_context(customer="first"):
            first = channel.stream_unary(STREAM_UNARY)(source())
        with evenly.request_context(customer="second"):
            second = channel.stream_unary(STREAM_UNARY)(source())
        await asyncio.gather(answer(first), answer(second))

        assert sorted(seen) == ["first", "second"]
