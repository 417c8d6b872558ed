"""A transport of one's own carries luck and line, as ours do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import evenly
from evenly.core.request import Request
from evenly.runtime.backend_config import BackendConfig
from examples.lines.backend import Backend, Handler
from examples.lines.client import Client


@asynccontextmanager
async def serving(handler: Handler, config: BackendConfig | None = None) -> AsyncIterator[Backend]:
    backend = Backend(handler, config=config)
    await backend.start()
    backend.announce_healthy()
    try:
        yield backend
    finally:
        await backend.stop(None)
        backend.close()


@asynccontextmanager
async def calling(backend: Backend) -> AsyncIterator[Client]:
    async with Client(f"static:{backend.address}") as client:
        yield client


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_all_calls_below_share_the_luck_and_a_strangers_is_not_believed(
    is_trusted: bool,
) -> None:
    seen: list[float | None] = []

    async def leaf(_: Any) -> object:
        seen.append(evenly.current_request().luck)
        return None

    async with serving(leaf) as below, calling(below) as client:

        async def top(_: Any) -> object:
            await asyncio.gather(client.call(1, wait_for_ready=True), client.call(2))
            return None

        stern = BackendConfig(trust_near=is_trusted)
        async with serving(top, stern) as above, calling(above) as user:
            told: list[float | None] = []
            for number in range(20):
                with evenly.request_context(user="ann", unix_clock=lambda: 0.0):
                    told.append(evenly.current_request().luck)
                    await user.call(number, wait_for_ready=True)

    assert len(seen) == 40
    assert seen[::2] == seen[1::2]
    assert None not in seen
    assert (seen[::2] == told) is is_trusted


async def test_the_line_arrives_where_it_is_decided() -> None:
    async def hello(_: Any) -> object:
        return "hello"

    told: list[tuple[float | None, float]] = []
    async with serving(hello) as backend:
        runtime = backend.runtime
        runtime.combine = partial(replace, cut=1.5)  # It says that it cuts there.
        admit = runtime.admit

        def noting(request: Request, attempt: int = 1, **said: Any) -> Any:
            told.append((request.luck, said["line"]))
            return admit(request, attempt, **said)

        runtime.admit = noting  # type: ignore[method-assign]
        async with calling(backend) as client:
            with evenly.request_context(criticality=evenly.Criticality.CRITICAL_PLUS, user="ann"):
                for _ in range(2):
                    await client.call("hello", wait_for_ready=True)
                luck = evenly.current_request().luck

    # The line is 0.03 below what is reported: 1.47 · 64 = 94.08, rounded down.
    assert told[-1] == (luck, 94 / 64)
