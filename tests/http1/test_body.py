"""Request bodies that come piece by piece: framing, back-pressure, early answers, and failures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenly.errors import UsageError
from evenly.http1.connection import End, Lost, NotSent
from evenly.http1.head import request_head
from tests.http1.pools import pooled
from tests.http1.raw_server import (
    CHUNKED_POST,
    GET,
    OK,
    Peer,
    always_ok,
    answers,
    nothing_left,
    raw_connection,
    until,
)

TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"


def sized(length: int) -> bytes:
    return request_head("POST", "/", [], host="test", body_length=length, is_chunked=False)


class Upload:
    """Be a body, and remember how far it was asked for."""

    def __init__(self, *chunks: bytes, error: BaseException | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.asked = 0
        self.is_left = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self.chunks:
                self.asked += 1
                yield chunk
                await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        finally:
            self.is_left = True


class Endless(Upload):
    """Be a body without an end."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.asked += 1
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            self.is_left = True


async def test_a_chunked_body() -> None:
    async with raw_connection(always_ok) as (connection, server):
        body = Upload(b"hello", b"", b"x" * 300, bytes(bytearray(b"!")))
        response = await connection.request("POST", CHUNKED_POST, body)

        assert await response.read() == b"ok"
        assert bytes(server.peers[0].received) == (
            CHUNKED_POST + b"5\r\nhello\r\n12c\r\n" + b"x" * 300 + b"\r\n1\r\n!\r\n0\r\n\r\n"
        )
        assert body.is_left
        assert connection.is_idle


async def test_a_sized_body() -> None:
    async with raw_connection(always_ok) as (connection, server):
        response = await connection.request("POST", sized(7), Upload(b"hel", b"lo", b"!!"))

        assert await response.read() == b"ok"
        assert bytes(server.peers[0].received) == sized(7) + b"hello!!"
        assert await (await connection.request("GET", GET)).read() == b"ok"


async def test_an_empty_body() -> None:
    async with raw_connection(always_ok) as (connection, server):
        for head in (CHUNKED_POST, sized(0)):
            assert await (await connection.request("POST", head, Upload())).read() == b"ok"
        assert bytes(server.peers[0].received) == CHUNKED_POST + b"0\r\n\r\n" + sized(0)


async def test_a_connection_is_free_when_the_last_byte_is_answered() -> None:
    """The iterator has not said yet that it is done; a sized body is complete without that."""

    class Lingering(Upload):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                yield b"hello"
                await asyncio.sleep(3600)
            finally:
                self.is_left = True

    async with nothing_left(), raw_connection(always_ok) as (connection, _):
        body = Lingering()
        response = await connection.request("POST", sized(5), body)
        assert await response.read() == b"ok"
        assert connection.is_idle
        await until(lambda: body.is_left)
        assert await (await connection.request("GET", GET)).read() == b"ok"


@pytest.mark.parametrize(("length", "chunks"), [(3, [b"he", b"ll"]), (9, [b"hello"])], ids=str)
async def test_a_body_that_is_not_as_long_as_it_said(length: int, chunks: list[bytes]) -> None:
    async with nothing_left(), raw_connection(always_ok) as (connection, server):
        body = Upload(*chunks)
        with pytest.raises(ValueError, match="Content-Length"):
            await connection.request("POST", sized(length), body)
        assert not connection.is_open
        assert body.is_left
        await until(lambda: not server.tasks)
        assert len(server.peers[0].received) - len(sized(length)) < length


async def test_a_body_that_raises() -> None:
    async with nothing_left(), raw_connection(always_ok) as (connection, server):
        body = Upload(b"hello", error=KeyError("mine"))
        with pytest.raises(KeyError, match="mine"):
            await connection.request("POST", CHUNKED_POST, body)

        assert not connection.is_open
        assert body.is_left
        await until(lambda: not server.tasks)
        # The server cannot take it for a whole one.
        assert not server.peers[0].received.endswith(b"0\r\n\r\n")


async def test_a_body_that_cancels_itself() -> None:
    async with nothing_left(), raw_connection(always_ok) as (connection, _):
        with pytest.raises(Lost, match="cancelled"):
            await connection.request(
                "POST", CHUNKED_POST, Upload(b"a", error=asyncio.CancelledError())
            )
        assert not connection.is_open


async def test_a_body_of_something_else_than_bytes() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield "text"  # type: ignore[misc]

    async with nothing_left(), raw_connection(always_ok) as (connection, _):
        with pytest.raises(TypeError):
            await connection.request("POST", CHUNKED_POST, body())
        assert not connection.is_open


async def test_a_head_must_say_how_long_its_body_is() -> None:
    async with raw_connection(always_ok) as (connection, server):
        with pytest.raises(UsageError):
            await connection.request("GET", GET, Upload(b"x"))
        # Nothing was sent, and nothing is wrong with the connection.
        assert await (await connection.request("GET", GET)).read() == b"ok"
        assert bytes(server.peers[0].received) == GET


async def test_an_early_refusal_stops_the_body() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.head()
        await peer.send(TOO_LARGE)

    async with nothing_left(), raw_connection(refuses) as (connection, _):
        body = Endless()
        response = await connection.request("POST", CHUNKED_POST, body)
        assert response.status == 413
        assert await response.read() == b"no"
        assert response.end is End.COMPLETE
        assert not connection.is_open
        await until(lambda: body.is_left)


@pytest.mark.parametrize("piece", [b"", b"x"], ids=str)
async def test_an_early_refusal_is_heard_while_a_body_is_at_hand(piece: bytes) -> None:
    """Neither the body nor the other side ever makes it wait."""

    async def refuses(peer: Peer) -> None:
        await peer.head()
        await peer.send(TOO_LARGE)

    class AtHand(Upload):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self.chunks:
                self.asked += 1
                yield chunk

    async with nothing_left(), raw_connection(refuses) as (connection, _):
        body = AtHand(*[piece] * 10_000)
        response = await connection.request("POST", CHUNKED_POST, body)
        assert await response.read() == b"no"
        assert body.asked < 1000


async def test_a_refusal_stops_the_body_before_its_own_body_is_there() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.head()
        await peer.send(TOO_LARGE[:-2])
        await until(lambda: body.is_left)
        await peer.send(b"no")

    body = Endless()
    async with raw_connection(refuses) as (connection, _):
        response = await connection.request("POST", CHUNKED_POST, body)
        assert await response.read() == b"no"
        assert not connection.is_open


async def test_an_early_answer_lets_the_body_go_on() -> None:
    """An echo: the response begins with the first piece, and ends behind the last."""

    async def letters() -> AsyncIterator[bytes]:
        sent = b""
        for letter in (b"a", b"b", b"c"):
            yield letter
            sent += letter
            await until(lambda: got == sent)  # noqa: B023 -- it is looked at before it changes

    async def echoes(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            await peer.send(await peer.take(6))
        await peer.send(await peer.take(5))

    got = b""
    async with raw_connection(echoes) as (connection, _):
        response = await connection.request("POST", CHUNKED_POST, letters())
        while chunk := await response.next_chunk():
            got += chunk
        assert got == b"abc"
        assert connection.is_idle


async def test_a_body_that_raises_after_the_head_of_the_response() -> None:
    async def begins(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")

    async def body() -> AsyncIterator[bytes]:
        yield b"a"
        await until(lambda: has_response)
        raise KeyError("mine")

    has_response = False
    async with raw_connection(begins) as (connection, _):
        response = await connection.request("POST", CHUNKED_POST, body())
        has_response = True
        with pytest.raises(Lost, match="body failed") as lost:
            await response.read()
        assert isinstance(lost.value.__cause__, KeyError)
        assert response.end is End.LOST
        assert not connection.is_open


async def test_a_server_that_does_not_read_stops_the_body() -> None:
    async def does_not_read(peer: Peer) -> None:
        await peer.head()
        await until(lambda: is_settled)
        await peer.gone()

    is_settled = False
    body = Endless()
    async with nothing_left(), raw_connection(does_not_read) as (connection, _):
        task = asyncio.create_task(connection.request("POST", CHUNKED_POST, body))
        await until(lambda: connection.is_write_paused)
        before = -1
        while before != body.asked:  # Until the kernel's buffers are full.
            before = body.asked
            await asyncio.sleep(0.05)
        transport = connection.transport
        assert transport is not None
        # The transport's limit of 64 KiB, and the piece that went over it.
        assert transport.get_write_buffer_size() <= 2 * 65_536 + 100

        is_settled = True
        await until(lambda: body.asked > before + 100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Left before the caller hears of it, who may begin it again.
        assert body.is_left
        assert not connection.is_open


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_connection_that_breaks_under_a_body(ending: str) -> None:
    async def breaks(peer: Peer) -> None:
        await peer.head()
        await peer.take(10)
        getattr(peer, ending)()

    async with nothing_left(), raw_connection(breaks) as (connection, _):
        body = Endless()
        with pytest.raises(Lost):
            await connection.request("POST", CHUNKED_POST, body)
        assert body.is_left
        assert not connection.is_open


async def test_what_is_left_of_a_body_is_not_written_to_a_broken_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        transport = connection.transport
        assert transport is not None
        yield b"a"
        # No turn of the loop from here on: nobody can have been told that the connection broke.
        transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
        for _ in range(50):
            yield b"b" * 100

    async with nothing_left(), raw_connection(answers()) as (connection, _):
        with pytest.raises(Lost):
            await connection.request("POST", CHUNKED_POST, breaks())

    # asyncio's "socket.send() raised exception", once for each piece from the fifth on.
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_coroutine_that_is_thrown_away_leaves_its_body() -> None:
    async with nothing_left(), raw_connection(always_ok) as (connection, _):
        body = Endless()
        sending = connection.request("POST", CHUNKED_POST, body)
        sending.send(None)
        await until(lambda: body.asked)
        sending.close()
        assert not connection.is_open
        await until(lambda: body.is_left)


async def test_a_body_is_not_begun_on_a_closed_connection() -> None:
    async with raw_connection(answers(OK)) as (connection, _):
        connection.close()
        body = Upload(b"hello")
        with pytest.raises(NotSent):
            await connection.request("POST", CHUNKED_POST, body)
        assert body.asked == 0


async def test_a_body_that_cannot_be_begun_leaves_no_connection_in_use() -> None:
    async with pooled(always_ok) as (it, server):
        for head in (GET, CHUNKED_POST):
            connection = await it.pool.acquire()
            body: Any = Upload(b"hello") if head is GET else 1
            with pytest.raises((UsageError, TypeError)):
                await connection.request("POST", head, body)
            assert (it.pool.active, it.pool.idle) == (0, 1)
        assert server.requests == []
