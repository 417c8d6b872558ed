from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from evenly.errors import ConfigError
from evenly.lab.dashboard.server import Dashboard
from tests.lab.dashboard.fakes import SOON, FakeSource, client_of, port_of, token_of, until


async def test_the_link_is_loopback_with_the_token_in_the_fragment() -> None:
    async with Dashboard(FakeSource()) as dashboard:
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/#token=[\w-]{32}", dashboard.url)


async def test_a_given_port_is_used() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with Dashboard(FakeSource(), port=port) as dashboard:
        assert port_of(dashboard) == port
    # And free again at once.
    async with Dashboard(FakeSource(), port=port) as dashboard:
        assert port_of(dashboard) == port


async def test_a_taken_port_is_named() -> None:
    async with Dashboard(FakeSource()) as first:
        port = port_of(first)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; cho"):
            async with Dashboard(FakeSource(), port=port):
                raise AssertionError


async def test_a_host_that_is_not_here_is_named() -> None:
    # 192.0.2.0/24 is nobody's (RFC 5737).
    with pytest.raises(ConfigError, match=r"the dashboard cannot listen on 192\.0\.2\.1:0: "):
        async with Dashboard(FakeSource(), host="192.0.2.1"):
            raise AssertionError


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("", 0, "host must be a name or an address, not ''"),
        ("127.0.0.1", -1, "port must be a whole number in [0, 65535], not -1"),
        ("127.0.0.1", 65_536, "port must be a whole number in [0, 65535], not 65536"),
    ],
)
def test_a_wrong_address_is_refused(host: str, port: int, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        Dashboard(FakeSource(), host=host, port=port)


async def test_six(source: FakeSource) -> None:
    try:
        async with Dashboard(source, host="::1") as dashboard:
            assert dashboard.url.startswith("http://[::1]:")
            async with client_of(dashboard) as client:
                assert (await client.get("/api/describe")).status_code == 200
                refused = {"host": f"evil.example:{port_of(dashboard)}"}
                assert (await client.get("/", headers=refused)).status_code == 403
    except ConfigError as error:
        pytest.skip(str(error))


async def test_all_addresses_take_addresses_and_no_names(source: FakeSource) -> None:
    async with Dashboard(source, host="0.0.0.0") as dashboard:  # noqa: S104 -- for a moment
        port, token = port_of(dashboard), token_of(dashboard)
        assert dashboard.url == f"http://localhost:{port}/#token={token}"
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False
        ) as client:
            for host, status in (("192.0.2.9", 200), ("localhost", 200), ("evil.example", 403)):
                answer = await client.get("/", headers={"host": f"{host}:{port}"})
                assert answer.status_code == status, host


async def test_it_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with Dashboard(FakeSource()):
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


async def test_the_end_closes_the_listener_and_idle_connections(source: FakeSource) -> None:
    async with asyncio.timeout(SOON):
        async with Dashboard(source) as dashboard:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(dashboard))
            half, half_writer = await asyncio.open_connection("127.0.0.1", port_of(dashboard))
            half_writer.write(b"GET / HT")
            async with client_of(dashboard) as client:
                await client.get("/")
        assert await reader.read() == b""
        assert await half.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(dashboard))
        for opened in (writer, half_writer):
            opened.close()
            await opened.wait_closed()


async def test_the_end_does_not_wait_for_a_control_that_hangs(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(SOON):
        async with Dashboard(source) as dashboard:
            client = client_of(dashboard)
            asking = asyncio.ensure_future(client.post("/api/control", json={"do": "hang"}))
            await until(lambda: bool(source.asked))
        with pytest.raises(httpx.HTTPError):
            await asking
        await client.aclose()
        await until(lambda: source.was_cancelled)

    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_inside_comes_out_and_everything_is_closed(source: FakeSource) -> None:
    dashboard = Dashboard(source)

    async def fail() -> None:
        async with dashboard:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await fail()

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port_of(dashboard))


async def test_nothing_is_left_running(source: FakeSource) -> None:
    async with (
        asyncio.timeout(SOON),
        Dashboard(source) as dashboard,
        client_of(dashboard) as client,
    ):
        await client.get("/api/describe")
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_whoever_serves_closes_everything(source: FakeSource) -> None:
    ports: list[int] = []

    async def serve() -> None:
        async with Dashboard(source) as dashboard:
            ports.append(port_of(dashboard))
            await asyncio.Event().wait()

    serving = asyncio.ensure_future(serve())
    await until(lambda: bool(ports))
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", ports[0])


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_the_error_names_it(package: str) -> None:
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "import evenly.lab.dashboard.source\n"
        "try: import evenly.lab.dashboard.server\n"
        "except ImportError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (
        found.stdout == f'evenly.lab.dashboard needs {package}: pip install "evenly[dashboard]"\n'
    )
