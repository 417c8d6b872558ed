from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import uvicorn

import evenly
from evenly.core.balancing.backend import Backend
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome
from evenly.http.client.session import Session
from evenly.runtime.client_config import ClientConfig
from tests.http.raw_backend import (
    LOAD,
    Arrival,
    Counts,
    RawBackend,
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
from tests.http.test_serve import serving


@pytest.mark.parametrize("method", ["get", "head", "options", "post", "put", "patch", "delete"])
async def test_every_method_has_its_own_name(method: str) -> None:
    async with served() as ([backend], session, counts):
        response = await getattr(session, method)("/thing")

        assert response.status == 200
        assert backend.arrivals[0].method == method.upper()
        assert backend.arrivals[0].target == "/thing"
        assert response.backend == backend.address
        assert response.attempts == 1
        assert counts.finished == [Outcome.OK]


async def test_params_headers_and_the_base_path_go_into_the_request() -> None:
    async with served(base_path="/v1", headers={"x-ours": "1", "x-both": "session"}) as (
        [backend],
        session,
        _,
    ):
        await session.get(
            "/a b?x=1", params={"q": "c&d", "n": [1, 2]}, headers=[("X-Both", "request")]
        )

        arrival = backend.arrivals[0]
        assert arrival.target == "/v1/a%20b?x=1&q=c%26d&n=1&n=2"
        assert arrival.all("x-ours") == ["1"]
        assert arrival.all("x-both") == ["request"]
        assert arrival.all("host") == [backend.address]
        assert arrival.get("user-agent") == "evenly/1"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/users", "/v1/users"), ("", "/v1"), ("?a=1", "/v1?a=1"), ("/", "/v1/")],
)
async def test_a_path_is_put_behind_the_base_path(path: str, expected: str) -> None:
    async with served(base_path="/v1") as ([backend], session, _):
        await session.get(path)
        with pytest.raises(evenly.ConfigError, match="path must begin with /, not 'users'"):
            await session.get("users")
        with pytest.raises(evenly.ConfigError, match="path must begin with /"):
            await session.get("#part")

        assert [arrival.target for arrival in backend.arrivals] == [expected]


@pytest.mark.parametrize(
    ("path", "params", "expected"),
    [
        ("/q", {}, "/q"),
        ("/q?a=1", {"b": None}, "/q?a=1"),
        ("/q", {"a": None, "b": True, "c": [False, None, 1]}, "/q?b=true&c=false&c=1"),
        ("/100% done", None, "/100%25%20done"),
        ("/100%", None, "/100%25"),
        ("/a%20b%2fc", None, "/a%20b%2fc"),
        ("/%zz", {"a": "%"}, "/%25zz?a=%25"),
    ],
)
async def test_what_is_sent_is_a_url_that_says_what_was_meant(
    path: str, params: dict[str, Any] | None, expected: str
) -> None:
    async with served() as ([backend], session, _):
        await session.get(path, params=params)

        assert backend.arrivals[0].target == expected


@pytest.mark.parametrize(
    ("options", "expected_type", "expected"),
    [
        ({"json": {"a": [1, None]}}, "application/json", b'{"a":[1,null]}'),
        ({"json": 1, "headers": {"content-type": "application/x"}}, "application/x", b"1"),
        ({"data": b"bytes"}, None, b"bytes"),
        ({"data": "täxt"}, None, "täxt".encode()),
        ({"data": bytearray(b"array")}, None, b"array"),
    ],
    ids=["json", "json of another type", "bytes", "text", "bytearray"],
)
async def test_a_body_is_sent_with_its_length_and_type(
    options: dict[str, Any], expected_type: str | None, expected: bytes
) -> None:
    async with served() as ([backend], session, _):
        await session.post("/", **options)

        arrival = backend.arrivals[0]
        assert arrival.body == expected
        assert arrival.all("content-length") == [str(len(expected))]
        assert arrival.get("content-type") == expected_type


async def test_a_body_that_is_made_while_it_is_sent_goes_in_chunks_or_with_the_length_given() -> (
    None
):
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0)
        yield b"two"

    async with served() as ([backend], session, _):
        assert (await session.post("/", data=chunks())).content == b"onetwo"
        assert (
            await session.post("/", data=chunks(), headers={"content-length": "6"})
        ).content == b"onetwo"

        assert backend.arrivals[0].all("transfer-encoding") == ["chunked"]
        assert backend.arrivals[1].all("transfer-encoding") == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_a_body_that_is_made_and_is_to_be_empty_says_so(method: str) -> None:
    async def chunks(*made: bytes) -> AsyncIterator[bytes]:
        for chunk in made:
            yield chunk

    async with served() as ([backend], session, _):
        options: dict[str, Any] = {"headers": {"content-length": "0"}}
        assert (await session.request(method, "/", data=chunks(), **options)).status == 200
        with pytest.raises(ValueError, match="longer than its Content-Length"):
            await session.request(method, "/", data=chunks(b"x"), **options)

        assert backend.arrivals[0].all("content-length") == ["0"]
        assert all(link.pool.active == 0 for link in session.service._links.values())


async def test_a_response_is_read_as_bytes_text_and_json_whatever_the_case_of_its_headers() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(
            201,
            '{"name": "Zoë"}'.encode("latin-1"),
            ("Content-Type", "application/json; charset=ISO-8859-1"),
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("evenly-degraded", "1"),
            reason="Created",
        )

    async with served(handler=handler) as ([_], session, _):
        response = await session.get("/")

        assert response.status == 201
        assert response.reason == "Created"
        assert response.http_version == "1.1"
        assert response.text() == '{"name": "Zoë"}'
        assert response.headers["CONTENT-type"] == "application/json; charset=ISO-8859-1"
        assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
        assert response.headers.get("missing") is None
        assert "content-length" in response.headers
        assert len(response.headers) == len(list(response.headers)) == 4
        assert response.is_degraded
        assert response.is_success
        assert response.raise_for_status() is response


async def test_a_stream_is_read_chunk_by_chunk_while_it_arrives() -> None:
    go_on = asyncio.Event()

    async def handler(arrival: Arrival) -> bytes:
        arrival.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await arrival.writer.drain()
        await go_on.wait()
        return b"3\r\ntwo\r\n0\r\n\r\n"

    async with served(handler=handler) as ([backend], session, counts):
        async with session.stream("GET", "/") as response:
            assert await anext(aiter(response)) == b"one"
            assert session.snapshot().active == 1
            assert counts.finished == []
            go_on.set()
            assert [chunk async for chunk in response] == [b"two"]
            assert session.snapshot().active == 0
        assert counts.finished == [Outcome.OK]

        async with session.stream("GET", "/") as response:
            assert await response.read() == b"onetwo"
            assert response.content == b"onetwo"
        assert backend.accepted == 1


@pytest.mark.parametrize("charset", ["undefined", "idna", "hex", "no-such-thing"])
async def test_an_encoding_that_is_none_for_text_is_taken_for_utf_8(charset: str) -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(200, "Zoë".encode() + b"\xff", ("content-type", f"text/x; charset={charset}"))

    async with served(handler=handler) as ([_], session, _):
        response = await session.get("/")

        assert response.text() == "Zoë\ufffd"
        assert response.text("latin-1") == "ZoÃ«ÿ"


async def test_a_stream_is_entered_once_and_its_time_begins_then() -> None:
    async with served() as ([backend], session, counts):
        stream = session.stream("GET", "/", timeout_seconds=1.0)
        await asyncio.sleep(1.2)
        assert counts.begun == []
        async with stream as response:
            assert await response.read() == b"/"
        with pytest.raises(evenly.UsageError, match="entered once"):
            async with stream:
                raise AssertionError

        assert backend.requests == 1


async def part_then_rest(arrival: Arrival) -> bytes:
    """Answer in two parts, so that who reads the first waits for the second."""
    arrival.writer.write(reply(200, b"part", length=8))
    await arrival.writer.drain()
    await asyncio.sleep(0.05)
    return b"rest"


async def test_a_stream_is_read_to_its_end_although_its_session_was_dropped() -> None:
    async with raw_backends(1, part_then_rest) as [backend]:
        async with Session(target(backend), config=quick()).stream("GET", "/") as response:
            gc.collect()
            assert await response.read() == b"partrest"
        del response
        await until(lambda: backend.open_connections == 0)


async def test_a_stream_that_is_dropped_is_counted_out() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"part", length=100))
        await hang(arrival)

    async with served(handler=handler) as ([backend], session, counts):
        stream = session.stream("GET", "/", timeout_seconds=None)
        response = await stream.__aenter__()
        assert await anext(response) == b"part"
        del stream, response
        await settled(session.service)

        assert counts.finished == [Outcome.CANCELLED]
        await until(lambda: backend.arrivals[0].is_given_up)


async def test_criticality_customer_and_deadline_travel_in_the_headers() -> None:
    async with served() as ([backend], session, _):
        with evenly.request_context(
            criticality=Criticality.SHEDDABLE, user="ann", customer="indexer", deadline_seconds=10.0
        ):
            await session.get("/", timeout_seconds=None)
            luck = evenly.current_request().luck
        await session.get("/", timeout_seconds=5.0)
        await session.get("/", timeout_seconds=None)

        first, second, third = backend.arrivals
        assert first.get("evenly-criticality") == "SHEDDABLE"
        assert luck is not None
        assert first.get("evenly-level") == f"u={luck * 64:.0f}"
        assert first.get("baggage") == f"evenly-criticality=SHEDDABLE,evenly-luck={luck * 64:.0f}"
        assert first.get("evenly-customer") == "indexer"
        assert 0 < int(first.get("evenly-deadline-ms") or 0) <= 10_000
        assert second.get("evenly-criticality") is None
        assert second.get("evenly-level") is None
        assert 0 < int(second.get("evenly-deadline-ms") or 0) <= 5_000
        assert third.get("evenly-deadline-ms") is None


async def test_baggage_of_the_users_own_is_joined_with_ours_and_what_is_ours_is_replaced() -> None:
    headers = [
        ("Baggage", "a=1"),
        ("baggage", "b=2"),
        ("evenly-criticality", "CRITICAL_PLUS"),
        ("evenly-level", "u=63;l=255"),
    ]
    async with served(headers=headers) as ([backend], session, _):
        with evenly.request_context(criticality=Criticality.SHEDDABLE, user="ann"):
            await session.get("/")
            luck = evenly.current_request().luck
        await session.get("/")

        first, second = backend.arrivals
        assert luck is not None
        assert first.all("evenly-level") == [f"u={luck * 64:.0f}"]
        assert first.all("baggage") == [
            f"evenly-criticality=SHEDDABLE,evenly-luck={luck * 64:.0f},a=1,b=2"
        ]
        assert second.all("evenly-level") == []
        assert first.all("evenly-criticality") == ["SHEDDABLE"]
        assert second.all("baggage") == ["a=1,b=2"]
        assert second.all("evenly-criticality") == []


async def test_the_users_own_agent_comes_before_ours() -> None:
    async with served(headers={"User-Agent": "indexer/7"}) as ([backend], session, _):
        await session.get("/")

        assert backend.arrivals[0].all("user-agent") == ["indexer/7 evenly/1"]


async def test_connections_are_used_again() -> None:
    async with served() as ([backend], session, _):
        for _ in range(20):
            await session.get("/")

        assert {arrival.connection for arrival in backend.arrivals} == {1}


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    arrived = asyncio.Barrier(10)

    async def handler(arrival: Arrival) -> bytes:
        await arrived.wait()
        return await echo(arrival)

    async with served(handler=handler) as ([backend], session, _):
        responses = await asyncio.gather(*(session.get(f"/{n}") for n in range(10)))

        assert [response.content for response in responses] == [b"/%d" % n for n in range(10)]
        assert backend.accepted == 10


async def test_requests_are_spread_over_the_backends() -> None:
    async with served(3) as (backends, session, _):
        await until(
            lambda: all(view.state.value == "healthy" for view in session.snapshot().backends)
        )
        await asyncio.gather(*(session.get("/") for _ in range(30)))

        assert min(backend.requests for backend in backends) >= 5


async def test_a_backend_that_announces_the_end_of_its_connection_loses_no_request() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(200, b"bye", ("connection", "close"))

    async with served(handler=handler) as ([backend], session, counts):
        for _ in range(5):
            assert (await session.get("/")).content == b"bye"

        assert len({arrival.connection for arrival in backend.arrivals}) == 5
        assert counts.finished == [Outcome.OK] * 5


def idle_seconds(session: Session) -> float:
    """Return for how long the one idle connection will be used again."""
    [link] = session.service._links.values()
    [connection] = link.pool._idle
    return connection.idle_seconds


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([LOAD], 1.5, id="a load report says nothing of it"),
        pytest.param([LOAD, ("Keep-Alive", "timeout=5")], 4.0, id="the server says so"),
    ],
)
async def test_an_idle_connection_is_used_again_for_as_long_as_the_server_says(
    headers: list[tuple[str, str]], expected: float
) -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(200, b"", *headers)

    async with served(handler=handler) as ([backend], session, _):
        await session.get("/")
        assert idle_seconds(session) == expected
        backend.health = handler
        before = backend.checks
        await until(lambda: backend.checks > before + 1)
        await until(lambda: session.service._links and not session.service._checks)
        assert idle_seconds(session) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 309.0),
        ({"timeout_keep_alive": 20}, 19.0),
        ({"headers": [("keep-alive", "timeout=9"), ("x-mine", "1")]}, 8.0),
    ],
    ids=["the default", "another time-out", "a header of the user's own"],
)
async def test_what_serve_says_of_idle_connections_is_believed(
    options: dict[str, Any], expected: float
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await echo_app(scope, receive, send)

    async with (
        serving(app, **options) as url,
        Session(f"static:{url.removeprefix('http://')}", config=quick()) as session,
    ):
        response = await session.get("/")
        assert len(response.headers.get_all("keep-alive")) == 1
        assert ("x-mine" in response.headers) == ("headers" in options)
        await until(lambda: session.service._links and not session.service._checks)
        assert idle_seconds(session) == expected


async def test_sessions_with_the_same_arguments_share_and_the_last_one_closes() -> None:
    async with raw_backends(1) as [backend]:
        config = quick()
        first = Session(target(backend), config=config)
        second = Session(target(backend), config=config)
        other = Session(target(backend), config=config, host="other.prod")
        assert first.service is second.service
        assert first.service is not other.service
        await first.get("/")
        await first.close()
        assert (await second.get("/")).status == 200
        assert (await other.get("/")).status == 200
        assert backend.arrivals[-1].get("host") == "other.prod"
        await second.close()
        await other.close()
        await until(lambda: backend.open_connections == 0)


async def test_a_session_that_nobody_closed_lets_go_when_it_is_collected() -> None:
    async with raw_backends(1) as [backend]:
        session = Session(target(backend), config=quick())
        await session.get("/")
        service = session.service
        del session

        await until(lambda: service.users == 0 and backend.open_connections == 0)


async def test_a_closed_session_is_refused() -> None:
    async with raw_backends(1) as [backend]:
        session = Session(target(backend), config=quick())
        await session.close()
        await session.close()
        with pytest.raises(evenly.UsageError, match="closed"):
            await session.get("/")


async def test_a_session_is_closed_by_httpx_s_name_too() -> None:
    async with raw_backends(1) as [backend]:
        session = Session(target(backend), config=quick())
        await session.aclose()
        with pytest.raises(evenly.UsageError, match="closed"):
            await session.get("/")


def test_a_session_of_another_loop_is_refused() -> None:
    session = Session("static:127.0.0.1:1", config=quick())

    async def use() -> None:
        _ = session.service

    async def use_and_close() -> None:
        with pytest.raises(evenly.UsageError, match="loop that is closed"):
            await use()

    asyncio.run(use())
    asyncio.run(use_and_close())


def test_a_session_whose_loop_is_closed_can_be_closed() -> None:
    session = Session("static:127.0.0.1:1", config=quick())

    async def use() -> None:
        _ = session.service

    async def close_and_use() -> None:
        await session.close()
        with pytest.raises(evenly.UsageError, match="loop that is closed"):
            await use()

    asyncio.run(use())
    asyncio.run(close_and_use())


async def test_a_session_of_another_loop_is_not_closed_here_and_can_be_closed_there() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    async def begin() -> Session:
        session = Session("static:127.0.0.1:1", config=quick())
        return await session.__aenter__()

    session = there(begin())
    service = session._client._services[None, None]
    with pytest.raises(evenly.UsageError, match="another event loop"):
        await session.close()
    assert service.users == 1
    there(session.close())
    assert service.users == 0
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    loop.close()


async def test_an_address_of_ipv6_is_named_in_brackets() -> None:
    async with served(host="::1") as ([backend], session, _):
        hosts: list[str | None] = []

        async def health(arrival: Arrival) -> bytes:
            hosts.append(arrival.get("host"))
            return reply(200)

        backend.health = health
        await session.get("/")
        await until(lambda: hosts)

        assert backend.arrivals[0].get("host") == hosts[0] == "[::1]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "nonsense,"}, "target"),
        ({"target": None}, "target must be a string or a Discovery, not None"),
        ({"config": {"a": 1}}, "config must be a ClientConfig, not {'a': 1}"),
        ({"config": ClientConfig}, "config must be a ClientConfig, not <class"),
        ({"base_path": "v1"}, "base_path"),
        ({"base_path": "/v1/"}, "base_path"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"),
        ({"health_path": "healthz"}, "health_path"),
        ({"health_path": "/a b"}, "health_path"),
        ({"host": ""}, "host"),
        ({"host": ":8443"}, "host"),
        ({"host": "[]:8443"}, "host"),
        ({"host": "a b"}, "host"),
        ({"headers": {"a b": "c"}}, "header name"),
        ({"headers": {"a": "b\r\nc: d"}}, "header a"),
    ],
)
def test_what_is_wrong_is_said_when_the_session_is_made(
    options: dict[str, Any], message: str
) -> None:
    arguments = {"target": "static:127.0.0.1:1", **options}
    with pytest.raises(evenly.ConfigError, match=message):
        Session(arguments.pop("target"), **arguments)


@pytest.mark.parametrize(
    ("method", "path", "options", "message"),
    [
        ("GET", "no-slash", {}, "path must begin with /"),
        ("GET", "", {}, "path must begin with /"),
        ("GET", "?q=1", {}, "path must begin with /"),
        ("G T", "/", {}, "method"),
        ("GET", "/", {"headers": {"a": "b\nc"}}, "header a"),
        ("POST", "/", {"json": 1, "data": b""}, "json or data"),
        ("POST", "/", {"data": [b"a"]}, "data must be"),
        ("POST", "/", {"headers": {"content-length": "x"}}, "Content-Length"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_and_nothing_is_counted(
    method: str, path: str, options: dict[str, Any], message: str
) -> None:
    async with served() as ([backend], session, counts):
        with pytest.raises(evenly.ConfigError, match=message):
            await session.request(method, path, **options)

        assert backend.requests == 0
        assert all(outcome is Outcome.CANCELLED for outcome in counts.finished)


async def test_an_option_that_no_request_has_is_refused_in_words_of_the_request() -> None:
    known = "params, headers, json, data, timeout_seconds, idempotent; not 'timeout'"
    wrong: dict[str, Any] = {"timeout": 1.0}
    async with served() as ([backend], session, _):
        with pytest.raises(TypeError, match=f"the options of a GET are {known}"):
            await session.get("/", **wrong)
        with pytest.raises(TypeError, match=f"the options of a POST are {known}"):
            async with session.stream("POST", "/", **wrong):
                pass

        assert backend.requests == 0


async def test_what_else_has_the_wrong_type_is_said_as_it_was() -> None:
    async with served() as (_, session, _counts):
        with pytest.raises(TypeError, match="object is not JSON serializable"):
            await session.post("/", json=object())
        with pytest.raises(TypeError, match="object is not JSON serializable"):
            async with session.stream("POST", "/", json=object()):
                pass


def states(session: Session) -> list[str]:
    return [view.state.value for view in session.snapshot().backends]


async def test_a_backend_is_checked_over_its_connection_where_it_answers_no_probes() -> None:
    is_serving = True

    async def health(arrival: Arrival) -> bytes:
        return reply(200 if is_serving else 503)

    async with served() as ([backend], session, _):
        backend.health = health
        await until(lambda: backend.checks >= 2 and states(session) == ["healthy"])
        is_serving = False
        await until(lambda: states(session) == ["lame duck"])
        assert (await session.get("/")).status == 200  # The last resort.
        is_serving = True
        await until(lambda: states(session) == ["healthy"])


async def test_a_backend_that_answers_no_checks_becomes_refusing_and_comes_back() -> None:
    async with served(2) as (backends, session, _):
        await until(lambda: states(session) == ["healthy"] * 2)
        backends[0].health = hang
        await until(lambda: "refusing" in states(session))
        backends[0].health = echo
        await until(lambda: states(session) == ["healthy"] * 2)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def uvicorn_serving(app: Any) -> AsyncIterator[str]:
    server = _Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await until(lambda: server.started)
        try:
            yield f"static:127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def echo_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what was sent, chunk by chunk."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-path", scope["path"].encode())],
        }
    )
    while True:
        message = await receive()
        more = message.get("more_body", False)
        await send(
            {"type": "http.response.body", "body": message.get("body", b""), "more_body": more}
        )
        if not more:
            return


async def test_large_bodies_go_both_ways_at_once_through_uvicorn() -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 65_536
            yield b"x" * 65_536

    async with uvicorn_serving(echo_app) as address:
        counts = Counts()
        async with Session(address, config=quick(), observer=counts) as session:
            received = 0
            async with session.stream("POST", "/big", data=chunks()) as response:
                assert response.headers["x-path"] == "/big"
                async for chunk in response:
                    received += len(chunk)
            assert received == sent == 64 * 65_536
            assert (await session.post("/", data=b"y" * 1_000_000)).content == b"y" * 1_000_000
            await settled(session.service)
            assert counts.finished == [Outcome.OK, Outcome.OK]


async def test_who_comes_before_the_first_list_of_backends_waits_for_it() -> None:
    backend = RawBackend()
    await backend.start()

    class Late:
        async def watch(self) -> AsyncIterator[Any]:
            await asyncio.sleep(0.05)
            yield [Backend(backend.address)]
            await asyncio.Event().wait()

    async with Session(Late(), config=quick()) as session:
        assert (await session.get("/")).status == 200
    await backend.stop()
