from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import evenly
from evenly.context import current_serving, mark_degraded
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome
from evenly.errors import ConfigError, UsageError
from evenly.http.server.middleware import Middleware, backend_runtime
from evenly.runtime.backend_config import BackendConfig
from evenly.testing import ManualClock
from evenly.wire.load_header import parse_load
from tests.http.asgi_backend import (
    OURS,
    TASK,
    Ledger,
    backend,
    echo,
    hello,
    respond,
)

ORCA = "endpoint-load-metrics"


async def test_a_request_is_served_admitted_finished_and_reported() -> None:
    async with backend(hello) as made:
        answer = await made.get()

        assert (answer.status, answer.body) == (200, b"hello")
        report = parse_load(answer.get("evenly-load"))
        assert report is not None
        assert not report.lame_duck
        assert await made.outcome() is Outcome.OK
        assert made.ledger.costs[0] > 0.0


@pytest.mark.parametrize(
    ("orca", "headers", "is_there"),
    [
        ("foreign", (), True),
        ("foreign", OURS, False),
        ("always", OURS, True),
        ("never", (), False),
    ],
)
async def test_orca_is_for_clients_that_are_not_ours(
    orca: Any, headers: Any, is_there: bool
) -> None:
    async with backend(hello, config=BackendConfig(task=TASK, orca=orca)) as made:
        answer = await made.get(headers=headers)

        assert answer.get("evenly-load") is not None
        text = answer.get(ORCA)
        assert (text is not None) is is_there
        assert text is None or text.startswith("TEXT cpu_utilization=")


async def test_what_the_client_claims_is_what_the_application_sees() -> None:
    seen: list[Any] = []

    async def see(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        seen.append(evenly.current_request())
        await asyncio.sleep(0)
        assert evenly.current_request() is seen[-1]
        await hello(scope, receive, send)

    headers = (
        ("evenly-criticality", "SHEDDABLE"),
        ("evenly-customer", "indexer"),
        ("evenly-deadline-ms", "60000"),
    )
    async with backend(see) as made:
        client = await made.connect()
        before = time.monotonic()
        await client.get(headers=headers)
        after = time.monotonic()
        await client.get()

    assert (seen[0].criticality, seen[0].customer) == (Criticality.SHEDDABLE, "indexer")
    assert before + 60.0 <= seen[0].deadline_at <= after + 60.0
    assert (seen[1].criticality, seen[1].customer) == (Criticality.CRITICAL, "")
    assert seen[1].deadline_at is None


async def test_the_context_ends_with_the_request_also_in_the_callers_own_task() -> None:
    # Test clients call an application in their own task.
    guard = Middleware(hello)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        assert current_serving() is not None
        sent.append(message)

    await guard(http_scope(), receive_nothing, send)

    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert current_serving() is None
    guard.stop()


async def test_the_applications_own_headers_and_messages_stay_as_they_are() -> None:
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": 200,
        "headers": ((b"content-length", b"2"), (b"evenly-load", b"mine"), (b"x-mine", b"1")),
    }

    async def constant(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": b"ok"})

    async with backend(constant) as made:
        client = await made.connect()
        for _ in range(2):
            answer = await client.get()
            assert [value for name, value in answer.headers if name == "x-mine"] == ["1"]
            loads = [value for name, value in answer.headers if name == "evenly-load"]
            assert len(loads) == 2
            assert loads[0] == "mine"
    assert len(start["headers"]) == 3


async def test_a_degraded_answer_says_so() -> None:
    async def cheap(scope: Any, receive: Any, send: Any) -> None:
        mark_degraded()
        await hello(scope, receive, send)

    async with backend(cheap) as made:
        assert (await made.get()).get("evenly-degraded") == "1"
    async with backend(hello) as made:
        assert (await made.get()).get("evenly-degraded") is None


async def test_under_pressure_the_application_is_told_to_degrade() -> None:
    told: list[bool] = []

    async def ask(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        told.append(evenly.should_degrade())
        await hello(scope, receive, send)

    async with backend(ask) as made:
        await made.get()
        await made.press(1.5)
        await made.get()

    assert told == [False, True]


async def test_any_awaitable_will_do_for_an_application() -> None:
    def app(scope: Any, receive: Any, send: Any) -> Any:
        return asyncio.ensure_future(hello(scope, receive, send))

    async with backend(app) as made:
        client = await made.connect()
        for _ in range(3):
            assert (await client.get()).body == b"hello"
        assert await made.ended(3) == [Outcome.OK] * 3


# Health.


async def test_health_is_served_without_admission() -> None:
    async with backend(hello) as made:
        await made.press(10.0)  # Overload is not death.
        client = await made.connect()
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert answer.status == 200
            assert answer.json()["status"] == "healthy"
            assert parse_load(answer.get("evenly-load")) is not None
        assert made.ledger.admitted == []
        assert made.ledger.rejected == []


async def test_a_lame_duck_is_alive_and_not_ready() -> None:
    async with backend(hello) as made:
        made.runtime.enter_lame_duck()
        client = await made.connect()
        alive, ready = await client.get("/healthz"), await client.get("/readyz")

        assert (alive.status, alive.json()["status"]) == (200, "lame duck")
        assert (ready.status, ready.json()["status"]) == (503, "lame duck")
        assert ready.get("x-envoy-immediate-health-check-fail") == "true"
        assert alive.get("x-envoy-immediate-health-check-fail") is None


async def test_paths_of_health_can_be_others_or_the_applications() -> None:
    async with backend(hello, health_path=None, ready_path="/up") as made:
        assert (await made.get("/healthz")).body == b"hello"
        assert (await made.get("/readyz")).body == b"hello"
        assert (await made.get("/up")).json()["status"] == "healthy"


async def test_only_get_and_head_ask_for_health() -> None:
    async with backend(echo) as made:
        client = await made.connect()
        assert (await client.post(b"mine", "/healthz")).body == b"mine"
        await client.send("HEAD", "/readyz")
        assert (await client.answer()).status == 200


async def test_health_is_below_the_root_path() -> None:
    async with backend(hello, options={"root_path": "/api"}) as made:
        assert (await made.get("/healthz")).json()["status"] == "healthy"


@pytest.mark.parametrize(
    "paths", [{"health_path": "healthz"}, {"ready_path": ""}, {"health_path": "/readyz"}]
)
def test_paths_that_cannot_be_are_refused(paths: Any) -> None:
    with pytest.raises(ConfigError, match="_path"):
        Middleware(hello, **paths)


# Lame duck.


async def test_a_lame_duck_serves_and_asks_clients_that_are_not_ours_to_leave() -> None:
    async with backend(hello) as made:
        foreign, ours = await made.connect(), await made.connect()
        await foreign.get()
        made.runtime.enter_lame_duck()

        answer = await ours.get(headers=OURS)
        assert answer.get("connection") is None
        report = parse_load(answer.get("evenly-load"))
        assert report is not None
        assert report.lame_duck
        answer = await foreign.get()
        assert (answer.status, answer.get("connection")) == (200, "close")
        assert await foreign.is_closed()
        assert await made.ended(3) == [Outcome.OK] * 3


async def test_what_the_application_says_about_the_connection_stands() -> None:
    async def keep(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"", headers=[(b"Connection", b"keep-alive")])

    async with backend(keep) as made:
        made.runtime.enter_lame_duck()
        assert (await made.get()).get("connection") == "keep-alive"


async def test_http_2_has_no_header_about_the_connection() -> None:
    guard = Middleware(hello)
    starts: list[Any] = []

    async def send(message: Any) -> None:
        starts.append(message)

    guard.starts_as_lame_duck = True
    for version in ("1.1", "2"):
        await guard(http_scope(http_version=version), receive_nothing, send)

    names = [[name for name, _ in start["headers"]] for start in starts[::2]]
    assert b"connection" in names[0]
    assert b"connection" not in names[1]
    guard.stop()


# What is no request.


async def test_a_websocket_passes_through_and_is_not_counted() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], receive, send))

    ledger = Ledger()
    guard = Middleware(app, observer=ledger)
    await guard({"type": "websocket", "path": "/"}, receive_nothing, receive_nothing)

    assert seen == [("websocket", receive_nothing, receive_nothing)]
    assert ledger.admitted == []
    assert guard.runtime.is_started
    assert not guard.runtime.is_lame_duck
    guard.stop()


async def test_one_inside_another_does_nothing() -> None:
    inner_ledger = Ledger()
    inner = Middleware(hello, observer=inner_ledger)
    async with backend(inner) as made:
        answer = await made.get()

        assert len([name for name, _ in answer.headers if name == "evenly-load"]) == 1
        assert await made.outcome() is Outcome.OK
        assert inner_ledger.admitted == []
        assert not inner.runtime.is_started


def http_scope(**other: Any) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "headers": [], **other}


async def receive_nothing(*_: Any) -> Any:
    raise AssertionError


async def test_an_application_that_has_returned_sends_nowhere_and_hears_that_all_is_over() -> None:
    kept: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        kept.extend((receive, send))

    async def receive() -> Any:
        return {"type": "http.request"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = Middleware(app)
    try:
        scope = {"type": "http", "path": "/", "headers": [], "asgi": {"spec_version": "2.3"}}
        await middleware(scope, receive, send)
        count = len(sent)

        assert await kept[0]() == {"type": "http.disconnect"}
        with pytest.raises(UsageError, match=r"'http.response.body' was sent after .* returned"):
            await kept[1]({"type": "http.response.body", "body": b"more"})
        assert len(sent) == count
        assert middleware.runtime.active == 0
    finally:
        middleware.stop()


@pytest.mark.parametrize(("count", "waits"), [(99, False), (101, True)])
async def test_requests_that_fill_no_slice_in_a_turn_begin_at_once(count: int, waits: bool) -> None:
    gate = backend_runtime().gate
    gate._clock = ManualClock()  # A real one would see other processes too.
    for _ in range(100):
        gate.left(0.0001)
    gate._begin_slice(gate._clock())
    entered: list[bool] = []
    for _ in range(20):
        entered += [gate.try_enter() for _ in range(count)]
        await asyncio.sleep(0)

    assert (False in entered) is waits


def test_whoever_takes_it_for_the_application_is_told_what_to_do() -> None:
    app = Middleware(hello)

    with pytest.raises(AttributeError, match=r"the application has: wrap it below them, or use"):
        app.get("/")  # type: ignore[attr-defined]  # the mistake
    assert not hasattr(app, "routes")
