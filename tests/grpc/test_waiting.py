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
from evenly.core.client_task import ClientTaskConfig
from tests.grpc.plain import (
    KINDS,
    UNARY_UNARY,
    Listed,
    PlainBackend,
    answer,
    begin,
    plain_backends,
    quick,
    served,
    settled,
    silent_listener,
)


async def test_many_calls_at_once_wait_for_their_turn_if_they_are_patient() -> None:
    """Far more than may be active, and than Python can nest."""
    task = ClientTaskConfig(active_limit=10)
    async with served(2, config=quick(task=task)) as (backends, channel):
        method = channel.unary_unary(UNARY_UNARY)
        calls = [method(b"x", wait_for_ready=True) for _ in range(3000)]

        assert await asyncio.gather(*[answer(call) for call in calls]) == [[b"x"]] * 3000
        assert sum(backend.requests for backend in backends) == 3000


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


async def test_a_discovery_that_finds_nothing_fails_calls_after_its_time() -> None:
    config = quick(discovery_seconds=0.1)
    async with evenly.grpc.channel(Listed(), config=config) as channel:
        with pytest.raises(evenly.NoBackend):
            await channel.unary_unary(UNARY_UNARY)(b"x")
        with pytest.raises(evenly.NoBackend):  # And from then on at once.
            await channel.unary_unary(UNARY_UNARY)(b"x")
        assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


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
