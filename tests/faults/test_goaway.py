"""A server that ends each connection after a while, as `max_connection_age` has it.

EVENLY_GOAWAY_CALLS=400000 .venv/bin/pytest -m faults -s tests/faults/test_goaway.py
"""

from __future__ import annotations

import asyncio
import os

import grpc.aio
import pytest

import evenly.grpc
from tests.grpc.plain import UNARY_UNARY, PlainBackend, target

pytestmark = pytest.mark.faults

CALLS = int(os.environ.get("EVENLY_GOAWAY_CALLS", "40000"))
AT_ONCE = 32


@pytest.mark.parametrize(
    ("count", "age_ms"),
    [
        pytest.param(6, 2_000, id="six backends"),
        pytest.param(2, 1_000, id="two backends"),
        pytest.param(1, 1_000, id="one backend"),
    ],
)
async def test_no_call_fails_where_connections_grow_old(count: int, age_ms: int) -> None:
    backends = [PlainBackend() for _ in range(count)]
    options = (("grpc.max_connection_age_ms", age_ms), ("grpc.max_connection_age_grace_ms", 5_000))
    for backend in backends:
        await backend.start(options=options)
    failures: list[str] = []
    left = iter(range(CALLS))
    async with evenly.grpc.channel(target(*backends)) as channel:
        echo = channel.unary_unary(UNARY_UNARY)

        async def send() -> None:
            for _ in left:
                try:
                    await echo(b"hello", timeout=60)
                except grpc.aio.AioRpcError as error:
                    failures.append(f"{error.code()}: {error.details()}")

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    for backend in backends:
        await backend.stop()
    print(f"{len(failures)} of {CALLS} calls failed")
    assert failures == []
