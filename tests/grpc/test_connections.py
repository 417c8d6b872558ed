"""One connection per backend: opened, lost, replaced, closed and opened again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import evenly
import evenly.grpc
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import State
from evenly.core.client_task import ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome
from evenly.probe.responder import ProbeResponder
from tests.grpc.plain import (
    KINDS,
    QUICK,
    UNARY_STREAM,
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


class Load:
    """Send calls one after the other from several tasks, and keep what goes wrong."""

    def __init__(self, channel: evenly.grpc.Channel, workers: int = 8) -> None:
        self.errors: list[BaseException] = []
        self.served = 0
        self._method = channel.unary_unary(UNARY_UNARY)
        self._is_over = False
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def _work(self) -> None:
        while not self._is_over:
            try:
                await self._method(b"x", timeout=20.0)
            except grpc.aio.AioRpcError as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)
            else:
                self.served += 1
            await asyncio.sleep(0.001)

    async def more(self, count: int = 100) -> None:
        wanted = self.served + count
        await until(lambda: self.served >= wanted)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


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


async def test_many_calls_at_once_wait_for_their_turn_if_they_are_patient() -> None:
    """Far more than may be active, and than Python can nest."""
    task = ClientTaskConfig(active_limit=10)
    async with served(2, config=quick(task=task)) as (backends, channel):
        method = channel.unary_unary(UNARY_UNARY)
        calls = [method(b"x", wait_for_ready=True) for _ in range(3000)]

        assert await asyncio.gather(*[answer(call) for call in calls]) == [[b"x"]] * 3000
        assert sum(backend.requests for backend in backends) == 3000


async def test_a_call_that_is_not_patient_is_refused_at_the_limit() -> None:
    async def hang(request: bytes, context: Context) -> bytes:
        await asyncio.Event().wait()
        return b""

    task = ClientTaskConfig(active_limit=2)
    async with served(1, config=quick(task=task)) as ([backend], channel):
        backend.unary_unary = hang
        method = channel.unary_unary(UNARY_UNARY)
        for _ in range(2):
            method(b"x")
        await until(lambda: backend.requests == 2)

        with pytest.raises(evenly.NoBackend) as raised:
            await method(b"x")
        assert isinstance(raised.value, grpc.aio.AioRpcError)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.value.retryable


async def test_a_plain_server_without_a_health_service_stays_healthy_while_nobody_calls() -> None:
    async with served(2, config=quick()) as (backends, channel):
        await channel.unary_unary(UNARY_UNARY)(b"")
        await asyncio.sleep(10 * QUICK.check_seconds)  # Three unanswered checks make it silent.

        assert set(states(channel).values()) == {State.HEALTHY}
        assert len(states(channel)) == len(backends)


async def test_a_server_that_lets_nobody_ask_for_its_health_stays_healthy() -> None:
    class Closed(health_pb2_grpc.HealthServicer):
        async def Check(self, request: object, context: Context) -> None:  # noqa: N802
            await context.abort(grpc.StatusCode.UNAUTHENTICATED)

        async def Watch(self, request: object, context: Context) -> None:  # noqa: N802
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
        config = quick(connect_seconds=0.3)
        async with evenly.grpc.channel(Listed(silent, backend), config=config) as channel:
            calls = [channel.unary_unary(UNARY_UNARY)(b"x") for _ in range(20)]
            await asyncio.gather(*[answer(call) for call in calls])

            assert {call.backend for call in calls} == {backend.address}
        async with evenly.grpc.channel(Listed(silent), config=config) as channel:
            with pytest.raises(evenly.NoBackend):
                await channel.unary_unary(UNARY_UNARY)(b"x")
            await until(lambda: states(channel)[silent] is State.REFUSING)
            await settled(channel)


async def test_what_waits_for_a_connection_goes_elsewhere_when_another_stands() -> None:
    config = quick(connect_seconds=3600.0, patience_seconds=0.05)
    async with silent_listener() as silent, plain_backends(1) as [backend]:
        listed = Listed(silent)
        async with evenly.grpc.channel(listed, config=config) as channel:
            calls = [begin(channel, kind) for kind in KINDS]
            await until(lambda: channel.snapshot().active == 4)
            await asyncio.sleep(0.2)  # Nobody else is there: it waits on.
            assert not any(call.done() for call in calls)
            listed.say(silent, backend)

            await asyncio.gather(*[answer(call) for call in calls])

            assert {call.backend for call in calls} == {backend.address}
            assert {call.attempts for call in calls} == {1}
            await settled(channel)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deadline_passes_while_the_connection_is_waited_for(kind: str) -> None:
    async with (
        silent_listener() as silent,
        evenly.grpc.channel(Listed(silent), config=quick()) as channel,
    ):
        call = begin(channel, kind, timeout=0.1)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer(call)

        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "(local)" in (raised.value.details() or "")
        assert (call.attempts, call.time_remaining()) == (0, 0.0)
        await settled(channel)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_can_be_cancelled_while_it_waits_for_its_connection(kind: str) -> None:
    counts = Counts()
    async with (
        silent_listener() as silent,
        evenly.grpc.channel(Listed(silent), config=quick(), observer=counts) as channel,
    ):
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await until(lambda: channel.snapshot().active == 1)

        assert call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert counts.finished == [Outcome.CANCELLED]
        await settled(channel)


# Waiting for a backend.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_patient_call_waits_for_a_backend(kind: str) -> None:
    listed = Listed()
    async with plain_backends(1) as [backend]:
        config = quick(discovery_seconds=0.05)
        async with evenly.grpc.channel(listed, config=config) as channel:
            patient = begin(channel, kind, wait_for_ready=True, timeout=20.0)
            with pytest.raises(evenly.NoBackend) as raised:
                await answer(begin(channel, kind))
            assert raised.value.where == "local"
            assert not patient.done()

            listed.say(backend)

            await answer(patient)
            assert (patient.attempts, patient.backend) == (1, backend.address)


async def test_an_impatient_call_is_not_held_up_by_a_patient_one_before_it() -> None:
    config = quick(discovery_seconds=0.05)
    async with evenly.grpc.channel(Listed(), config=config) as channel:
        patient = channel.unary_unary(UNARY_UNARY)(b"x", wait_for_ready=True)
        impatient = channel.unary_unary(UNARY_UNARY)(b"x")

        with pytest.raises(evenly.NoBackend):
            await asyncio.wait_for(answer(impatient), 20)
        assert not patient.done()


async def test_a_patient_call_waits_until_a_port_opens() -> None:
    backend = PlainBackend()
    await backend.start()
    await backend.stop()
    async with evenly.grpc.channel(Listed(backend), config=quick()) as channel:
        call = channel.unary_unary(UNARY_UNARY)(b"x", wait_for_ready=True)
        await until(lambda: states(channel).get(backend.address) is State.REFUSING)
        await asyncio.sleep(0.1)
        assert not call.done()
        await backend.start()

        assert await asyncio.wait_for(answer(call), 20) == [b"x"]
        await backend.stop()


async def test_a_patient_call_keeps_its_deadline() -> None:
    async with evenly.grpc.channel(Listed(), config=quick()) as channel:
        call = channel.unary_unary(UNARY_UNARY)(b"x", wait_for_ready=True, timeout=0.1)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_discovery_that_finds_nothing_fails_calls_after_its_time() -> None:
    config = quick(discovery_seconds=0.1)
    async with evenly.grpc.channel(Listed(), config=config) as channel:
        with pytest.raises(evenly.NoBackend):
            await channel.unary_unary(UNARY_UNARY)(b"x")
        with pytest.raises(evenly.NoBackend):  # And from then on at once.
            await channel.unary_unary(UNARY_UNARY)(b"x")
        assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


async def test_a_discovery_that_says_that_there_is_nothing_fails_calls_at_once() -> None:
    listed = Listed()
    listed.say()
    async with evenly.grpc.channel(listed, config=quick(discovery_seconds=3600.0)) as channel:
        with pytest.raises(evenly.NoBackend):
            await asyncio.wait_for(answer(channel.unary_unary(UNARY_UNARY)(b"x")), 20)


async def test_a_discovery_that_raises_keeps_the_last_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing:
        def __init__(self, backend: PlainBackend) -> None:
            self._backend = Backend(backend.address)

        async def watch(self) -> AsyncIterator[Sequence[Backend]]:
            yield [self._backend]
            yield [self._backend, self._backend]  # Twice the same: refused by the core.
            raise OSError("the source is gone")

    async with (
        plain_backends(1) as [backend],
        evenly.grpc.channel(Failing(backend), config=quick()) as channel,
    ):
        for _ in range(10):
            assert await channel.unary_unary(UNARY_UNARY)(b"x") == b"x"
        assert "the source is gone" in caplog.text
        assert "same address" in caplog.text


# Lost, replaced and removed.


async def test_a_backend_that_restarts_is_found_again() -> None:
    async with served(1, config=quick()) as ([backend], channel):
        await channel.unary_unary(UNARY_UNARY)(b"x")
        first = connections(channel)[0]
        await backend.stop()
        await until(lambda: states(channel)[backend.address] is State.REFUSING)
        await backend.start()

        await until(lambda: states(channel)[backend.address] is State.HEALTHY)
        assert await channel.unary_unary(UNARY_UNARY)(b"x") == b"x"
        assert connections(channel)[0] is not first


@pytest.mark.parametrize("count", [1, 3], ids=["one backend", "three backends"])
async def test_servers_that_end_their_connections_lose_no_call(count: int) -> None:
    """GOAWAY, as a proxy or `grpc.max_connection_age_ms` sends it."""
    age = [("grpc.max_connection_age_ms", 400), ("grpc.max_connection_age_grace_ms", 10_000)]
    # Below the first back-off a connection that is lost counts as "accepted and dropped".
    config = quick(health=replace(QUICK, backoff_first_seconds=0.01))
    counts = Counts()
    async with (
        plain_backends(count, options=age) as backends,
        evenly.grpc.channel(target(*backends), config=config, observer=counts) as channel,
    ):
        await channel.channel_ready()
        first = {id(connection) for connection in connections(channel)}
        load = Load(channel)
        await load.more(50)
        await until(lambda: first.isdisjoint(id(one) for one in connections(channel)))
        await asyncio.sleep(1.0)
        await load.more(50)
        await load.stop()

        assert load.errors == []
        await settled(channel)


async def test_what_meets_a_connection_that_has_just_died_is_sent_elsewhere() -> None:
    """gRPC sends a call a turn of the loop after it was made: by then the backend can be gone."""
    dying = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    handlers = grpc.method_handlers_generic_handler("test.Echo", {"UnaryUnary": handler})
    dying.add_generic_rpc_handlers((handlers,))
    address = f"127.0.0.1:{dying.add_insecure_port('127.0.0.1:0')}"
    dying.start()
    counts = Counts()
    async with plain_backends(1) as [staying]:
        listed = Listed(address, staying)
        async with evenly.grpc.channel(listed, config=quick(), observer=counts) as channel:
            await until(lambda: list(states(channel).values()) == [State.HEALTHY] * 2)
            calls = [channel.unary_unary(UNARY_UNARY)(b"x") for _ in range(8)]
            made_for = [call.backend for call in calls]

            dying.stop(None).wait()  # The loop stands still, until gRPC has noticed.
            connection = channel.service.connections[address]
            while connection.channel.get_state() is READY:
                time.sleep(0.001)

            assert [await call for call in calls] == [b"x"] * 8
            assert address in made_for
            assert {call.backend for call in calls} == {staying.address}
            assert {call.attempts for call in calls} == {1}
            assert counts.finished.count(Outcome.NOT_SENT) == made_for.count(address)
            await settled(channel)


async def test_a_backend_that_says_the_same_of_a_backend_of_its_own_is_believed() -> None:
    """Else what it has begun would be begun again elsewhere."""

    async def pass_on(request: bytes, context: Context) -> bytes:
        details = "failed to connect to all addresses; last error: ..."
        await context.abort(grpc.StatusCode.UNAVAILABLE, details)
        return b""

    counts = Counts()
    async with served(2, config=quick(), observer=counts) as (backends, channel):
        for backend in backends:
            backend.unary_unary = pass_on
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(UNARY_UNARY)(b"x")

        assert not isinstance(raised.value, evenly.RejectedError)
        assert counts.finished == [Outcome.LOST]
        assert sum(backend.requests for backend in backends) == 1


async def test_a_connection_that_was_replaced_lets_its_calls_end() -> None:
    go_on = asyncio.Event()

    async def wait(request: bytes, context: Context) -> bytes:
        await go_on.wait()
        return request

    async with served(1, config=quick()) as ([backend], channel):
        backend.unary_unary = wait
        old_call = channel.unary_unary(UNARY_UNARY)(b"old")
        await until(lambda: backend.requests == 1)
        old = connections(channel)[0]

        channel.service.connect(old.backend)  # As the core asks for when a backend is silent.

        new = connections(channel)[0]
        assert new is not old
        new_call = channel.unary_unary(UNARY_UNARY)(b"new")
        await until(lambda: backend.requests == 2)
        assert (old.active, new.active) == (1, 1)
        go_on.set()
        assert (await old_call, await new_call) == (b"old", b"new")
        await until(lambda: old.is_closed)
        assert old.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        assert new.channel.get_state() is READY
        await settled(channel)


async def test_a_backend_that_is_removed_keeps_the_calls_that_are_under_way() -> None:
    go_on = asyncio.Event()

    async def wait(request: bytes, context: Context) -> bytes:
        await go_on.wait()
        return request

    async with plain_backends(2) as (leaving, staying):
        leaving.unary_unary = wait
        listed = Listed(leaving)
        async with evenly.grpc.channel(listed, config=quick()) as channel:
            call = channel.unary_unary(UNARY_UNARY)(b"x")
            await until(lambda: leaving.requests)
            connection = connections(channel)[0]
            listed.say(staying)
            await until(lambda: staying.address in states(channel))
            for _ in range(10):
                other = channel.unary_unary(UNARY_UNARY)(b"y")
                assert await other == b"y"
                assert other.backend == staying.address
            assert connection.active == 1

            go_on.set()

            assert await call == b"x"
            await until(lambda: connection.is_closed)
            assert list(states(channel)) == [staying.address]


async def test_a_list_that_leaves_and_comes_back_reconnects() -> None:
    async with plain_backends(1) as [backend]:
        listed = Listed(backend)
        async with evenly.grpc.channel(listed, config=quick()) as channel:
            await channel.unary_unary(UNARY_UNARY)(b"x")
            listed.say()
            await until(lambda: not channel.service.connections)
            with pytest.raises(evenly.NoBackend):
                await channel.unary_unary(UNARY_UNARY)(b"x")
            listed.say(backend)
            await until(lambda: channel.service.connections)
            assert await channel.unary_unary(UNARY_UNARY)(b"x") == b"x"


async def test_a_stream_that_is_cut_off_says_so() -> None:
    async def endless(request: bytes, context: Context) -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    counts = Counts()
    async with served(1, config=quick(), observer=counts) as ([backend], channel):
        backend.unary_stream = endless
        call = channel.unary_stream(UNARY_STREAM)(b"")
        await call.read()
        await backend.stop()

        async def read_on() -> None:
            while True:
                await call.read()

        with pytest.raises(grpc.aio.AioRpcError):
            await read_on()
        assert counts.finished == [Outcome.LOST]
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


async def test_without_probes_there_is_no_idle_mode() -> None:
    config = quick(health=replace(QUICK, idle_seconds=0.2), is_probing=True)
    async with served(1, config=config) as (_, channel):  # Nobody answers probes here.
        await channel.unary_unary(UNARY_UNARY)(b"x")
        first = connections(channel)
        await asyncio.sleep(1.0)

        assert connections(channel) == first
