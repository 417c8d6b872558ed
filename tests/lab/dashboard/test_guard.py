from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

import evenly.lab.dashboard
from evenly.lab.dashboard.guard import Guard
from evenly.lab.dashboard.hosts import hosts_of
from evenly.lab.dashboard.server import Dashboard
from tests.lab.dashboard.fakes import FakeSource, authority, exchange, port_of, token_of

API = ("/api/describe", "/api/frames")
PAGES = ("/", "/static/favicon.svg")
FILES = Path(evenly.lab.dashboard.__file__).parent / "static"


@pytest.mark.parametrize("path", PAGES)
async def test_the_page_and_its_files_need_no_token(stranger: httpx.AsyncClient, path: str) -> None:
    answer = await stranger.get(path)

    assert answer.status_code == 200
    assert answer.content


async def test_the_metrics_need_no_token_and_the_list_has_the_name_that_was_asked(
    stranger: httpx.AsyncClient, dashboard: Dashboard
) -> None:
    listed, metrics = await stranger.get("/targets"), await stranger.get("/metrics")

    own = authority(dashboard)
    assert listed.json() == [{"targets": ["127.0.0.1:9101", own], "labels": {"role": "backend"}}]
    assert listed.headers["content-type"] == "application/json"  # Prometheus insists on it.
    assert dashboard.targets_url == f"http://{own}/targets"
    assert metrics.text == "evenly_demo_load 0.7\n"
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {one.headers["cache-control"] for one in (listed, metrics)} == {"no-store"}


@pytest.mark.parametrize("path", ["/targets", "/metrics"])
async def test_the_metrics_are_not_for_other_names_nor_to_be_changed(
    stranger: httpx.AsyncClient, path: str
) -> None:
    assert (await stranger.get(path, headers={"host": "evil.example"})).status_code == 403
    assert (await stranger.post(path)).status_code == 405


@pytest.mark.parametrize("path", [*API, "/api", "/api/", "/api/later", "/metrics/", "/docs"])
async def test_all_else_needs_one_even_if_there_is_nothing(
    stranger: httpx.AsyncClient, path: str
) -> None:
    answer = await stranger.get(path)

    assert answer.status_code == 401
    assert "evenly-token" in answer.json()["error"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda token: "", id="empty"),
        pytest.param(lambda token: token[:-1], id="a part"),
        pytest.param(lambda token: token + "A", id="more"),
        pytest.param(lambda token: token.swapcase(), id="other case"),
        pytest.param(lambda token: "\xe4" * len(token), id="not ASCII"),
        pytest.param(lambda token: f"Bearer {token}", id="as a bearer"),
    ],
)
async def test_a_wrong_token_opens_nothing(
    dashboard: Dashboard, stranger: httpx.AsyncClient, source: FakeSource, change: object
) -> None:
    assert callable(change)
    wrong = {"evenly-token": change(token_of(dashboard)).encode("latin-1")}
    for path in API:
        assert (await stranger.get(path, headers=wrong)).status_code == 401
    answer = await stranger.post("/api/control", json={"do": "kill"}, headers=wrong)

    assert answer.status_code == 401
    assert source.asked == []


async def test_a_token_elsewhere_than_in_its_header_opens_nothing(
    dashboard: Dashboard, stranger: httpx.AsyncClient, source: FakeSource
) -> None:
    token = token_of(dashboard)
    for name in ("token", "evenly-token"):
        assert (await stranger.get("/api/describe", params={name: token})).status_code == 401
        cookie = {"cookie": f"{name}={token}"}
        assert (await stranger.get("/api/describe", headers=cookie)).status_code == 401
    bearer = {"authorization": f"Bearer {token}"}
    assert (await stranger.get("/api/describe", headers=bearer)).status_code == 401
    answer = await stranger.post(f"/api/control?token={token}", json={"do": "kill", "token": token})

    assert answer.status_code == 401
    assert source.asked == []


async def test_two_tokens_are_none(dashboard: Dashboard) -> None:
    token = token_of(dashboard)
    request = (
        f"GET /api/describe HTTP/1.1\r\nHost: {authority(dashboard)}\r\nConnection: close\r\n"
        f"evenly-token: {token}\r\nevenly-token: {token}\r\n\r\n"
    )

    assert (await exchange(dashboard, request.encode())).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", [*PAGES, *API, "/nowhere"])
async def test_a_rebound_name_is_refused_everywhere(
    dashboard: Dashboard, client: httpx.AsyncClient, path: str
) -> None:
    for host in (f"evil.example:{port_of(dashboard)}", "127.0.0.1:1", "127.0.0.1", "localhost"):
        answer = await client.get(path, headers={"host": host})

        assert answer.status_code == 403, host
        assert "Host" in answer.json()["error"]


async def test_a_rebound_name_controls_nothing(
    dashboard: Dashboard, client: httpx.AsyncClient, source: FakeSource
) -> None:
    host = f"evil.example:{port_of(dashboard)}"
    headers = {"host": host, "origin": f"http://{host}"}
    answer = await client.post("/api/control", json={"do": "kill"}, headers=headers)

    assert answer.status_code == 403
    assert source.asked == []


async def test_localhost_is_ours_too(dashboard: Dashboard, client: httpx.AsyncClient) -> None:
    host = f"localhost:{port_of(dashboard)}"
    headers = {"host": host, "origin": f"http://{host}"}
    answer = await client.post("/api/control", json={"do": "reset"}, headers=headers)

    assert answer.status_code == 200


@pytest.mark.parametrize("hosts", [(), ("evil.example", "{ours}"), ("{ours}", "evil.example")])
async def test_no_host_and_two_are_refused(dashboard: Dashboard, hosts: tuple[str, ...]) -> None:
    lines = [f"Host: {host.format(ours=authority(dashboard))}" for host in hosts]
    request = "\r\n".join(["GET / HTTP/1.1", *lines, "Connection: close", "", ""])

    # h11 refuses these before the guard does.
    assert (await exchange(dashboard, request.encode())).startswith(
        (b"HTTP/1.1 400 ", b"HTTP/1.1 403 ")
    )


async def test_no_host_of_old_http_is_refused(dashboard: Dashboard) -> None:
    assert (await exchange(dashboard, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 403 ")


async def test_a_whole_address_as_target_opens_nothing(dashboard: Dashboard) -> None:
    for target in ("http://evil.example/api/describe", "http://evil.example/"):
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {authority(dashboard)}\r\nConnection: close\r\n\r\n"
        )

        assert (await exchange(dashboard, request.encode())).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "https://{ours}",
        "http://{ours}/",
        "http://{ours}.evil.example",
        "http://localhost:{port}",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
    ],
)
async def test_a_strange_origin_is_refused(
    dashboard: Dashboard, client: httpx.AsyncClient, source: FakeSource, origin: str
) -> None:
    said = origin.format(ours=authority(dashboard), port=port_of(dashboard))
    for path in (*PAGES, *API):
        answer = await client.get(path, headers={"origin": said})
        assert answer.status_code == 403, path
        assert "Origin" in answer.json()["error"]
    answer = await client.post("/api/control", json={"do": "kill"}, headers={"origin": said})

    assert answer.status_code == 403
    assert source.asked == []


@pytest.mark.parametrize("origin", [True, False])
async def test_our_own_origin_and_none_are_fine(
    dashboard: Dashboard, client: httpx.AsyncClient, source: FakeSource, origin: bool
) -> None:
    headers = {"origin": f"http://{authority(dashboard)}"} if origin else {}
    answer = await client.post("/api/control", json={"do": "reset"}, headers=headers)

    assert answer.status_code == 200
    assert source.asked == [("reset", {})]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_a_control_is_a_post(
    client: httpx.AsyncClient, source: FakeSource, method: str
) -> None:
    answer = await client.request(method, "/api/control?do=kill&backend=b1")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert source.asked == []


@pytest.mark.parametrize("path", [*PAGES, *API])
async def test_all_else_is_no_post(client: httpx.AsyncClient, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer = await client.request(method, path)

        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", [*PAGES, *API])
async def test_head_has_no_body_and_ends(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.head(path)

    assert answer.status_code == 200
    assert answer.content == b""


async def test_head_of_the_stream_follows_nothing(dashboard: Dashboard) -> None:
    request = (
        f"HEAD /api/frames HTTP/1.1\r\nHost: {authority(dashboard)}\r\nConnection: close\r\n"
        f"evenly-token: {token_of(dashboard)}\r\n\r\n"
    )

    # It would not end if it did.
    assert (await exchange(dashboard, request.encode())).startswith(b"HTTP/1.1 200 ")


async def test_no_other_origin_is_told_that_it_may(
    dashboard: Dashboard, client: httpx.AsyncClient
) -> None:
    preflight = {
        "origin": "http://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "evenly-token, content-type",
    }
    answers = [
        await client.options("/api/control", headers=preflight),
        await client.get("/api/describe", headers={"origin": f"http://{authority(dashboard)}"}),
    ]

    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "status", "cache"),
    [
        ("/", 200, "no-cache"),
        ("/static/favicon.svg", 200, "no-cache"),
        ("/static/nothing.js", 404, "no-cache"),
        ("/api/describe", 200, "no-store"),
        ("/api/control", 405, "no-store"),
        ("/api/nothing", 404, "no-store"),
    ],
)
async def test_every_answer_binds_the_browser(
    client: httpx.AsyncClient, path: str, status: int, cache: str
) -> None:
    answer = await client.get(path)

    assert answer.status_code == status
    directives = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'self'" in directives
    assert "frame-ancestors 'none'" in directives
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == cache
    assert "server" not in answer.headers


async def test_a_stranger_who_is_refused_gets_these_headers_too(
    stranger: httpx.AsyncClient,
) -> None:
    for headers in ({}, {"host": "evil.example"}):
        answer = await stranger.get("/api/describe", headers=headers)

        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fpyproject.toml",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\server.py",
        "/static/%00",
        "/static/",
        "/static/vendor",
        "/static/../api/describe",
    ],
)
async def test_static_is_the_files_of_the_page_only(dashboard: Dashboard, path: str) -> None:
    # Over a socket, because a client tidies such paths up.
    request = f"GET {path} HTTP/1.1\r\nHost: {authority(dashboard)}\r\nConnection: close\r\n\r\n"

    assert (await exchange(dashboard, request.encode())).startswith(b"HTTP/1.1 404 ")


async def test_no_answer_and_no_log_line_has_the_token(
    dashboard: Dashboard,
    client: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    token = token_of(dashboard)
    files = [f"/static/{p.relative_to(FILES)}" for p in FILES.rglob("*") if p.is_file()]
    answers = [await client.get(path) for path in ("/", "/api/describe", "/api/x", *files)]
    answers += [
        await client.post("/api/control", json=order)
        for order in ({"do": "reset"}, {"do": "load", "load": 99}, {"do": "break"}, {})
    ]
    answers.append(await client.get("/", headers={"host": "evil.example"}))
    answers.append(await client.head("/api/frames"))

    assert len(token) == 32  # 24 bytes
    for answer in answers:
        assert token not in answer.text
        assert token not in str(answer.headers)
    assert token not in repr(dashboard)
    ours = [
        record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    ]
    assert not [record for record in ours if token in record.getMessage()]


async def test_each_dashboard_has_a_token_of_its_own() -> None:
    async with Dashboard(FakeSource()) as one, Dashboard(FakeSource()) as other:
        assert token_of(one) != token_of(other)


async def test_a_websocket_gets_no_answer(dashboard: Dashboard) -> None:
    request = (
        f"GET /api/frames HTTP/1.1\r\nHost: {authority(dashboard)}\r\n"
        "Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n\r\n"
    )

    answered = await exchange(dashboard, request.encode())
    assert answered.startswith(b"HTTP/1.1 401 ")


async def test_the_guard_speaks_http_only() -> None:
    guard = Guard(None, hosts=hosts_of("::1", "::1", 1), token="x")  # type: ignore[arg-type] # noqa: S106

    with pytest.raises(RuntimeError, match="not 'websocket'"):
        await guard({"type": "websocket"}, asyncio.sleep, asyncio.sleep)  # type: ignore[arg-type]
