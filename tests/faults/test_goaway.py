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
OPTIONS = (("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 5_000))


async def test_no_call_fails_where_connections_grow_old() -> None:
    backends = [PlainBackend(), PlainBackend()]
    for backend in backends:
        await backend.start(options=OPTIONS)
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
