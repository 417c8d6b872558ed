"""A request that outlasts the quiet period, with no grace behind it, is served through a SIGTERM.

A drain that ignored what is under way would end after the quiet period, and cut it off.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.grpc import test_serve as aio
from tests.grpc_sync.backends import LONG_SECONDS, channel_to, method
from tests.grpc_sync.process import Process
from tests.http.serve_process import Served, served, until

pytestmark = pytest.mark.alone

QUIET_SECONDS = 0.2
NAP_SECONDS = 1.5


@pytest.mark.parametrize("kind", ["brief", "brief-interceptor"])
async def test_grpc(kind: str) -> None:
    async with aio.started(kind) as backend, aio.connected(backend) as channel:
        call = aio.nap(channel, NAP_SECONDS)
        await aio.nap(channel, 0.0)  # So the other one has arrived.
        backend.process.send_signal(signal.SIGTERM)

        assert await call == b"rested"
        assert await backend.line() == "served"
        assert await backend.status() == 0


def test_grpc_sync() -> None:
    with (
        Process(quiet_seconds=QUIET_SECONDS, grace_seconds=0.0).ready() as process,
        channel_to(process.address) as channel,
    ):
        nap = str(NAP_SECONDS).encode()
        call = channel.unary_unary(method("Nap")).future(nap)
        assert channel.unary_unary(method("Echo"))(b"") == b""  # So the other one has arrived.
        process.signal()

        assert call.result(LONG_SECONDS) == nap
        assert process.wait()[:2] == (0, "done")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_http(workers: str) -> None:
    quiet = ("--quiet-seconds", str(QUIET_SECONDS))
    async with served("--workers", workers, "--grace-seconds", "0", *quiet) as backend:
        await is_served_to_its_end(backend)


async def test_http_with_a_middleware_of_ones_own() -> None:
    # With QUIET_SECONDS.
    async with served("--grace-seconds", "0", app="guarded", is_ready=False) as backend:
        await backend.listens()
        await until(lambda: says(backend, "/ready"))
        await is_served_to_its_end(backend)


async def is_served_to_its_end(backend: Served) -> None:
    call = asyncio.ensure_future(backend.get(f"/?{NAP_SECONDS}"))
    await until(lambda: is_one_under_way(backend))
    backend.signal(signal.SIGTERM)

    assert (await call).status == 200
    assert await backend.status() == 0


async def is_one_under_way(backend: Served) -> bool:
    return (await backend.probe()).active == 1


async def says(backend: Served, path: str) -> bool:
    return (await backend.get(path)).status == 200
