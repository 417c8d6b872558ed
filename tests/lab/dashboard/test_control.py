from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from evenly.lab.dashboard import app
from evenly.lab.dashboard.app import BODY_MAX_BYTES
from evenly.lab.dashboard.server import Dashboard
from tests.lab.dashboard.fakes import FakeSource, authority, exchange, port_of, token_of

JSON = {"content-type": "application/json"}


async def post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.post("/api/control", content=body, headers=JSON)


async def test_a_control_gets_its_name_and_arguments(
    client: httpx.AsyncClient, source: FakeSource
) -> None:
    answer = await client.post("/api/control", json={"do": "slow", "backend": "b1", "is_on": True})

    assert (answer.status_code, answer.json()) == (200, {})
    assert source.asked == [("slow", {"backend": "b1", "is_on": True})]


async def test_a_charset_may_follow_the_type(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = await client.post("/api/control", content=b'{"do": "reset"}', headers=headers)

    assert answer.status_code == 200


async def test_what_the_source_refuses_is_told_in_its_words(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/control", json={"do": "load", "load": 99})

    assert answer.status_code == 422
    assert answer.json() == {"error": "load must be in [0.1, 10], not 99"}


async def test_half_a_surrogate_pair_comes_back(client: httpx.AsyncClient) -> None:
    answer = await post(client, rb'{"do": "load", "load": "\ud800"}')

    assert answer.status_code == 422
    assert answer.json() == {"error": r"load must be in [0.1, 10], not '\ud800'"}


async def test_a_bug_is_logged_and_not_shown(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.post("/api/control", json={"do": "break"})

    assert answer.status_code == 500
    assert answer.json() == {"error": "the control failed: see the log"}
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "control 'break' failed"
    assert record.exc_info is not None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half"),
        pytest.param(b'{"do": "reset"} {}', id="two"),
        pytest.param(b"do=reset", id="a form"),
        pytest.param(b'"reset"', id="a string"),
        pytest.param(b'["reset"]', id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="no name"),
        pytest.param(b'{"do": null}', id="a name that is null"),
        pytest.param(b'{"do": 1}', id="a name that is a number"),
        pytest.param(b'{"do": ["reset"]}', id="a name that is a list"),
        pytest.param(b'{"do": "load", "load": NaN}', id="NaN"),
        pytest.param(b'{"do": "load", "load": -Infinity}', id="infinity"),
        pytest.param(b'{"do": "\xff"}', id="not UTF-8"),
        pytest.param(b"[" * BODY_MAX_BYTES, id="nested deeply"),
    ],
)
async def test_what_is_no_order_is_refused(
    client: httpx.AsyncClient, source: FakeSource, body: bytes
) -> None:
    answer = await post(client, body)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the body ")
    assert source.asked == []


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "application/jsonp",
    ],
)
async def test_what_a_form_can_send_is_refused(
    client: httpx.AsyncClient, source: FakeSource, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = await client.post("/api/control", content=b'{"do": "reset"}', headers=headers)

    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]
    assert source.asked == []


async def test_a_body_of_the_most_bytes_is_read(
    client: httpx.AsyncClient, source: FakeSource
) -> None:
    empty = json.dumps({"do": "x", "fill": ""}).encode()
    fill = b"f" * (BODY_MAX_BYTES - len(empty))
    body = empty[:-2] + fill + empty[-2:]
    assert len(body) == 4096

    assert (await post(client, body)).status_code == 200
    answer = await post(client, body + b" ")

    assert answer.status_code == 413
    assert answer.json() == {"error": "the body must be at most 4096 bytes"}
    assert source.asked == [("x", {"fill": fill.decode()})]


async def test_a_huge_body_in_chunks_is_refused(
    client: httpx.AsyncClient, source: FakeSource
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 1024

    answer = await client.post("/api/control", content=chunks(), headers=JSON)

    assert answer.status_code == 413
    assert source.asked == []


async def test_a_body_that_ends_early_does_nothing(
    dashboard: Dashboard, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    def order(length: int) -> bytes:
        head = (
            f"POST /api/control HTTP/1.1\r\nHost: {authority(dashboard)}\r\n"
            f"evenly-token: {token_of(dashboard)}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + b'{"do": "reset"}'

    await send_and_leave(dashboard, order(16))
    # A whole one after it, so that the server has seen that one's end.
    assert (await exchange(dashboard, order(15))).startswith(b"HTTP/1.1 200 ")

    assert source.asked == [("reset", {})]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_body_that_does_not_come_is_not_waited_for(
    dashboard: Dashboard, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)
    head = (
        f"POST /api/control HTTP/1.1\r\nHost: {authority(dashboard)}\r\n"
        f"evenly-token: {token_of(dashboard)}\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n{"
    )

    answer = await exchange(dashboard, head.encode())  # It returns when the server closes.

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.endswith(b'{"error":"the body must come within 0.05 s"}')
    assert source.asked == []


async def test_the_description_is_the_source_s(
    client: httpx.AsyncClient, source: FakeSource
) -> None:
    answer = await client.get("/api/describe")

    assert answer.json() == source.description
    assert answer.headers["content-type"] == "application/json"


async def test_a_description_that_is_no_json_is_a_bug(
    client: httpx.AsyncClient, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    source.description = {"capacity": float("nan")}
    answer = await client.get("/api/describe")

    assert answer.status_code == 500
    assert answer.json() == {"error": "the fleet could not be described: see the log"}
    assert "the fleet could not be described" in caplog.messages


async def send_and_leave(dashboard: Dashboard, request: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(dashboard))
    writer.write(request)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
