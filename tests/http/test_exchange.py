"""How attempts end, and when a request is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import evenly
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.request import Outcome
from evenly.http.client.errors import (
    ConnectionLost,
    NoBackendHttpError,
    OverloadedHttpError,
    RejectedHttpError,
    Timeout,
)
from evenly.http.client.session import Session
from tests.http.raw_backend import (
    DONT_RETRY,
    LOAD,
    OVERLOADED,
    QUOTA,
    Arrival,
    Counts,
    Listed,
    RawBackend,
    cut,
    echo,
    hang,
    quick,
    raw_backends,
    reply,
    served,
    settled,
    target,
    until,
)


def refusing(*headers: tuple[str, str], status: int = 503) -> Any:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(status, b"refused", *headers)

    return refuse


async def healthy(session: Session, count: int) -> None:
    await until(
        lambda: sum(view.state.value == "healthy" for view in session.snapshot().backends) == count
    )


async def until_tried(session: Session, backend: RawBackend, method: str, **options: Any) -> Any:
    """Send requests until one has met this backend first; return its response."""
    while True:
        before = backend.requests
        response = await session.request(method, "/", **options)
        if backend.requests > before:
            return response


async def one_chunk() -> AsyncIterator[bytes]:
    yield b"chunk"


# What may be sent again.


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_this_task_is_overloaded_is_tried_at_another_whatever_the_method(method: str) -> None:
    async with served(2) as ([first, second], session, counts):
        await healthy(session, 2)
        first.handler = refusing(OVERLOADED)

        response = await until_tried(session, first, method, data=b"body")

        assert response.status == 200
        assert response.content == b"body"
        assert response.attempts == 2
        assert response.backend == second.address
        assert second.arrivals[-1].get("x-envoy-attempt-count") == "2"
        assert counts.finished[-2:] == [Outcome.OVERLOADED, Outcome.OK]
        assert first.arrivals[-1].get("x-envoy-attempt-count") is None


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 503)])
async def test_a_stranger_who_is_overloaded_has_only_idempotent_requests_tried_elsewhere(
    method: str, status: int
) -> None:
    async with served(2) as ([first, _], session, counts):
        await healthy(session, 2)
        first.handler = refusing(("retry-after", "1"))

        response = await until_tried(session, first, method)

        assert response.status == status
        assert response.attempts == (2 if status == 200 else 1)
        assert Outcome.OVERLOADED in counts.finished


@pytest.mark.parametrize(("reject", "status"), [(DONT_RETRY, 503), (QUOTA, 429)])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_refused_stream_keeps_its_connection_and_its_body_can_be_read(
    reject: tuple[str, str], status: int, is_chunked: bool
) -> None:
    framing = "transfer-encoding: chunked" if is_chunked else "content-length: 7"

    async def refuse(arrival: Arrival) -> bytes:
        # The body comes later, so that the head is all there is to go by.
        head = f"HTTP/1.1 {status} No\r\n{reject[0]}: {reject[1]}\r\n{framing}\r\n\r\n"
        arrival.writer.write(head.encode())
        await arrival.writer.drain()
        await asyncio.sleep(0.01)
        return b"7\r\nrefused\r\n0\r\n\r\n" if is_chunked else b"refused"

    async with served(handler=refuse) as ([backend], session, _):
        for _ in range(3):
            with pytest.raises(evenly.RejectedError) as caught:
                async with session.stream("GET", "/"):
                    raise AssertionError
            assert isinstance(caught.value, RejectedHttpError)
            assert caught.value.response is not None
            assert caught.value.response.content == b"refused"

        assert {arrival.connection for arrival in backend.arrivals} == {1}


async def test_a_stream_is_refused_elsewhere_before_its_caller_has_seen_anything() -> None:
    async with served(2) as ([first, second], session, _):
        await healthy(session, 2)
        first.handler = refusing(OVERLOADED)
        second.handler = refusing(OVERLOADED)

        with pytest.raises(OverloadedHttpError) as caught:
            async with session.stream("GET", "/"):
                raise AssertionError

        assert caught.value.response is not None
        assert caught.value.response.content == b"refused"
        assert (first.requests, second.requests) in [(1, 2), (2, 1)]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
async def test_a_lost_connection_is_tried_again_where_twice_does_no_harm(method: str) -> None:
    async with served(2) as ([first, second], session, counts):
        await healthy(session, 2)
        first.handler = cut

        response = await until_tried(session, first, method)

        assert response.attempts == 2
        assert response.backend == second.address
        assert Outcome.LOST in counts.finished


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_lost_connection_is_not_tried_again_where_the_work_may_be_done(method: str) -> None:
    async with served(2, cut) as (backends, session, counts):
        with pytest.raises(ConnectionLost):
            await session.request(method, "/")

        assert sum(backend.requests for backend in backends) == 1
        assert counts.finished == [Outcome.LOST]


@pytest.mark.parametrize(
    ("declared", "options"),
    [
        (("POST /search",), {}),
        (("POST /*",), {}),
        ((), {"idempotent": True}),
    ],
    ids=["by path", "by prefix", "by call"],
)
async def test_a_post_that_was_declared_idempotent_is_tried_again(
    declared: tuple[str, ...], options: dict[str, Any]
) -> None:
    config = quick(idempotent_methods=declared)
    async with served(2, cut, config=config) as (backends, session, _):
        await healthy(session, 2)
        with pytest.raises(ConnectionLost):
            await session.post("/search?q=1", **options)

        assert sum(backend.requests for backend in backends) > 1


async def test_a_get_that_was_declared_not_idempotent_is_not_tried_again() -> None:
    async with served(2, cut) as (backends, session, _):
        with pytest.raises(ConnectionLost):
            await session.get("/", idempotent=False)

        assert sum(backend.requests for backend in backends) == 1


async def test_a_body_that_was_not_touched_is_sent_elsewhere() -> None:
    config = quick(task=ClientTaskConfig(retry=RetryConfig(attempts=1)))
    async with served(2, config=config) as ([first, second], session, _counts):
        await healthy(session, 2)
        await first.stop()
        for _ in range(4):
            response = await session.post("/", data=one_chunk())
            assert response.content == b"chunk"
            assert response.attempts == 1

        assert second.requests == 4


async def test_idle_connections_that_the_backend_closed_cost_no_request_even_without_retries() -> (
    None
):
    config = quick(task=ClientTaskConfig(retry=RetryConfig(attempts=1)))
    async with served(config=config) as ([backend], session, counts):
        for _ in range(5):
            await asyncio.gather(*(session.post("/") for _ in range(4)))
            await backend.stop()
            await backend.start()
            response = await session.post("/")
            assert response.status == 200

        assert Outcome.LOST not in counts.finished


# How attempts end.


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, (), Outcome.OK),
        (304, (), Outcome.OK),
        (404, (), Outcome.OK),
        (429, (), Outcome.OK),
        (429, (("Retry-After", "1"),), Outcome.DONT_RETRY),
        (429, (LOAD,), Outcome.OK),
        (500, (), Outcome.ERROR),
        (500, (LOAD,), Outcome.ERROR),
        (501, (), Outcome.ERROR),
        (502, (), Outcome.ERROR),
        (503, (), Outcome.ERROR),
        (503, (LOAD,), Outcome.ERROR),
        (503, (LOAD, ("retry-after", "1")), Outcome.ERROR),
        (504, (), Outcome.ERROR),
        (504, (LOAD,), Outcome.TIMEOUT),
        (599, (), Outcome.ERROR),
    ],
)
async def test_a_status_says_how_the_attempt_ended_and_is_the_callers_to_read(
    status: int, headers: tuple[tuple[str, str], ...], expected: Outcome
) -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(status, b"", *headers)

    async with served(handler=handler) as ([_], session, counts):
        assert (await session.post("/")).status == status
        assert counts.finished == [expected]


async def test_a_deadline_that_passes_while_the_backend_works_is_a_timeout() -> None:
    async with served() as ([backend], session, counts):
        await session.get("/")  # A connection is there: time is up for the response.
        backend.handler = hang
        with pytest.raises(Timeout, match="waiting for the response"):
            await session.get("/", timeout_seconds=0.05)

        assert counts.finished == [Outcome.OK, Outcome.TIMEOUT]
        await until(lambda: backend.arrivals[-1].is_given_up)


async def test_a_deadline_covers_the_body_too() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"part", length=100))
        await hang(arrival)

    async with served(handler=handler) as ([_], session, counts):
        # Long enough for the part to come, also where the machine pauses.
        with pytest.raises(Timeout):
            await session.get("/", timeout_seconds=1.0)
        async with session.stream("GET", "/", timeout_seconds=1.0) as response:
            assert await anext(response) == b"part"
            with pytest.raises(Timeout):
                await anext(response)
            with pytest.raises(Timeout):
                await anext(response)

        assert counts.finished == [Outcome.TIMEOUT, Outcome.TIMEOUT]


async def test_a_deadline_ends_a_stream_that_nobody_reads() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"part", length=100))
        await hang(arrival)

    async with (
        served(handler=handler) as ([_], session, counts),
        # Long enough for the head to come, also where the machine pauses.
        session.stream("GET", "/", timeout_seconds=1.0) as response,
    ):
        await settled(session.service)
        assert counts.finished == [Outcome.TIMEOUT]
        with pytest.raises(Timeout):
            await response.read()


async def test_an_inherited_deadline_holds_where_the_call_has_more_time() -> None:
    async with served() as ([backend], session, counts):
        await session.get("/")  # A connection is there: time is up for the response.
        backend.handler = hang
        with evenly.request_context(deadline_seconds=0.05), pytest.raises(Timeout):
            await session.get("/", timeout_seconds=None)

        assert counts.finished == [Outcome.OK, Outcome.TIMEOUT]


async def test_a_deadline_holds_while_a_body_is_being_made() -> None:
    is_left = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            is_left.set()

    async with served() as ([_], session, counts):
        await session.get("/")  # A connection is there: the body is begun at once.
        with pytest.raises(Timeout):
            await session.post("/", data=endless(), timeout_seconds=0.05)

        assert is_left.is_set()
        assert counts.finished == [Outcome.OK, Outcome.TIMEOUT]


async def test_what_a_body_raises_is_raised_to_the_caller_and_is_no_backends_fault() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"one"
        raise LookupError("no more")

    async with served() as ([_], session, counts):
        with pytest.raises(LookupError, match="no more"):
            await session.post("/", data=failing())

        assert counts.finished == [Outcome.CANCELLED]


async def test_a_cancelled_request_closes_its_connection_and_is_nobodys_fault() -> None:
    async with served(handler=hang) as ([backend], session, counts):
        task = asyncio.create_task(session.get("/"))
        await until(lambda: backend.requests == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert counts.finished == [Outcome.CANCELLED]
        await until(lambda: backend.arrivals[0].is_given_up)


@pytest.mark.parametrize("turns", range(8))
async def test_a_request_cancelled_at_any_moment_is_counted_out(turns: int) -> None:
    async with served() as ([_], session, _counts):
        await session.get("/")
        for is_stream in (False, True):

            async def use(is_stream: bool = is_stream) -> None:
                if is_stream:
                    async with session.stream("GET", "/") as response:
                        await response.read()
                else:
                    await session.get("/")

            task = asyncio.create_task(use())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result() is None


@pytest.mark.parametrize("turns", range(4))
async def test_a_request_cancelled_before_there_is_a_list_of_backends_is_counted_out(
    turns: int,
) -> None:
    async with raw_backends(1) as [backend]:
        counts = Counts()
        session = Session(target(backend), config=quick(), observer=counts)
        task = asyncio.create_task(session.get("/"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await settled(session.service)
        assert len(counts.begun) == len(counts.finished)
        await session.close()


async def test_a_stream_that_is_left_half_way_gives_its_connection_up() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while not arrival.writer.is_closing():
                arrival.writer.write(b"3\r\none\r\n")
                await arrival.writer.drain()
                await asyncio.sleep(0)
        finally:
            arrival.is_given_up = True

    async with served(handler=handler) as ([backend], session, counts):
        async with session.stream("GET", "/") as response:
            await anext(response)
        assert counts.finished == [Outcome.CANCELLED]
        await until(lambda: backend.arrivals[0].is_given_up)


async def test_a_body_that_breaks_off_is_lost() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"part", length=100))
        await arrival.writer.drain()

    async with served(handler=handler) as ([backend], session, counts):
        with pytest.raises(ConnectionLost):
            await session.post("/")
        async with session.stream("GET", "/") as response:
            assert await anext(response) == b"part"
            with pytest.raises(ConnectionLost):
                await anext(response)

        # The caller of a stream has seen a part: it is not sent again.
        assert backend.requests == 2
        assert counts.finished == [Outcome.LOST, Outcome.LOST]


async def test_a_body_that_breaks_off_unseen_is_asked_for_again() -> None:
    async with served(2) as ([first, second], session, _):
        await healthy(session, 2)

        async def handler(arrival: Arrival) -> None:
            arrival.writer.write(reply(200, b"part", length=100))
            await arrival.writer.drain()

        first.handler = handler
        response = await until_tried(session, first, "GET")
        assert response.content == b"/"
        assert response.backend == second.address


async def test_what_is_no_http_is_an_error_of_the_backend() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return b"SSH-2.0-OpenSSH_9.9\r\n"

    async with served(2, handler) as (_, session, counts):
        with pytest.raises(ConnectionLost):
            await session.get("/")

        assert counts.finished == [Outcome.ERROR]


# Where there is no connection.


async def test_a_closed_port_costs_only_what_was_under_way() -> None:
    config = quick(task=ClientTaskConfig(retry=RetryConfig(attempts=1)))
    async with served(3, config=config) as (backends, session, counts):
        await healthy(session, 3)
        await backends[0].stop()
        for _ in range(30):
            assert (await session.post("/")).status == 200

        assert set(counts.finished) <= {Outcome.OK, Outcome.NOT_SENT}


async def test_where_nobody_listens_nothing_was_sent_and_that_is_said() -> None:
    async with raw_backends(1) as [backend]:
        await backend.stop()
        counts = Counts()
        async with Session(target(backend), config=quick(), observer=counts) as session:
            with pytest.raises(NoBackendHttpError, match="nothing was sent") as caught:
                await session.post("/")
            assert caught.value.where == "local"
            with pytest.raises(NoBackendHttpError, match="no backend is healthy"):
                await session.post("/")
            await settled(session.service)
            assert set(counts.finished) == {Outcome.NOT_SENT}

            await backend.start()
            await healthy(session, 1)
            assert (await session.post("/")).status == 200


async def test_an_answer_stands_where_the_retry_could_not_be_sent() -> None:
    async with served(2) as ([first, second], session, _counts):
        await healthy(session, 2)

        async def handler(arrival: Arrival) -> bytes:
            await second.stop()
            return reply(503, b"refused", OVERLOADED)

        first.handler = handler
        with pytest.raises(OverloadedHttpError) as caught:
            await until_tried(session, first, "GET")

        assert caught.value.response is not None
        assert caught.value.response.backend == first.address


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """Be a port that neither accepts nor refuses: its queue is full."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_deadline_holds_while_there_is_no_connection() -> None:
    counts = Counts()
    config = quick(connect_seconds=60.0)
    with full_listener() as full:
        async with Session(f"static:{full}", config=config, observer=counts) as session:
            await until(lambda: session.snapshot().backends)
            with pytest.raises(Timeout, match="waiting for a connection"):
                await session.get("/", timeout_seconds=0.1)
            assert counts.finished == [Outcome.NOT_SENT]


async def test_a_deadline_holds_while_there_is_no_list_of_backends() -> None:
    counts = Counts()
    config = quick(discovery_seconds=60.0)
    async with Session(Listed(), config=config, observer=counts) as session:
        with pytest.raises(Timeout, match="waiting for a backend"):
            await session.get("/", timeout_seconds=0.05)
        assert counts.begun == []


async def test_a_lame_duck_that_says_so_in_a_response_gets_no_more() -> None:
    lame = ("evenly-load", LOAD[1].replace("s=h", "s=l"))

    async def handler(arrival: Arrival) -> bytes:
        return reply(200, b"", lame, ("connection", "close"))

    async with served(2) as ([first, second], session, _):
        await healthy(session, 2)
        first.handler = handler
        await until_tried(session, first, "GET")
        before = first.requests
        for _ in range(10):
            await session.get("/")

        assert first.requests == before
        assert echo is second.handler
