from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from evenly.demo.targets import Targets
from evenly.errors import ConfigError

TARGETS = [{"targets": ["127.0.0.1:9101"], "labels": {"role": "backend", "name": "b1"}}]


@pytest.fixture
async def targets() -> AsyncIterator[Targets]:
    served = Targets(lambda: TARGETS, lambda: {"load": 0.7, "capacity": 200, "odd": 1.0})
    await served.start()
    yield served
    await served.close()


async def ask(targets: Targets, request: str) -> tuple[int, dict[str, str], str]:
    host, _, port = targets.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.format(host=targets.address, port=port).encode("latin-1"))
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    return int(status.split(" ")[1]), headers, body


async def test_targets_are_what_prometheus_wants(targets: Targets) -> None:
    status, headers, body = await ask(targets, "GET /targets HTTP/1.1\r\nHost: {host}\r\n\r\n")

    assert status == 200
    # "must be application/json" -- Prometheus, HTTP SD
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert json.loads(body) == TARGETS


async def test_gauges(targets: Targets) -> None:
    status, headers, body = await ask(targets, "GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")

    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE evenly_demo_load gauge\nevenly_demo_load 0.7\n" in body
    assert "\nevenly_demo_capacity 200.0\n" in body
    assert "odd" not in body
    assert "wasted" not in body


async def test_prometheus_reads_the_gauges(targets: Targets) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    _, _, body = await ask(targets, "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")

    families = {family.name: family for family in parser.text_string_to_metric_families(body)}

    assert families["evenly_demo_load"].samples[0].value == 0.7


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        pytest.param(
            "GET /targets HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n", 403, id="rebound"
        ),
        pytest.param("GET /targets HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", 403, id="other port"),
        pytest.param("GET /targets HTTP/1.1\r\n\r\n", 403, id="no host"),
        pytest.param(
            "GET /targets HTTP/1.1\r\nHost: {host}\r\nhost: evil.example\r\n\r\n",
            403,
            id="two hosts",
        ),
        pytest.param("POST /targets HTTP/1.1\r\nHost: {host}\r\n\r\n", 405, id="post"),
        pytest.param("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n", 404, id="anything else"),
        pytest.param("hello\r\nHost: {host}\r\n\r\n", 400, id="no request"),
    ],
)
async def test_nothing_else_is_answered(targets: Targets, request_text: str, expected: int) -> None:
    status, _, body = await ask(targets, request_text)

    assert status == expected
    assert "b1" not in body


async def test_too_long_a_request_is_not_answered(targets: Targets) -> None:
    host, _, port = targets.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /targets HTTP/1.1\r\n" + b"X: " + b"x" * 20_000)

    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    assert answer == b""
    writer.close()


async def test_close_ends_who_asks_for_nothing(targets: Targets) -> None:
    host, _, port = targets.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /tar")
    await writer.drain()

    await targets.close()

    with pytest.raises(OSError, match="onnect"):
        await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_a_port_that_is_taken(targets: Targets) -> None:
    port = int(targets.address.rpartition(":")[2])
    second = Targets(lambda: TARGETS, dict, port=port)

    with pytest.raises(ConfigError, match=rf"metrics_port must be free, not {port}: Address"):
        await second.start()
    await second.close()
