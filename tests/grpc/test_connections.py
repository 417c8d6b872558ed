"""One connection per backend: opened, lost, replaced, closed and opened again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import evenly
import evenly.grpc
from evenly.core.balancing.health import State
from evenly.core.report import LoadReport
from evenly.core.request import Outcome
from evenly.probe.responder import ProbeResponder
from tests.grpc.plain import (
    KINDS,
    QUICK,
    UNARY_UNARY,
    Context,
    Counts,
    Listed,
    PlainBackend,
    answer,
    begin,
    connections,
    plain_backends,
    quick,
    served,
    settled,
    silent_listener,
    target,
    until,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
READY = grpc.ChannelConnectivity.READY
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def states(channel: evenly.grpc.Channel) -> dict[str, State]:
    return {view.address: view.state for view in channel.snapshot().backends}


async def closed_port() -> str:
    backend = PlainBackend()
    await backend.start()
    await backend.stop()
    return backend.address


# Opening.


async def test_there_is_one_connection_per_backend() -> None:
    async with served(3, config=quick()) as (backends, channel):
        await asyncio.gather(*[answer(begin(channel, kind)) for kind in KINDS * 20])
        await until(lambda: all(state is State.HEALTHY for state in states(channel).values()))

        assert sorted(channel.service.connections) == sorted(one.address for one in backends)
        assert all(backend.requests for backend in backends)


async def test_calls_made_before_anything_is_known_are_all_served() -> None:
    counts = Counts()
    async with served(3, observer=counts) as (_, channel):
        calls = [begin(channel, kind) for kind in KINDS * 50]

        await asyncio.gather(*[answer(call) for call in calls])

        assert {call.attempts for call in calls} == {1}
        await settled(channel)


async def test_a_plain_server_without_a_health_service_stays_healthy_while_nobody_calls() -> None:
    async with served(2, config=quick()) as (backends, channel):
        await channel.unary_unary(UNARY_UNARY)(b"")
        await asyncio.sleep(10 * QUICK.check_seconds)  # Three unanswered checks make it silent.

        assert set(states(channel).values()) == {State.HEALTHY}
        assert len(states(channel)) == len(backends)


async def test_a_server_that_lets_nobody_ask_for_its_health_stays_healthy() -> None:
    class Closed(health_pb2_grpc.HealthServicer):
        async def Check(self, request: object, context: Context) -> None:  # noqa: N802 -- gRPC's
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)

        async def Watch(self, request: object, context: Context) -> None:  # noqa: N802 -- gRPC's
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)

    def also(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(Closed(), server)

    async with (
        plain_backends(2, also=also) as backends,
        evenly.grpc.channel(target(*backends), config=quick()) as channel,
    ):
        await channel.unary_unary(UNARY_UNARY)(b"")
        await asyncio.sleep(10 * QUICK.check_seconds)

        assert set(states(channel).values()) == {State.HEALTHY}


# Refused and silent.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_port_costs_no_call(kind: str) -> None:
    counts = Counts()
    async with plain_backends(2) as backends:
        addresses = [await closed_port(), *[backend.address for backend in backends]]
        listed = Listed(*addresses)
        async with evenly.grpc.channel(listed, config=quick(), observer=counts) as channel:
            calls = [begin(channel, kind) for _ in range(100)]
            await asyncio.gather(*[answer(call) for call in calls])

            assert {call.attempts for call in calls} == {1}
            await until(lambda: states(channel)[addresses[0]] is State.REFUSING)
            await settled(channel)
            assert set(counts.finished) <= {Outcome.OK, Outcome.NOT_SENT}


async def test_where_nobody_listens_calls_fail_at_once() -> None:
    counts = Counts()
    listed = Listed(await closed_port(), await closed_port())
    async with evenly.grpc.channel(listed, config=quick(), observer=counts) as channel:
        for kind in KINDS:
            call = begin(channel, kind)
            with pytest.raises(evenly.NoBackend) as raised:
                await answer(call)
            assert isinstance(raised.value, grpc.aio.AioRpcError)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "(local)" in (raised.value.details() or "")
            assert (call.attempts, call.backend) == (0, None)
        await settled(channel)
        assert set(counts.finished) == {Outcome.NOT_SENT}


async def test_a_peer_that_accepts_and_says_nothing_is_given_up() -> None:
    async with silent_listener() as silent, plain_backends(1) as [backend]:
        # The other one has to connect within it, also on a machine that pauses.
        config = quick(connect_seconds=2.0)
        async with evenly.grpc.channel(Listed(silent, backend), config=config) as channel:
            calls = [channel.unary_unary(UNARY_UNARY)(b"x") for _ in range(20)]
            await asyncio.gather(*[answer(call) for call in calls])

            assert {call.backend for call in calls} == {backend.address}
        async with evenly.grpc.channel(Listed(silent), config=config) as channel:
            with pytest.raises(evenly.NoBackend):
                await channel.unary_unary(UNARY_UNARY)(b"x")
            await until(lambda: states(channel)[silent] is State.REFUSING)
            await settled(channel)


# What the backend's health service says.


async def test_not_serving_makes_a_lame_duck_and_serving_ends_it() -> None:
    servicers: list[health.aio.HealthServicer] = []

    def also(server: grpc.aio.Server) -> None:
        servicers.append(health.aio.HealthServicer())
        health_pb2_grpc.add_HealthServicer_to_server(servicers[-1], server)

    async with (
        plain_backends(2, also=also) as backends,
        evenly.grpc.channel(target(*backends), config=quick()) as channel,
    ):
        healthy = {backend.address: State.HEALTHY for backend in backends}
        await until(lambda: states(channel) == healthy)

        await servicers[0].set("", NOT_SERVING)

        lame = backends[0].address
        await until(lambda: states(channel)[lame] is State.LAME_DUCK)
        before = backends[0].requests
        for _ in range(20):
            await channel.unary_unary(UNARY_UNARY)(b"x")
        assert (backends[0].requests - before, backends[1].requests) == (0, 20)

        await servicers[1].set("", NOT_SERVING)  # Nobody is left: the last resort.
        await until(lambda: State.HEALTHY not in states(channel).values())
        assert await channel.unary_unary(UNARY_UNARY)(b"x") == b"x"

        for servicer in servicers:
            await servicer.set("", SERVING)
        await until(lambda: states(channel) == healthy)


# Idle mode.


@contextlib.asynccontextmanager
async def probed(backend: PlainBackend) -> AsyncIterator[ProbeResponder]:
    """Answer probes beside a plain server, on the port of the same number."""
    report = LoadReport(boot=1, sequence=1)
    responder = ProbeResponder(lambda: report)
    responder.bind("127.0.0.1", backend.port)
    responder.start(asyncio.get_running_loop())
    try:
        yield responder
    finally:
        responder.stop()


async def test_a_connection_that_nobody_uses_is_closed_and_opened_on_demand() -> None:
    config = quick(health=replace(QUICK, idle_seconds=0.3), is_probing=True)
    async with (
        plain_backends(1) as [backend],
        probed(backend),
        evenly.grpc.channel(target(backend), config=config) as channel,
    ):
        for _ in range(2):
            assert await channel.unary_unary(UNARY_UNARY)(b"x") == b"x"
            await until(lambda: not channel.service.connections)
            assert states(channel) == {backend.address: State.HEALTHY}
        calls = [channel.unary_unary(UNARY_UNARY)(b"x") for _ in range(5)]
        await asyncio.gather(*[answer(call) for call in calls])
        assert len(connections(channel)) == 1
        await settled(channel)


async def test_a_channel_whose_connections_rest_becomes_ready_when_somebody_wants_it() -> None:
    config = quick(health=replace(QUICK, idle_seconds=0.3), is_probing=True)
    async with (
        plain_backends(1) as [backend],
        probed(backend),
        evenly.grpc.channel(target(backend), config=config) as channel,
    ):
        await channel.channel_ready()
        await until(lambda: not channel.service.connections)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        await channel.channel_ready()


async def test_without_probes_there_is_no_idle_mode() -> None:
    config = quick(health=replace(QUICK, idle_seconds=0.2), is_probing=True)
    async with served(1, config=config) as (_, channel):  # Nobody answers probes here.
        await channel.unary_unary(UNARY_UNARY)(b"x")
        first = connections(channel)
        await asyncio.sleep(1.0)

        assert connections(channel) == first
