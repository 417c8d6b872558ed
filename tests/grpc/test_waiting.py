"""Calls that wait: for a backend, for a connection, for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import State
from evenly.core.client_task import ClientTaskConfig
from evenly.core.request import Outcome
from tests.grpc.plain import (
    KINDS,
    UNARY_UNARY,
    Context,
    Counts,
    Listed,
    PlainBackend,
    answer,
    begin,
    plain_backends,
    quick,
    served,
    settled,
    silent_listener,
    until,
)


def states(channel: evenly.grpc.Channel) -> dict[str, State]:
    return {view.address: view.state for view in channel.snapshot().backends}


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
