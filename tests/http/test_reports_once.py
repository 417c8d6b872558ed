"""A report is told once per connection, and what is left out is repeated by the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evenly.http.client.session import Session
from evenly.http.server.middleware import Middleware
from tests.http.asgi_backend import serving

OURS = [(b"user-agent", b"evenly/1")]


async def app(scope: Any, receive: Any, send: Any) -> None:
    status = 500 if scope["path"] == "/broken" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def has_report(
    guard: Middleware,
    *,
    port: int,
    path: str = "/",
    headers: list[tuple[bytes, bytes]] = OURS,
) -> bool:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "GET",
        "path": path,
        "headers": list(headers),
        "client": ("127.0.0.1", port),
    }
    await guard(scope, receive, send)
    return b"evenly-load" in dict(sent[0]["headers"])


def guarded(*, fresh_seconds: float = 60.0) -> Middleware:
    guard = Middleware(app)
    # Longer than this test takes.
    guard._answers.loads._fresh_seconds = fresh_seconds
    return guard


async def test_a_client_of_ours_is_told_each_report_once_per_connection() -> None:
    guard = guarded()
    told = [await has_report(guard, port=port) for port in (1, 1, 2, 2, 1)]

    assert told == [True, False, True, False, False]
    guard.stop()


async def test_everyone_else_is_told_always() -> None:
    guard = guarded()
    foreign = [await has_report(guard, port=1, headers=[]) for _ in range(3)]
    # A port of 0 is what a proxy says, of whomever.
    behind_a_proxy = [await has_report(guard, port=0) for _ in range(3)]

    assert foreign + behind_a_proxy == [True] * 6
    guard.stop()


async def test_an_error_always_carries_a_report_and_news_are_told_at_once() -> None:
    guard = guarded()
    assert [await has_report(guard, port=1) for _ in range(2)] == [True, False]
    assert await has_report(guard, port=1, path="/broken")
    guard.runtime.enter_lame_duck()

    assert [await has_report(guard, port=1) for _ in range(2)] == [True, False]
    guard.stop()


async def test_a_session_takes_silence_for_what_was_said_a_moment_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than this test takes, here too.
    monkeypatch.setattr("evenly.core.client_task._REPEAT_SECONDS", 60.0)
    guard = guarded()
    async with serving(guard) as port, Session(f"static:127.0.0.1:{port}") as session:
        await session.get("/")
        (view,) = session.service.runtime.task._membership.views
        told_at, report = view.told_at, view.report
        assert report is not None
        await asyncio.sleep(0.002)
        response = await session.get("/")

        assert "evenly-load" not in response.headers
        assert (view.told_at, view.report) == (told_at, report)
        assert view.reported_at > told_at
