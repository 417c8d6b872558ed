"""A request's luck and its client's line, over two hops of `grpc.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Request
from evenly.runtime.backend_config import BackendConfig
from tests.grpc.plain import quick
from tests.grpc.served import SERVICE, TASK, Served, served, unary

uu = grpc.unary_unary_rpc_method_handler
UNTHROTTLED = ClientTaskConfig(throttle=ThrottleConfig(name="off"))
STERN = BackendConfig(task=TASK, trust_near=False)
Metadata = tuple[tuple[str, str], ...]


@asynccontextmanager
async def stack(config: BackendConfig) -> AsyncIterator[tuple[Served, list[float | None]]]:
    """Serve a backend that calls another one three times for each request."""
    seen: list[float | None] = []

    async def leaf(request: bytes, context: Any) -> bytes:
        seen.append(evenly.current_request().luck)
        return request

    async with (
        served({"Do": uu(leaf)}) as below,
        evenly.grpc.channel(
            f"static:127.0.0.1:{below.port}", config=quick(task=UNTHROTTLED)
        ) as channel,
    ):
        call = channel.unary_unary(f"/{SERVICE}/Do")

        async def narrower() -> None:
            with evenly.request_context(deadline_seconds=10.0):
                await call(b"")

        async def top(request: bytes, context: Any) -> bytes:
            await asyncio.gather(call(b""), narrower())
            answer: bytes = await call(b"")
            return answer

        async with served({"Do": uu(top)}, config=config) as made:
            yield made, seen


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((("evenly-level", "u=37"),), id="by our key"),
        pytest.param((("baggage", "a=b,evenly-luck=37"),), id="in baggage"),
        pytest.param((("evenly-level", "u=37"), ("baggage", "evenly-luck=5")), id="ours first"),
    ],
)
async def test_all_calls_below_have_the_luck_that_the_request_came_with(
    metadata: Metadata,
) -> None:
    async with stack(BackendConfig(task=TASK)) as (made, seen):
        await unary(made.channel, "Do")(b"", metadata=metadata, timeout=30.0)

    assert seen == [37 / 64] * 3


@pytest.mark.parametrize("metadata", [(), (("evenly-level", "u=63"),)])
async def test_who_has_no_luck_or_is_a_stranger_gets_one_for_all_calls_below(
    metadata: Metadata,
) -> None:
    shared: list[float | None] = []
    async with stack(STERN) as (made, seen):
        for _ in range(20):
            await unary(made.channel, "Do")(b"", metadata=metadata)
            assert len(seen) == 3
            shared += [*set(seen)]
            seen.clear()

    assert len(shared) == 20  # One for each.
    assert None not in shared
    assert len(set(shared)) > 1  # A stranger's would always be the same.


async def test_the_line_arrives_where_it_is_decided() -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        return request

    told: list[tuple[float | None, float]] = []
    async with served({"Do": uu(echo)}) as made:
        made.runtime.combine = partial(replace, cut=1.5)  # It says that it cuts there.
        task = made.runtime.task
        admit: Any = task.admit

        def noting(request: Request, attempt: int, **said: Any) -> Any:
            told.append((said["luck"], said["line"]))
            return admit(request, attempt, **said)

        task.admit = noting  # type: ignore[assignment,method-assign]
        async with evenly.grpc.channel(
            f"static:127.0.0.1:{made.port}", config=quick(is_probing=False)
        ) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Do")
            await call(b"")
            assert told[-1] == (None, 0.0)

            with evenly.request_context(criticality=evenly.Criticality.CRITICAL_PLUS, user="ann"):
                await call(b"")
                luck = evenly.current_request().luck

    # The line is 0.03 below what is reported: 1.47 · 64 = 94.08, rounded down.
    assert told[-1] == (luck, 94 / 64)
