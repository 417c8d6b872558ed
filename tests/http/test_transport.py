from __future__ import annotations

import asyncio
import gc
import gzip
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import evenly
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome
from evenly.http.client.fetch import Fetch
from evenly.http.client.httpx_transport import Transport
from evenly.http.client.session import Session
from tests.http.raw_backend import (
    OVERLOADED,
    Arrival,
    Counts,
    Listed,
    RawBackend,
    cut,
    hang,
    quick,
    raw_backends,
    reply,
    served,
    settled,
    target,
    transported,
    until,
)
from tests.http.test_exchange import full_listener
from tests.http.test_session import part_then_rest


async def test_httpx_sends_and_reads_as_with_its_own_transport() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(
            201, arrival.body, ("Set-Cookie", "a=1"), ("set-cookie", "b=2"), reason="Created"
        )

    async with transported(handler=handler) as ([backend], transport, counts):
        async with httpx.AsyncClient(
            transport=transport, base_url="http://search.prod:8080/v1"
        ) as client:
            response = await client.post("/a b", params={"q": "x"}, json={"n": 1})

        assert response.status_code == 201
        assert response.json() == {"n": 1}
        assert response.reason_phrase == "Created"
        assert response.http_version == "HTTP/1.1"
        assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert response.extensions["evenly_backend"] == backend.address
        assert response.extensions["evenly_attempts"] == 1
        assert response.elapsed.total_seconds() > 0
        [arrival] = backend.arrivals
        assert arrival.target == "/v1/a%20b?q=x"
        assert arrival.all("host") == ["search.prod:8080"]
        assert arrival.all("content-length") == [str(len(arrival.body))]
        assert (arrival.get("user-agent") or "").startswith("python-httpx/")
        assert (arrival.get("user-agent") or "").endswith(" evenly/1")
        assert counts.finished == [Outcome.OK]


async def test_the_context_travels_and_httpx_time_outs_are_no_deadline() -> None:
    async with transported() as ([backend], transport, _):
        client = httpx.AsyncClient(transport=transport, timeout=5.0)
        await client.get("http://search/")
        with evenly.request_context(
            criticality=Criticality.SHEDDABLE, user="ann", deadline_seconds=9.0
        ):
            await client.get("http://search/", headers={"baggage": "a=1"})
            luck = evenly.current_request().luck

        first, second = backend.arrivals
        assert first.get("evenly-deadline-ms") is None
        assert 0 < int(second.get("evenly-deadline-ms") or 0) <= 9_000
        assert luck is not None
        assert second.all("baggage") == [
            f"evenly-criticality=SHEDDABLE,evenly-luck={luck * 64:.0f},a=1"
        ]


async def test_bodies_are_streamed_both_ways() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"abc"

    async with transported() as ([backend], transport, counts):
        client = httpx.AsyncClient(transport=transport)
        async with client.stream("POST", "http://search/", content=chunks()) as response:
            assert transport.snapshot().active <= 1
            assert b"".join([chunk async for chunk in response.aiter_bytes()]) == b"abc" * 3
        multipart = await client.post("http://search/", files={"file": ("a.txt", b"content")})

        assert backend.arrivals[0].all("transfer-encoding") == ["chunked"]
        assert b"content" in multipart.content
        assert backend.arrivals[1].all("transfer-encoding") == []
        assert counts.finished == [Outcome.OK, Outcome.OK]


async def test_compressed_bodies_are_decoded_by_httpx() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(200, gzip.compress(b"text"), ("content-encoding", "gzip"))

    async with transported(handler=handler) as ([_], transport, _):
        client = httpx.AsyncClient(transport=transport)
        assert (await client.get("http://search/")).text == "text"


async def test_redirects_and_cookies_are_httpx_own_matter() -> None:
    async def handler(arrival: Arrival) -> bytes:
        if arrival.target == "/":
            return reply(302, b"", ("location", "/there"), ("set-cookie", "a=1"))
        return reply(200, (arrival.get("cookie") or "").encode())

    async with transported(handler=handler) as ([_], transport, _):
        client = httpx.AsyncClient(transport=transport, follow_redirects=True)
        assert (await client.get("http://search/")).content == b"a=1"


async def test_a_refusal_is_tried_elsewhere_and_is_a_response_where_all_refuse() -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(503, b"refused", OVERLOADED)

    async with transported(2) as ([first, second], transport, _):
        client = httpx.AsyncClient(transport=transport)
        await client.get("http://search/")
        await until(
            lambda: all(view.state.value == "healthy" for view in transport.snapshot().backends)
        )
        first.handler = second.handler = refuse
        response = await client.get("http://search/")

        assert response.status_code == 503
        assert response.content == b"refused"
        assert response.extensions["evenly_attempts"] == 3


@pytest.mark.parametrize(("declared", "attempts"), [(True, 3), (False, 1)])
async def test_a_post_is_tried_again_where_its_extensions_say_so(
    declared: bool, attempts: int
) -> None:
    async with transported(2, cut) as (backends, transport, _):
        client = httpx.AsyncClient(transport=transport)
        with pytest.raises(httpx.ReadError):
            await client.post("http://search/", extensions={"evenly_idempotent": declared})

        assert (sum(backend.requests for backend in backends) > 1) == (attempts > 1)


# Time.


async def test_a_response_that_does_not_begin_is_a_read_timeout() -> None:
    async with transported(handler=hang) as ([backend], transport, counts):
        client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(30.0, read=0.05))
        with pytest.raises(httpx.ReadTimeout):
            await client.get("http://search/")

        assert counts.finished == [Outcome.TIMEOUT]
        await until(lambda: backend.arrivals and backend.arrivals[0].is_given_up)


async def test_a_read_timeout_is_for_each_piece_and_not_for_the_whole() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"a", length=100))
        for _ in range(6):
            await asyncio.sleep(0.2)
            arrival.writer.write(b"a")
        await hang(arrival)

    async with transported(handler=handler) as ([_], transport, counts):
        client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(30.0, read=1.0))
        received = b""
        with pytest.raises(httpx.ReadTimeout):  # noqa: PT012
            async with client.stream("GET", "http://search/") as response:
                async for chunk in response.aiter_bytes():
                    received += chunk

        assert received == b"a" * 7  # 1.2 s of them.
        assert counts.finished == [Outcome.TIMEOUT]


async def test_a_slow_reader_is_not_timed_out() -> None:
    async def handler(arrival: Arrival) -> bytes:
        arrival.writer.write(reply(200, b"a", length=2))
        await asyncio.sleep(0.02)
        return b"b"

    async with transported(handler=handler) as ([_], transport, counts):
        client = httpx.AsyncClient(transport=transport, timeout=1.0)
        async with client.stream("GET", "http://search/") as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"a"
            await asyncio.sleep(1.2)
            assert await anext(chunks) == b"b"

        assert counts.finished == [Outcome.OK]


async def test_who_takes_a_complete_body_late_is_not_timed_out_and_leaves_no_timer() -> None:
    async with transported() as ([_], transport, counts):
        client = httpx.AsyncClient(transport=transport, timeout=1.0)
        async with client.stream("GET", "http://search/there") as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"/there"
            await asyncio.sleep(1.2)
            assert [chunk async for chunk in chunks] == []
        client.timeout = httpx.Timeout(60.0)
        for _ in range(10):
            await client.get("http://search/")
        del response, chunks
        gc.collect()

        assert [one for one in gc.get_objects() if isinstance(one, Fetch)] == []
        assert counts.finished == [Outcome.OK] * 11


async def test_a_time_out_that_is_none_leaves_no_connection_in_use() -> None:
    async with transported() as ([_], transport, counts):
        client = httpx.AsyncClient(transport=transport)
        await client.get("http://search/")
        with pytest.raises(TypeError):
            await client.get("http://search/", extensions={"timeout": {"read": "soon"}})

        assert counts.finished == [Outcome.OK, Outcome.CANCELLED]
        assert [link.pool.active for link in transport.service._links.values()] == [0]


class StoppedBackend(RawBackend):
    """Accept connections and read nothing, as a stopped process does."""

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        try:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()


async def test_a_request_that_nobody_takes_is_a_write_timeout_and_a_slow_body_is_not() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.2)
        while True:
            yield b"x" * 1_000_000

    backend = StoppedBackend()
    await backend.start()
    counts = Counts()
    transport = Transport(target(backend), config=quick(), observer=counts)
    timeout = httpx.Timeout(30.0, write=0.1, read=0.1)
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        with pytest.raises(httpx.WriteTimeout):
            await client.post("http://search/", content=chunks())
        assert counts.finished == [Outcome.TIMEOUT]
    await backend.stop()


class LateBackend(RawBackend):
    """Begin to read a body after a while, and then be quick about it."""

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            await asyncio.sleep(1.5)
            await reader.readexactly(LARGE)
        writer.write(reply(200, b"taken"))
        await writer.drain()
        writer.close()


LARGE = 16 << 20


async def test_the_time_to_read_does_not_run_while_the_body_is_written() -> None:
    backend = LateBackend()
    await backend.start()
    timeout = httpx.Timeout(30.0, read=1.0)
    transport = Transport(target(backend), config=quick())
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        # More than the buffers between hold, and they are soon empty once it reads.
        response = await client.post("http://search/", content=b"x" * LARGE)
        assert response.content == b"taken"
    await backend.stop()


async def test_bytes_that_nobody_takes_are_a_write_timeout() -> None:
    backend = StoppedBackend()
    await backend.start()
    counts = Counts()
    transport = Transport(target(backend), config=quick(), observer=counts)
    timeout = httpx.Timeout(30.0, write=0.1, read=2.0)
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        with pytest.raises(httpx.WriteTimeout):
            await client.post("http://search/", content=b"x" * LARGE)
        assert counts.finished == [Outcome.TIMEOUT]
    await backend.stop()


async def test_large_bytes_are_sent_whole_again_with_their_length() -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(503, b"refused", OVERLOADED)

    body = bytes(range(256)) * 4096
    async with transported(2, refuse) as (backends, transport, _):
        client = httpx.AsyncClient(transport=transport)
        _ = transport.service
        await until(
            lambda: [view.state.value for view in transport.snapshot().backends] == ["healthy"] * 2
        )
        response = await client.post("http://search/", content=body)

        assert response.extensions["evenly_attempts"] == 3
        arrivals = [arrival for backend in backends for arrival in backend.arrivals]
        assert [arrival.body == body for arrival in arrivals] == [True] * len(arrivals)
        assert {tuple(arrival.all("content-length")) for arrival in arrivals} == {(str(len(body)),)}
        assert {tuple(arrival.all("transfer-encoding")) for arrival in arrivals} == {()}


async def test_waiting_for_a_connection_or_for_a_backend_has_time_outs_of_its_own() -> None:
    with full_listener() as full:
        transport = Transport(f"static:{full}", config=quick(connect_seconds=60.0))
        timeout = httpx.Timeout(30.0, connect=0.05)
        async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
            with pytest.raises(httpx.ConnectTimeout):
                await client.get("http://search/")
    transport = Transport(Listed(), config=quick(discovery_seconds=60.0))
    timeout = httpx.Timeout(30.0, pool=0.05)
    async with httpx.AsyncClient(transport=transport, timeout=timeout) as client:
        with pytest.raises(httpx.PoolTimeout):
            await client.get("http://search/")


async def test_an_inherited_deadline_holds_where_httpx_has_no_time_outs() -> None:
    async with transported() as ([backend], transport, counts):
        client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None))
        await client.get("http://search/")  # A connection is there: time is up for the response.
        backend.handler = hang
        with evenly.request_context(deadline_seconds=0.05), pytest.raises(httpx.ReadTimeout):
            await client.get("http://search/")
        with evenly.request_context(deadline_seconds=0.0), pytest.raises(httpx.PoolTimeout):
            await client.get("http://search/")

        assert counts.finished == [Outcome.OK, Outcome.TIMEOUT]


# Endings.


async def test_a_stream_that_is_left_or_dropped_is_counted_out() -> None:
    async def handler(arrival: Arrival) -> None:
        arrival.writer.write(reply(200, b"part", length=100))
        await hang(arrival)

    async with transported(handler=handler) as ([backend], transport, counts):
        client = httpx.AsyncClient(transport=transport)
        async with client.stream("GET", "http://search/") as response:
            assert await anext(response.aiter_raw()) == b"part"
        assert counts.finished == [Outcome.CANCELLED]

        request = client.build_request("GET", "http://search/")
        response = await client.send(request, stream=True)
        del response, request
        gc.collect()
        await settled(transport.service)

        assert counts.finished == [Outcome.CANCELLED] * 2
        await until(lambda: all(arrival.is_given_up for arrival in backend.arrivals))


async def test_a_body_is_read_to_its_end_although_its_client_was_dropped() -> None:
    async with raw_backends(1, part_then_rest) as [backend]:
        client = httpx.AsyncClient(transport=Transport(target(backend), config=quick()))
        request = client.build_request("GET", "http://search/")
        response = await client.send(request, stream=True)
        del client
        gc.collect()
        assert await response.aread() == b"partrest"
        # And no longer: what has been read holds nothing.
        gc.collect()
        await until(lambda: backend.open_connections == 0)


async def test_a_redirect_elsewhere_leaves_the_service_where_its_transport_is_mounted() -> None:
    async def handler(arrival: Arrival) -> bytes:
        return reply(302, b"", ("location", "http://elsewhere.test/there"))

    elsewhere = httpx.MockTransport(lambda request: httpx.Response(200, text=str(request.url)))
    async with transported(handler=handler) as ([backend], transport, _):
        client = httpx.AsyncClient(
            mounts={"http://search.prod": transport, "http://elsewhere.test": elsewhere},
            follow_redirects=True,
        )
        response = await client.get("http://search.prod/")

        assert response.text == "http://elsewhere.test/there"
        assert backend.requests == 1


async def test_a_cancelled_request_is_counted_out() -> None:
    async with transported(handler=hang) as ([backend], transport, counts):
        client = httpx.AsyncClient(transport=transport)
        task = asyncio.create_task(client.get("http://search/"))
        await until(lambda: backend.requests == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert counts.finished == [Outcome.CANCELLED]


async def test_a_transport_and_a_session_to_the_same_target_share() -> None:
    config = quick()
    async with served(config=config) as ([backend], session, counts):
        transport = Transport(target(backend), config=config, observer=counts)
        await session.get("/")
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://search/")
            assert transport.service is session.service
        assert (await session.get("/")).status == 200
        assert {arrival.connection for arrival in backend.arrivals} == {1}


# TLS.


def contexts(
    directory: Path, name: str, kind: str = "DNS"
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's and a client's context for a certificate that is made out to `name`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("certificates are made by the openssl command")
    command = (
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -keyout key -out certificate -subj /CN={name} -addext subjectAltName={kind}:{name}"
    )
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(directory / "certificate", directory / "key")
    return server, ssl.create_default_context(cafile=str(directory / "certificate"))


async def test_with_tls_backends_have_to_be_who_the_url_says(tmp_path: Path) -> None:
    server, client_context = contexts(tmp_path, "search.prod")
    backend = RawBackend()
    await backend.start(ssl=server)
    transport = Transport(target(backend), config=quick(), ssl=client_context)
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.get("https://search.prod/there")
        assert response.content == b"/there"
        with pytest.raises(httpx.ConnectError):
            await client.get("https://other.prod/")
    # Without a context it is the URL that asks for TLS, and nobody vouches for this one.
    async with httpx.AsyncClient(transport=Transport(target(backend), config=quick())) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("https://search.prod/")
    await backend.stop()
    assert backend.requests == 1


async def test_with_tls_an_address_of_ipv6_is_checked_like_a_name(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "ip").mkdir()
    for is_trusted, (server, context) in (
        (False, contexts(tmp_path / "name", "search.prod")),
        (True, contexts(tmp_path / "ip", "::1", "IP")),
    ):
        backend = RawBackend()
        await backend.start(ssl=server)
        results = []
        transport = Transport(target(backend), config=quick(), ssl=context)
        async with httpx.AsyncClient(transport=transport) as client:
            for url in ("https://[::1]/", "https://[::1]:8443/"):
                try:
                    results.append((await client.get(url)).status_code == 200)
                except httpx.ConnectError:
                    results.append(False)
        for host in ("::1", "[::1]", "[::1]:8443"):
            async with Session(target(backend), config=quick(), ssl=context, host=host) as session:
                try:
                    results.append((await session.get("/")).status == 200)
                except evenly.NoBackend:
                    results.append(False)
        await backend.stop()
        assert results == [is_trusted] * 5


async def test_with_tls_a_name_in_another_script_is_checked_too(tmp_path: Path) -> None:
    server, context = contexts(tmp_path, "xn--bcher-kva.test")
    backend = RawBackend()
    await backend.start(ssl=server)
    transport = Transport(target(backend), config=quick(), ssl=context)
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.get("https://bücher.test/")).status_code == 200
        await until(lambda: backend.checks)
    await backend.stop()


def test_a_client_that_is_not_async_is_refused() -> None:
    transport: Any = Transport("static:127.0.0.1:1")
    client = httpx.Client(transport=transport)

    with pytest.raises(
        evenly.UsageError, match=r"evenly\.http\.Transport is for httpx\.AsyncClient"
    ):
        client.get("http://search.prod/")
    with pytest.raises(evenly.UsageError, match="AsyncClient"):  # noqa: SIM117 -- entering raises
        with httpx.Client(transport=transport):
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "target must be a string or a Discovery, not None"),
        ({"config": {}}, "config must be a ClientConfig, not {}"),
    ],
)
def test_what_is_wrong_is_said_when_the_transport_is_made(
    options: dict[str, Any], message: str
) -> None:
    arguments = {"target": "static:127.0.0.1:1", **options}
    with pytest.raises(evenly.ConfigError, match=message):
        Transport(arguments.pop("target"), **arguments)


async def test_a_transport_that_is_used_twice_on_one_loop_closes_with_its_last_user() -> None:
    async with raw_backends(1) as [backend]:
        config = quick()
        clients = [
            httpx.AsyncClient(transport=Transport(target(backend), config=config)) for _ in range(2)
        ]
        for client in clients:
            await client.get("http://search/")
        await clients[0].aclose()
        assert (await clients[1].get("http://search/")).status_code == 200
        await clients[1].aclose()
        await until(lambda: backend.open_connections == 0)
