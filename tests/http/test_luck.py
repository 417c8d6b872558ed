"""A request's luck and its client's line, over two hops of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import evenly
import evenly.http
from evenly.core.request import Request
from evenly.http.client.session import Session
from evenly.runtime.backend_config import BackendConfig
from tests.http.asgi_backend import OURS, TASK, Backend, backend, respond, until
from tests.http.raw_backend import UNTHROTTLED, quick

STERN = BackendConfig(task=TASK, trust_near=False)


class Leaf:
    """A backend that notes with which luck it was called."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.seen.append(evenly.current_request().luck)
        await respond(send, b"leaf")


@asynccontextmanager
async def stack(config: BackendConfig) -> AsyncIterator[tuple[Backend, Leaf]]:
    """Serve a backend that calls another one three times for each request."""
    leaf = Leaf()
    async with (
        backend(leaf) as below,
        Session(f"static:127.0.0.1:{below.port}", config=quick(task=UNTHROTTLED)) as session,
    ):

        async def narrower() -> None:
            with evenly.request_context(deadline_seconds=10.0):
                await session.get("/")

        async def top(scope: Any, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"
            await asyncio.gather(session.get("/"), narrower())
            await session.get("/")
            await respond(send, b"top")

        async with backend(top, config=config) as made:
            yield made, leaf


async def test_all_calls_below_have_the_luck_that_the_request_came_with() -> None:
    async with stack(BackendConfig(task=TASK)) as (made, leaf):
        await made.get(headers=[("evenly-level", "u=37"), *OURS])

    assert leaf.seen == [37 / 64] * 3


async def test_luck_in_baggage_is_carried_on_too() -> None:
    async with stack(BackendConfig(task=TASK)) as (made, leaf):
        await made.get(headers=[("baggage", "a=b,evenly-luck=5")])

    assert leaf.seen == [5 / 64] * 3


@pytest.mark.parametrize(
    "headers", [[], [("evenly-level", "u=63")], [("baggage", "evenly-luck=63")]]
)
async def test_who_has_no_luck_or_is_a_stranger_gets_one_for_all_calls_below(
    headers: list[tuple[str, str]],
) -> None:
    shared = []
    async with stack(STERN) as (made, leaf):
        for _ in range(20):
            await made.get(headers=headers)
            assert len(leaf.seen) == 3
            shared += [*set(leaf.seen)]
            leaf.seen.clear()

    assert len(shared) == 20  # One for each.
    assert None not in shared
    assert len(set(shared)) > 1  # A stranger's would always be the same.


def admissions(made: Backend) -> list[tuple[float | None, float]]:
    """Note what is passed to `admit`."""
    told: list[tuple[float | None, float]] = []
    task = made.runtime.task
    admit: Any = task.admit

    def noting(request: Request, *rest: Any, **said: Any) -> Any:
        told.append((said["luck"], said["line"]))
        return admit(request, *rest, **said)

    task.admit = noting  # type: ignore[method-assign]
    return told


async def test_the_line_arrives_where_it_is_decided() -> None:
    async def hello(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await respond(send, b"hello")

    async with backend(hello) as made:
        made.runtime.combine = partial(replace, cut=1.5)  # It says that it cuts there.
        told = admissions(made)
        async with Session(
            f"static:127.0.0.1:{made.port}", config=quick(is_probing=False)
        ) as session:
            await session.get("/")
            assert told[-1] == (None, 0.0)

            with evenly.request_context(criticality=evenly.Criticality.CRITICAL_PLUS, user="ann"):
                await session.get("/")
                luck = evenly.current_request().luck

        # The line is 0.03 below what is reported: 1.47 · 64 = 94.08, rounded down.
        assert told[-1] == (luck, 94 / 64)
        await until(lambda: made.runtime.active == 0)
