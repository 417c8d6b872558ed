"""What a caller streams is kept for another attempt, in its order and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from evenly.grpc.client.request_stream import RequestStream

KIB = 1024


async def read(stream: AsyncIterator[bytes], count: int) -> list[bytes]:
    return [await anext(stream) for _ in range(count)]


async def rest(stream: AsyncIterator[bytes]) -> list[bytes]:
    return [message async for message in stream]


async def letters(text: str) -> AsyncIterator[str]:
    for letter in text:
        await asyncio.sleep(0)
        yield letter


@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "plain"])
async def test_each_attempt_gets_everything(is_async: bool) -> None:
    stream = RequestStream(letters("abcd") if is_async else "abcd", str.encode)
    assert await read(stream.open(), 2) == [b"a", b"b"]
    assert await read(stream.open(), 3) == [b"a", b"b", b"c"]

    assert stream.can_replay
    assert await rest(stream.open()) == [b"a", b"b", b"c", b"d"]


async def test_an_attempt_that_ended_gets_nothing_more() -> None:
    stream = RequestStream("abc", str.encode)
    first = stream.open()
    await anext(first)
    second = stream.open()

    assert await rest(first) == []
    assert await rest(second) == [b"a", b"b", b"c"]


async def test_an_attempt_that_ends_while_the_source_is_asked_loses_no_message() -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def source() -> AsyncIterator[bytes]:
        while True:
            yield await queue.get()

    stream = RequestStream(source(), None)
    first = asyncio.ensure_future(rest(stream.open()))
    await asyncio.sleep(0)
    second = stream.open()
    queue.put_nowait(b"a")
    queue.put_nowait(b"b")

    assert await first == []
    assert await read(second, 2) == [b"a", b"b"]
    stream.close()


async def test_a_reader_that_is_cancelled_loses_no_message() -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def source() -> AsyncIterator[bytes]:
        while True:
            yield await queue.get()

    stream = RequestStream(source(), None)
    waiting = asyncio.ensure_future(rest(stream.open()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    queue.put_nowait(b"a")

    assert await read(stream.open(), 1) == [b"a"]
    stream.close()


async def test_messages_are_serialized_once_and_when_they_are_pulled() -> None:
    serialized: list[list[int]] = []

    def serialize(message: list[int]) -> bytes:
        serialized.append(list(message))
        return bytes(message)

    def one_again_and_again() -> AsyncIterator[list[int]]:
        async def changing() -> AsyncIterator[list[int]]:
            message = [0]
            for number in range(3):
                message[0] = number
                yield message

        return changing()

    stream = RequestStream(one_again_and_again(), serialize)
    await read(stream.open(), 2)

    assert await rest(stream.open()) == [b"\0", b"\1", b"\2"]
    assert serialized == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("sizes", "can_replay"),
    [
        # Each counts for 64 bytes more than it has.
        pytest.param([256 * KIB - 64], True, id="just what is kept"),
        pytest.param([256 * KIB - 63], False, id="one byte more"),
        pytest.param([64 * KIB] * 3, True, id="three of four"),
        pytest.param([64 * KIB] * 4, False, id="four of four, and what they cost"),
        pytest.param([0] * 4096, True, id="as many empty ones as are kept"),
        pytest.param([0] * 4097, False, id="one empty one more"),
    ],
)
async def test_so_much_is_kept(sizes: list[int], can_replay: bool) -> None:
    stream = RequestStream([bytes(size) for size in sizes], None)
    messages = await rest(stream.open())

    assert [len(message) for message in messages] == sizes
    assert stream.can_replay == can_replay


async def test_what_is_not_kept_any_more_is_handed_on_all_the_same() -> None:
    stream = RequestStream((bytes([number]) * 100 * KIB for number in range(6)), None)
    reader = stream.open()
    messages = await rest(reader)

    assert [message[0] for message in messages] == list(range(6))
    assert stream._kept_bytes <= 300 * KIB + 3 * 64
    assert len(stream._kept) == 0


async def test_once_committed_nothing_is_kept() -> None:
    stream = RequestStream("abcd", str.encode)
    reader = stream.open()
    await read(reader, 2)
    stream.commit()

    assert not stream.can_replay
    assert len(stream._kept) == 0
    assert await rest(reader) == [b"c", b"d"]
    assert len(stream._kept) == 0


async def test_messages_that_are_not_to_be_kept_are_handed_on_as_they_are() -> None:
    stream = RequestStream("abc", str.encode, is_kept=False)
    could_replay = stream.can_replay
    reader = stream.open()
    first = await anext(reader)

    assert could_replay  # Nothing was pulled: another attempt would miss nothing.
    assert first == "a"
    assert not stream.can_replay
    assert [*map(str, await rest(reader))] == ["b", "c"]


async def test_a_write_returns_when_the_message_was_handed_on() -> None:
    stream = RequestStream(None, str.encode)
    writing = asyncio.ensure_future(stream.write("a"))
    await asyncio.sleep(0)
    assert not writing.done()
    reader = stream.open()
    assert await anext(reader) == b"a"
    await asyncio.sleep(0)
    assert not writing.done()  # gRPC has it, and has not asked for another.

    following = asyncio.ensure_future(rest(reader))
    await writing
    stream.done_writing()
    assert await following == []
    assert stream.is_done_writing


async def test_several_writes_at_once_all_return() -> None:
    stream = RequestStream(None, None)
    writing = asyncio.gather(*[stream.write(bytes([number])) for number in range(5)])
    reading = asyncio.ensure_future(rest(stream.open()))
    await asyncio.wait_for(writing, 20)
    stream.done_writing()

    assert await reading == [bytes([number]) for number in range(5)]


async def test_what_was_written_is_there_for_the_next_attempt() -> None:
    stream = RequestStream(None, None)
    writing = asyncio.ensure_future(stream.write(b"a"))
    first = asyncio.ensure_future(rest(stream.open()))
    await writing
    second = asyncio.ensure_future(rest(stream.open()))
    await stream.write(b"b")
    stream.done_writing()

    assert await first == [b"a"]
    assert await second == [b"a", b"b"]


@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "plain"])
async def test_what_the_source_raises_comes_out(is_async: bool) -> None:
    async def failing() -> AsyncIterator[str]:
        yield "a"
        raise KeyError("a user's mistake")

    def failing_now() -> Iterator[str]:
        yield "a"
        raise KeyError("a user's mistake")

    stream = RequestStream(failing() if is_async else failing_now(), str.encode)
    reader = stream.open()
    assert await anext(reader) == b"a"
    with pytest.raises(KeyError):
        await anext(reader)


async def test_closing_ends_the_reader_the_writer_and_the_source() -> None:
    ended: list[str] = []

    async def source() -> AsyncIterator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            ended.append("source")

    pulled = RequestStream(source(), None)
    reading = asyncio.ensure_future(rest(pulled.open()))
    written = RequestStream(None, None)
    writing = asyncio.ensure_future(written.write(b"a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    pulled.close()
    written.close()

    assert await reading == []
    await writing
    await asyncio.sleep(0)
    assert ended == ["source"]


def test_what_is_no_stream_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        RequestStream(5, None)  # type: ignore[arg-type]
