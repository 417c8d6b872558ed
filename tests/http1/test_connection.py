"""One connection: requests and their heads, every way to end, and what is said of it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from evenly.errors import UsageError
from evenly.http1.connection import BadResponse, Connection, End, Lost, NotSent
from evenly.http1.reply import Reply
from tests.http1.raw_server import (
    GET,
    OK,
    Peer,
    always_ok,
    answers,
    connected,
    in_time,
    nothing_left,
    raw_connection,
    raw_server,
    until,
)

HEADLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


async def silent(peer: Peer) -> None:
    """Take a request and say nothing."""
    await peer.request()


async def test_a_request_and_its_response() -> None:
    response_bytes = b"HTTP/1.1 201 Made It\r\nX-One: 1\r\nx-one: 2\r\nContent-Length: 2\r\n\r\nok"
    async with raw_connection(answers(response_bytes)) as (connection, server):
        response = await connection.request("POST", b"POST / HTTP/1.1\r\n\r\n", b"")

        assert (response.status, response.reason, response.http_version) == (201, "Made It", "1.1")
        assert response.headers == [
            (b"X-One", b"1"),
            (b"x-one", b"2"),
            (b"Content-Length", b"2"),
        ]
        assert response.get(b"x-one") == b"1"
        assert response.get(b"x-two") is None
        assert await response.read() == b"ok"
        assert await response.read() == b""
        assert response.end is End.COMPLETE
        assert bytes(server.peers[0].received) == b"POST / HTTP/1.1\r\n\r\n"


async def test_one_connection_serves_many_requests() -> None:
    async with raw_connection(always_ok) as (connection, server):
        for number in range(20):
            body = b"x" * number
            head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % number
            assert connection.is_open
            response = await connection.request("PUT", head, body)
            assert await response.read() == b"ok"
            assert server.peers[0].received.endswith(head + body)

        assert len(server.peers) == 1
        assert connection.is_idle


async def test_responses_that_come_byte_by_byte() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n"
    early = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    script = answers(OK, chunked, early + OK, one_by_one=True)
    async with raw_connection(script) as (connection, _):
        trailers = []
        for _ in range(3):
            response = await connection.request("GET", GET)
            assert await response.read() == b"ok"
            trailers.append(response.trailers)
        assert trailers == [None, [(b"A", b"b")], None]


async def test_the_response_to_head_has_no_body_and_the_next_one_has() -> None:
    async with raw_connection(answers(HEADLESS, HEADLESS + b"hello")) as (connection, _):
        response = await connection.request("HEAD", GET.replace(b"GET", b"HEAD"))
        assert await response.read() == b""
        assert response.get(b"content-length") == b"5"

        response = await connection.request("GET", GET)
        assert await response.read() == b"hello"


@pytest.mark.parametrize(
    "response_bytes",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        pytest.param(OK + OK, id="two responses at once"),
        pytest.param(OK + b"H", id="a byte too many"),
    ],
)
async def test_a_connection_that_is_not_to_be_used_again_is_closed(response_bytes: bytes) -> None:
    async with raw_connection(answers(response_bytes)) as (connection, server):
        response = await connection.request("GET", GET)

        assert await response.read() == b"ok"
        assert response.end is End.COMPLETE
        assert not connection.is_open
        with pytest.raises(NotSent):
            await connection.request("GET", GET)
        await until(lambda: not server.tasks)
        assert server.peers[0].received.count(b"GET") == 1


async def test_http_1_0_with_keep_alive_is_used_again() -> None:
    kept = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"
    async with raw_connection(answers(kept, kept)) as (connection, _):
        for _ in range(2):
            assert await (await connection.request("GET", GET)).read() == b"ok"


async def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    async def splits(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await until(lambda: is_read)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")

    is_read = False
    async with raw_connection(splits) as (connection, _):
        assert await (await connection.request("GET", GET)).read() == b"ok"
        is_read = True
        await until(lambda: not connection.is_open)

        with pytest.raises(NotSent):
            await connection.request("GET", GET)


async def test_two_requests_at_once_are_a_mistake() -> None:
    async with raw_connection(silent) as (connection, server):
        first = asyncio.create_task(connection.request("GET", GET))
        await until(lambda: server.peers and server.peers[0].received)

        with pytest.raises(UsageError):
            await connection.request("GET", GET)

        assert not first.done()
        connection.close()
        with pytest.raises(Lost, match="closed here"):
            await first


@pytest.mark.parametrize(
    "response_bytes",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", id="101"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000, id="a huge head"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300, id="too many headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="a negative length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            id="a good head and a bad body",
        ),
    ],
)
async def test_what_is_no_response_is_lost(response_bytes: bytes) -> None:
    ending = b"\r\n" * (b"a: b" in response_bytes)
    async with raw_connection(answers(response_bytes + ending)) as (connection, _):
        with pytest.raises(BadResponse):
            await connection.request("GET", GET)

        assert not connection.is_open


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 20", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("ending", ["half_close", "close", "reset"])
async def test_an_end_before_the_head_is_a_loss(sent: bytes, ending: str) -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        getattr(peer, ending)()

    async with raw_connection(ends) as (connection, _):
        with pytest.raises(Lost) as lost:
            await connection.request("GET", GET)

        assert not isinstance(lost.value, BadResponse)
        assert not connection.is_open


@pytest.mark.parametrize("ending", ["half_close", "close", "reset"])
async def test_nothing_is_sent_on_a_connection_that_ended_while_idle(ending: str) -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await until(lambda: is_read)
        getattr(peer, ending)()

    is_read = False
    async with raw_connection(ends) as (connection, server):
        await (await connection.request("GET", GET)).read()
        is_read = True
        await until(lambda: not connection.is_open)

        with pytest.raises(NotSent):
            await connection.request("GET", GET)

        await until(lambda: not server.tasks)
        assert bytes(server.peers[0].received) == GET


async def test_a_write_that_fails_at_once_has_sent_nothing() -> None:
    """The reset has arrived, but the loop has not looked: the kernel takes no byte."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, connection = await loop.create_connection(
            lambda: Connection(loop), *listener.getsockname()
        )
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        accepted.close()
        assert "IDLE" in repr(connection)

        with pytest.raises(NotSent):
            await connection.request("GET", GET, b"x" * 10)

        assert not connection.is_open
        await until(lambda: connection.transport is None)


async def test_a_large_body_is_written_whole() -> None:
    body = bytes(range(256)) * 4096
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with raw_connection(answers(OK)) as (connection, server):
        assert await (await connection.request("PUT", head, body)).read() == b"ok"

        assert bytes(server.peers[0].received) == head + body
        assert connection.is_idle


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="waiting for the head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-", id="in the head"),
    ],
)
async def test_a_cancelled_request_closes_its_connection(sent: bytes) -> None:
    async def says(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    async with raw_connection(says) as (connection, server):
        task = asyncio.create_task(connection.request("GET", GET))
        await until(lambda: server.peers and server.peers[0].received)
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not connection.is_open
        await until(lambda: not server.tasks)


async def test_a_request_cancelled_while_it_is_written_closes_its_connection() -> None:
    async def does_not_read(peer: Peer) -> None:
        await peer.head()
        await until(lambda: connection.transport is None)

    body = b"x" * 20_000_000
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with raw_connection(does_not_read) as (connection, server):
        task = asyncio.create_task(connection.request("PUT", head, body))
        await until(lambda: server.peers and server.peers[0].received)
        assert connection.is_write_paused
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await until(lambda: connection.transport is None)


class Canceller:
    """Be an owner that cancels a request at the moment at which its response is complete."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Reply] | None = None
        self.told: list[str] = []

    def release(self, connection: Connection) -> None:
        self.told.append("release")
        if self.task is not None:
            self.task.cancel()

    def dropped(self, connection: Connection, *, is_broken: bool) -> None:
        self.told.append("broken" if is_broken else "dropped")

    def gone(self, connection: Connection) -> None:
        self.told.append("gone")


async def test_a_request_cancelled_as_its_response_arrives_takes_nothing_from_the_next() -> None:
    loop = asyncio.get_running_loop()
    owner = Canceller()
    async with raw_server(always_ok) as server:
        _, connection = await loop.create_connection(
            lambda: Connection(loop, owner), "127.0.0.1", server.port
        )
        owner.task = asyncio.create_task(connection.request("GET", GET))
        with pytest.raises(asyncio.CancelledError):
            await in_time(owner.task)
        assert owner.told == ["release"]

        owner.task = None
        assert await (await in_time(connection.request("GET", GET))).read() == b"ok"
        connection.close()
        await until(lambda: connection.transport is None)
        assert owner.told == ["release", "release", "dropped", "gone"]


async def test_a_cancel_that_meets_the_head_of_a_response_closes_the_connection() -> None:
    """The head is there, the body is not, and who asked has not yet been told."""
    loop = asyncio.get_running_loop()
    async with raw_connection(answers(HEADLESS)) as (connection, server):
        task = asyncio.create_task(connection.request("GET", GET))
        await asyncio.sleep(0)
        # Runs right behind the callback of the response, and before its task.
        waiter = connection._waiter  # The moment cannot be had from outside.
        assert waiter is not None
        deliver = waiter.set_result

        class Waiter(asyncio.Future[Reply]):
            def set_result(self, result: Reply, /) -> None:
                deliver(result)
                task.cancel()

        connection._waiter = Waiter(loop=loop)
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not connection.is_open
        await until(lambda: not server.tasks)


async def test_a_coroutine_that_is_thrown_away_closes_the_connection() -> None:
    async with raw_connection(silent) as (connection, server):
        sending = connection.request("GET", GET)
        sending.send(None)
        sending.close()

        assert not connection.is_open
        await until(lambda: not server.tasks)


async def test_a_connection_closes_once() -> None:
    async with raw_connection(always_ok) as (connection, _):
        connection.close()
        connection.close()
        with pytest.raises(NotSent):
            await connection.request("GET", GET)


async def test_keep_alive_sets_how_long_a_connection_may_idle() -> None:
    def says(timeout: int) -> bytes:
        return OK.replace(b"OK\r\n", b"OK\r\nKeep-Alive: timeout=%d\r\n" % timeout)

    async with raw_connection(answers(OK, says(75), says(1), OK)) as (connection, _):
        seen = []
        for _ in range(4):
            await (await connection.request("GET", GET)).read()
            seen.append(connection.idle_seconds)

        assert seen == [1.5, 74.0, 0.5, 0.5]


async def test_nothing_is_left_of_many_connections() -> None:
    async with nothing_left(), raw_server(answers(OK)) as server:
        for _ in range(20):
            async with connected(server) as connection:
                await in_time(connection.request("GET", GET))
                await asyncio.sleep(0)


async def test_a_repr_says_what_it_does() -> None:
    async with raw_connection(silent) as (connection, _):
        assert "IDLE" in repr(connection)
        connection.close()
        assert "CLOSED" in repr(connection)
