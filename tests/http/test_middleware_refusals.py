from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.overload.retry import AttemptHistogramConfig
from evenly.core.request import Outcome, Reason
from evenly.errors import Overloaded
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig
from evenly.wire.load_header import parse_load
from tests.http.asgi_backend import (
    OURS,
    TASK,
    Answer,
    backend,
    echo,
    hello,
    respond,
    until,
)

SHEDDABLE = ("evenly-criticality", "SHEDDABLE")
PLUS = ("evenly-criticality", "CRITICAL_PLUS")
BELOW = Overloaded("the database is overloaded", retryable=True)


async def never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


def is_well_formed(answer: Answer, error: str) -> bool:
    said = answer.json()
    assert answer.get("content-type") == "application/json"
    assert answer.get("cache-control") == "no-store"
    assert parse_load(answer.get("evenly-load")) is not None
    assert set(said) == {"error", "detail", "retryable", "criticality"}
    assert said["detail"].startswith("evenly: ")
    return bool(said["error"] == error)


async def test_an_overloaded_backend_refuses_what_it_must_and_may_be_retried_elsewhere() -> None:
    async with backend(hello) as made:
        await made.press(2.0)
        refused = await made.get(headers=[SHEDDABLE])
        served = await made.get(headers=[PLUS])

        assert (refused.status, served.status) == (503, 200)
        assert is_well_formed(refused, "overloaded")
        assert refused.json()["retryable"] is True
        assert refused.json()["criticality"] == "SHEDDABLE"
        assert refused.get("evenly-reject") == "overloaded"
        assert refused.get("x-envoy-ratelimited") is None
        assert refused.get("endpoint-load-metrics") is not None
        assert made.ledger.rejected == [Reason.OVERLOADED]
        assert await made.outcome() is Outcome.OK


async def test_a_refusal_to_a_client_of_ours_has_no_orca() -> None:
    async with backend(hello) as made:
        await made.press(2.0)
        refused = await made.get(headers=[SHEDDABLE, *OURS])

        assert refused.get("evenly-load") is not None
        assert refused.get("endpoint-load-metrics") is None


async def test_where_retries_are_widespread_it_says_not_to_retry() -> None:
    task = BackendTaskConfig(
        utilization=TASK.utilization,
        attempts=AttemptHistogramConfig(min_arrivals=1),
        limits_queue=False,
    )
    async with backend(hello, config=BackendConfig(task=task)) as made:
        await made.press(5.0)
        client = await made.connect()
        retry = ("x-envoy-attempt-count", "2")
        answers = [await client.get(headers=[retry]) for _ in range(3)]

        assert answers[-1].status == 503
        assert is_well_formed(answers[-1], "dont-retry")
        assert answers[-1].json()["retryable"] is False
        assert answers[-1].get("evenly-reject") == "dont-retry"
        assert answers[-1].get("x-envoy-ratelimited") == "true"


async def test_a_customer_out_of_quota_is_told_when_to_come_again() -> None:
    quota = QuotaConfig(limits={"indexer": 0.01}, default_limit=1.0)
    task = BackendTaskConfig(quota=quota, limits_queue=False)

    async def work(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        await hello(scope, receive, send)

    async with backend(work, config=BackendConfig(task=task)) as made:
        client = await made.connect()
        headers = [("evenly-customer", "indexer")]
        answers = [await client.get(headers=headers) for _ in range(20)]
        refused = answers[-1]

        assert refused.status == 429
        assert is_well_formed(refused, "quota")
        assert "'indexer'" in refused.json()["detail"]
        assert refused.get("evenly-reject") == "quota"
        assert refused.get("x-envoy-ratelimited") == "true"
        assert int(refused.get("retry-after") or "") >= 1
        # Another customer's request is served.
        assert (await client.get()).status == 200


async def test_a_request_whose_deadline_has_passed_is_not_run() -> None:
    async with backend(never) as made:
        refused = await made.get(headers=[("evenly-deadline-ms", "0")])

        assert refused.status == 504
        assert is_well_formed(refused, "expired")
        assert refused.get("evenly-reject") is None
        assert made.ledger.rejected == [Reason.EXPIRED]


async def test_a_refused_head_request_gets_no_body() -> None:
    async with backend(never) as made:
        client = await made.connect()
        await client.send("HEAD", "/", [("evenly-deadline-ms", "0")])
        assert (await client.answer()).status == 504
        await client.send("HEAD", "/", [("evenly-deadline-ms", "0")])
        assert (await client.answer()).status == 504


# Its body.


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_after_a_small_body_that_nobody_reads_the_connection_goes_on(http: str) -> None:
    async with backend(echo, options={"http": http}) as made:
        client = await made.connect()
        await made.press(10.0)
        answers = [await client.post(b"x" * 1000) for _ in range(3)]
        await made.press(0.0)

        assert [answer.status for answer in answers] == [503] * 3
        assert answers[0].get("connection") is None
        assert (await client.post(b"y" * 1000)).body == b"y" * 1000


@pytest.mark.parametrize("header", [("content-length", "65537"), ("transfer-encoding", "chunked")])
async def test_a_large_body_is_not_waited_for_and_the_connection_is_closed(
    header: tuple[str, str],
) -> None:
    async with backend(echo) as made:
        client = await made.connect()
        await made.press(10.0)
        await client.send("POST", "/", [header])
        answer = await client.answer()

        assert (answer.status, answer.get("connection")) == (503, "close")
        assert answer.json()["error"] == "overloaded"
        assert await client.is_closed()


async def test_whoever_waits_to_be_told_to_go_on_is_refused_instead() -> None:
    async with backend(echo) as made:
        client = await made.connect()
        await made.press(10.0)
        await client.send("POST", "/", [("expect", "100-continue"), ("content-length", "100000")])

        assert (await client.answer()).status == 503


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("is_first", [False, True])
async def test_the_next_request_of_whoever_waited_in_vain_is_not_taken_for_its_body(
    http: str, is_first: bool
) -> None:
    async with backend(echo, options={"http": http}) as made:
        client = await made.connect()
        await made.press(10.0)
        headers = [("content-length", "60")]
        headers.insert(0 if is_first else 1, ("expect", "100-continue"))
        await client.send("POST", "/", headers)
        answer = await client.answer()

        assert (answer.status, answer.get("connection")) == (503, "close")
        assert await client.is_closed()


# The gate.


async def test_a_request_whose_deadline_passes_while_it_waits_is_not_run() -> None:
    ran: list[str] = []

    async def work(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        ran.append(scope["path"])
        end = time.thread_time() + 0.05  # What the gate goes by.
        while time.thread_time() < end:
            pass
        await hello(scope, receive, send)

    async with backend(work) as made:
        await made.get("/first")  # It teaches the gate what a request takes.
        clients = [await made.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            headers = [("evenly-deadline-ms", "60")] if number == 3 else []
            await client.send("GET", f"/{number}", headers)
        answers = [await client.answer() for client in clients]

        assert [answer.status for answer in answers] == [200, 200, 200, 504]
        assert is_well_formed(answers[3], "expired")
        assert "/3" not in ran
        outcomes = await made.ended(5)
        assert sorted(outcome.name for outcome in outcomes) == ["OK"] * 4 + ["TIMEOUT"]


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [([], Outcome.CANCELLED), ([(b"evenly-deadline-ms", b"1")], Outcome.TIMEOUT)],
)
async def test_whoever_is_cancelled_while_it_waits_has_ended(
    headers: list[tuple[bytes, bytes]], outcome: Outcome
) -> None:
    async with backend(hello) as made:
        gate = made.runtime.gate
        gate._begin_slice(gate._clock())  # However long the start took.
        gate.left(10.0)  # A long one has ended: those that follow wait.
        assert not gate.try_enter()

        async def send(*_: Any) -> Any:
            raise AssertionError

        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        waiting = asyncio.ensure_future(made.app(scope, send, send))
        await asyncio.sleep(0)
        assert made.runtime.active == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await made.outcome() is outcome


# From below.


async def let_out(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    raise BELOW


async def let_out_of_a_group(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"

    async def fail() -> None:
        raise BELOW

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def endpoint(request: Any) -> Any:
    raise BELOW


def fastapi() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def index() -> None:
        raise BELOW

    return app


@pytest.mark.parametrize(
    "app",
    [
        let_out,
        let_out_of_a_group,
        Starlette(routes=[Route("/", endpoint)]),
        Starlette(routes=[Route("/", endpoint)], debug=True),
        fastapi(),
    ],
    ids=["plain", "group", "starlette", "debug", "fastapi"],
)
async def test_a_rejection_that_is_let_out_leaves_as_dont_retry(app: Any) -> None:
    async with backend(app) as made:
        client = await made.connect()
        for _ in range(2):
            answer = await client.get()
            assert answer.status == 503
            assert is_well_formed(answer, "dont-retry")
            assert answer.get("evenly-reject") == "dont-retry"
            assert answer.json()["retryable"] is False
            assert "from below: " in answer.json()["detail"]
        assert await made.ended(2) == [Outcome.DONT_RETRY] * 2
        assert made.ledger.rejected == [Reason.DONT_RETRY] * 2


async def test_inside_starlette_it_does_the_same() -> None:
    app = Starlette(routes=[Route("/", endpoint)])
    app.add_middleware(Middleware)
    async with backend(app) as made:
        answer = await made.get()
        assert (answer.status, answer.get("evenly-reject")) == (503, "dont-retry")


async def test_an_application_that_answers_a_rejection_with_500_itself_is_let() -> None:
    async def answer_it(request: Any, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("mine", status_code=500)

    app = Starlette(routes=[Route("/", endpoint)], exception_handlers={Overloaded: answer_it})
    async with backend(app) as made:
        answer = await made.get()

        assert (answer.status, answer.body) == (500, b"mine")
        assert answer.get("evenly-load") is not None
        assert await made.outcome() is Outcome.ERROR


async def test_a_500_that_is_held_goes_out_where_something_else_is_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        try:
            raise BELOW
        except Overloaded:
            await respond(send, b"mine", status=500)
            raise ValueError from None

    async with backend(app) as made:
        answer = await made.get()

        assert (answer.status, answer.body) == (500, b"mine")
        assert await made.outcome() is Outcome.ERROR


async def test_a_rejection_after_the_response_has_begun_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise BELOW

    async with backend(app) as made:
        client = await made.connect()
        await client.send("GET")
        assert (await client.head()).status == 200
        assert await client.chunk() == b"half"
        assert await client.is_closed()
        assert await made.outcome() is Outcome.ERROR


async def test_a_mixed_group_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raise ExceptionGroup("both", [BELOW, ValueError()])

    async with backend(app) as made:
        answer = await made.get()

        assert answer.status == 500
        assert await made.outcome() is Outcome.ERROR


# Many at once.


async def test_refusals_are_answered_while_handlers_hold_the_loop() -> None:
    # The defaults: nothing is pressed here.  40 requests of 20 ms arrive at once at one core.
    async def work(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        await hello(scope, receive, send)

    async with backend(work, config=BackendConfig()) as made:
        await made.get()
        clients = [await made.connect() for _ in range(40)]
        for client in clients:
            await client.send("GET", "/", [SHEDDABLE])
        statuses = [(await client.answer()).status for client in clients]

        assert set(statuses) == {200, 503}
        assert statuses.count(200) == len(made.ledger.outcomes) - 1
        await until(lambda: made.runtime.active == 0)
        assert made.runtime.snapshot().waiting == 0
