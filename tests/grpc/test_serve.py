from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenly.core.backend_task import BackendTaskConfig
from evenly.errors import ConfigError, UsageError
from evenly.grpc.server.serve import serve
from evenly.grpc.server.server import server
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.lifecycle import SAME_SIGNAL_SECONDS
from tests.grpc.served import OPTIONS

SOON = 30.0
LATER_SECONDS = SAME_SIGNAL_SECONDS + 0.1  # No echo of a signal that has been heard.
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Process:
    """A backend in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def line(self) -> str:
        assert self.process.stdout is not None
        text = await asyncio.wait_for(self.process.stdout.readline(), SOON)
        return text.decode().strip()

    async def status(self) -> int:
        return await asyncio.wait_for(self.process.wait(), SOON)

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), SOON)).decode()


@asynccontextmanager
async def started(kind: str, warm_up: str = "") -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.grpc.backend_process",
        kind,
        warm_up,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    made = Process(process, 0)
    try:
        made.port = int(await made.line())
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@asynccontextmanager
async def connected(process: Process) -> AsyncIterator[grpc.aio.Channel]:
    target = f"127.0.0.1:{process.port}"
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), SOON)
        yield channel


def nap(channel: grpc.aio.Channel, seconds: float) -> Any:
    return channel.unary_unary("/test.Naps/Nap")(str(seconds).encode())


async def statuses(channel: grpc.aio.Channel) -> AsyncIterator[int]:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    while (response := await asyncio.wait_for(watch.read(), SOON)) is not grpc.aio.EOF:
        yield response.status


@pytest.mark.parametrize("kind", ["server", "interceptor"])
async def test_at_sigterm_it_says_so_and_every_request_is_served(kind: str) -> None:
    async with started(kind) as backend, connected(backend) as channel:
        states = statuses(channel)
        while await anext(states) != SERVING:
            pass
        under_way = [nap(channel, 0.5) for _ in range(10)]
        await nap(channel, 0.0)
        backend.process.send_signal(signal.SIGTERM)
        assert await anext(states) == NOT_SERVING
        late = [nap(channel, 0.1) for _ in range(10)]  # Whoever has not heard is served too.

        assert await asyncio.gather(*under_way, *late) == [b"rested"] * 20
        assert await backend.line() == "served"
        assert await backend.status() == 0


async def test_sigint_is_as_good() -> None:
    async with started("server") as backend, connected(backend) as channel:
        call = nap(channel, 0.3)
        await nap(channel, 0.0)
        backend.process.send_signal(signal.SIGINT)

        assert await call == b"rested"
        assert await backend.line() == "served"
        assert await backend.status() == 0


async def become_lame_duck(backend: Process, channel: grpc.aio.Channel) -> None:
    """Send SIGTERM, and wait until it is heard: two that wait for a process are one to it."""
    backend.process.send_signal(signal.SIGTERM)
    states = statuses(channel)
    while await anext(states) != NOT_SERVING:
        pass


async def test_a_second_signal_stops_it_at_once() -> None:
    async with started("server") as backend, connected(backend) as channel:
        call = nap(channel, 3600.0)
        await nap(channel, 0.0)
        await become_lame_duck(backend, channel)
        await asyncio.sleep(LATER_SECONDS)
        backend.process.send_signal(signal.SIGTERM)

        assert await backend.line() == "served"
        assert await backend.status() == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        assert "second signal: stopping at once, 1 request is cut off" in await backend.errors()


async def test_a_signal_that_comes_twice_cuts_no_request_off() -> None:
    async with started("server") as backend, connected(backend) as channel:
        call = nap(channel, 0.5)
        await nap(channel, 0.0)
        await become_lame_duck(backend, channel)
        backend.process.send_signal(signal.SIGTERM)

        assert await call == b"rested"
        assert await backend.line() == "served"


async def test_a_second_signal_cuts_the_grace_short() -> None:
    async with started("hasty") as backend, connected(backend) as channel:
        call = nap(channel, 3600.0)
        await nap(channel, 0.0)
        backend.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(LATER_SECONDS + 0.4)
        assert not call.done()
        backend.process.send_signal(signal.SIGTERM)

        assert await backend.line() == "served"
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        assert "second signal: stopping at once, 1 request is cut off" in await backend.errors()


async def test_while_it_warms_up_it_listens_as_a_lame_duck() -> None:
    async with started("server", "told") as backend, connected(backend) as channel:
        states = statuses(channel)
        assert await anext(states) == NOT_SERVING
        assert await nap(channel, 0.0) == b"rested"
        assert backend.process.stdin is not None
        backend.process.stdin.write(b"be warm\n")
        assert await anext(states) == SERVING
        assert [await backend.line(), await backend.line()] == ["warming up", "warm"]


async def test_a_signal_during_the_warm_up_leaves_at_once() -> None:
    async with started("server", "3600") as backend:
        assert await backend.line() == "warming up"
        backend.process.send_signal(signal.SIGTERM)

        assert await backend.line() == "served"
        assert await backend.status() == 0


async def test_a_warm_up_that_raises_stops_the_server_and_is_raised() -> None:
    async with started("server", "raises") as backend:
        assert await backend.line() == "warming up"
        assert await backend.status() == 1
        assert backend.process.stderr is not None
        assert b"ValueError: no cache" in await backend.process.stderr.read()


# In this process.


def quick() -> Any:
    return server(config=BackendConfig(task=BackendTaskConfig(quiet_seconds=0.0)))


async def test_the_handlers_of_signals_are_given_back() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        made = quick()
        made.add_insecure_port("127.0.0.1:0")
        serving = asyncio.ensure_future(serve(made))
        async with asyncio.timeout(SOON):
            while made.runtime.is_lame_duck:
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, SOON)

        assert signal.getsignal(signal.SIGTERM) is mine
        assert made.runtime.is_lame_duck
        assert not made.runtime.is_started
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_it_returns_when_somebody_else_stops_the_server() -> None:
    made = quick()
    made.add_insecure_port("127.0.0.1:0")
    serving = asyncio.ensure_future(serve(made))
    async with asyncio.timeout(SOON):
        while made.runtime.is_lame_duck:
            await asyncio.sleep(0.01)
    await made.stop(None)

    await asyncio.wait_for(serving, SOON)


async def test_cancelled_it_stops_the_server() -> None:
    made = quick()
    made.add_insecure_port("127.0.0.1:0")
    serving = asyncio.ensure_future(serve(made))
    async with asyncio.timeout(SOON):
        while made.runtime.is_lame_duck:
            await asyncio.sleep(0.01)
    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await made.wait_for_termination(SOON) is False


async def test_a_server_of_grpcs_own_needs_its_interceptor() -> None:
    made = grpc.aio.server()
    with pytest.raises(UsageError, match="interceptor="):
        await serve(made)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
async def test_a_grace_out_of_bounds_is_refused(seconds: float) -> None:
    made = quick()
    with pytest.raises(ConfigError, match="grace_seconds"):
        await serve(made, grace_seconds=seconds)
    await made.stop(None)
