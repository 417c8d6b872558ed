"""The same on uvloop, and over TLS on both loops: what may depend on who moves the bytes."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenly.core.request import Request
from evenly.errors import ConfigError
from evenly.http.client.timed import Timed
from evenly.http1.connection import Connection, End, Lost, NotSent
from tests.http1.pools import OPENED, REFUSED, Watched, pooled, watched, watched_loosely
from tests.http1.raw_server import CHUNKED_POST, GET, OK, Peer, always_ok, raw_server, until

NAME = "search.test"
Case = Callable[[ssl.SSLContext | None, dict[str, Any]], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the openssl command")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN={NAME} -addext subjectAltName=DNS:{NAME} -keyout {path}.key -out {path}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return path


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, f"{certificate}.key")
    return context


def client_options(certificate: Path, name: str = NAME) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(certificate))
    return {"ssl": context, "server_hostname": name}


async def requests(server_ssl: ssl.SSLContext | None, options: dict[str, Any]) -> None:
    """Ask many things at once, with bodies of many sizes."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    async def once(it: Watched, number: int) -> None:
        connection = await it.pool.acquire()
        if number % 3:
            body = b"x" * (number * 5_000)
            head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
            response = await connection.request("PUT", head, body)
        else:
            response = await connection.request("POST", CHUNKED_POST, chunks())
        assert await response.read() == b"ok"

    async with pooled(always_ok, server_ssl=server_ssl, **options) as (it, server):
        for _ in range(3):
            await asyncio.gather(*(once(it, number) for number in range(20)))
        assert it.pool.active == 0
        assert len(server.peers) == it.pool.idle
        assert it.events == [OPENED]


async def slow_reader(server_ssl: ssl.SSLContext | None, options: dict[str, Any]) -> None:
    """Read slowly: the server stops."""
    total = 32 << 20
    sent = 0

    async def floods(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            await peer.send(b"x" * 65_536)
            sent += 65_536

    async with pooled(floods, server_ssl=server_ssl, **options) as (it, _):
        response = await (await it.pool.acquire()).request("GET", GET)
        await until(response.is_full)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        # The limit, what one read of the loop may bring, and what TLS had taken by then.
        assert response.unread < 2_000_000
        assert sent < total / 2
        got = 0
        while chunk := await response.next_chunk():
            got += len(chunk)
        assert got == total
        assert it.pool.idle == 1


async def endings(server_ssl: ssl.SSLContext | None, options: dict[str, Any]) -> None:
    """Drop, cancel, break, and be closed while idle."""

    async def play(peer: Peer) -> None:
        while True:
            target = (await peer.request()).split(b" ", 2)[1]
            if target == b"/ok":
                await peer.send(OK)
            elif target == b"/body":
                await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
            elif target == b"/close":
                await peer.send(OK)
                await peer.send(b"")
                peer.close()
                return
            elif target == b"/lose":
                peer.close()
                return

    def get(target: str) -> bytes:
        return f"GET {target} HTTP/1.1\r\n\r\n".encode()

    async with pooled(play, server_ssl=server_ssl, **options) as (it, _):
        pool = it.pool
        ends: list[End] = []
        response = await (await pool.acquire()).request("GET", get("/body"))
        response.on_end = ends.append
        del response
        await until(lambda: ends)
        assert ends == [End.CLOSED]
        assert (pool.active, pool.idle) == (0, 0)

        connection = await pool.acquire()
        task = asyncio.create_task(connection.request("GET", get("/hang")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(NotSent):
            await connection.request("GET", get("/ok"))

        with pytest.raises(Lost):
            await (await pool.acquire()).request("GET", get("/lose"))
        # The last one broke, so another is opened to see; this request may use it.
        response = await (await pool.acquire()).request("GET", get("/close"))
        assert await response.read() == b"ok"
        await until(lambda: pool.idle == 0 and pool.connecting == 0)
        response = await (await pool.acquire()).request("GET", get("/ok"))
        assert await response.read() == b"ok"
        assert it.events == [OPENED]


async def until_close(server_ssl: ssl.SSLContext | None, options: dict[str, Any]) -> None:
    """Read a body that ends with its connection."""

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10):
            await peer.send(b"x" * 30_000)
        peer.close()

    async with pooled(play, server_ssl=server_ssl, **options) as (it, _):
        response = await (await it.pool.acquire()).request("GET", GET)
        assert len(await response.read()) == 300_000
        assert response.end is End.COMPLETE


def run_on(loop: str, coroutine: Coroutine[Any, Any, None]) -> None:
    if loop == "asyncio":
        asyncio.run(coroutine)
        return
    if importlib.util.find_spec("uvloop") is None:
        coroutine.close()
        pytest.skip("uvloop is not installed")
    uvloop = importlib.import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


CASES: list[Case] = [requests, slow_reader, endings, until_close]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_uvloop(case: Case) -> None:
    run_on("uvloop", case(None, {}))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_tls(case: Case, loop: str, certificate: Path) -> None:
    run_on(loop, case(server_context(certificate), client_options(certificate)))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_certificate_for_somebody_else_is_not_trusted(loop: str, certificate: Path) -> None:
    async def play() -> None:
        async with raw_server(always_ok, ssl=server_context(certificate)) as server:
            options = client_options(certificate, "other.test")
            async with watched(server.address, **options) as it:
                with pytest.raises(NotSent) as refused:
                    await it.get()
                assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
                assert it.events == [REFUSED]

    run_on(loop, play())


def test_loops_in_several_threads_do_not_read_into_one_buffer() -> None:
    async def play(letter: bytes) -> bool:
        body = letter * 50_000

        async def serve(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + body)

        async with raw_server(serve) as server, watched_loosely(server.address) as it:
            return all([await it.get() == body for _ in range(100)])

    with ThreadPoolExecutor(3) as threads:
        assert (
            list(threads.map(lambda letter: asyncio.run(play(letter)), [b"a", b"b", b"c"]))
            == [True] * 3
        )


async def test_a_server_without_tls_is_refused(certificate: Path) -> None:
    async with raw_server(always_ok) as server:
        options = client_options(certificate) | {"connect_seconds": 0.2}
        async with watched(server.address, **options) as it:
            with pytest.raises(NotSent):
                await it.get()


async def test_tls_over_a_unix_socket_needs_a_name(certificate: Path) -> None:
    options = client_options(certificate) | {"server_hostname": None}
    with pytest.raises(ConfigError, match="server_hostname"):
        Watched("unix:/tmp/x", **options)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_timer_that_is_due_at_once_can_be_left_as_it_is(loop: str) -> None:
    class Timing(Timed):
        def __init__(self) -> None:
            self._service: Any = SimpleNamespace(loop=asyncio.get_running_loop())
            self._request = Request()
            self._limit_at = self._timer = self._seconds = None
            self.is_expired = False

        def _expire(self) -> None:
            self.is_expired = True

    async def play() -> None:
        timing = Timing()
        now = asyncio.get_running_loop().time()
        timing._limit(now)
        first = timing._timer
        timing._limit(now + 3600.0)
        assert timing._timer is first  # It looks again when it comes, and finds that it is early.
        await until(lambda: timing._timer is not first)
        assert not timing.is_expired
        timing._limit(now)
        await until(lambda: timing.is_expired)

    run_on(loop, play())


def test_a_loop_that_another_thread_goes_on_to_run_reads_into_the_buffer_of_that_one() -> None:
    loop = asyncio.new_event_loop()
    first, second = Connection(loop), Connection(loop)
    here = first.get_buffer(-1)
    with ThreadPoolExecutor(1) as threads:
        there = threads.submit(first.get_buffer, -1).result()

    assert there is not here
    assert second.get_buffer(-1) is here
    loop.close()


async def test_tls_for_nobody_in_particular_is_refused(certificate: Path) -> None:
    options = client_options(certificate) | {"server_hostname": ""}
    with pytest.raises(ConfigError, match="server_hostname"):
        Watched("127.0.0.1:1", **options)
