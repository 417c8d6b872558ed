"""Live clients do as their settings say: how many backends they know, and how they choose."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from evenly.core.balancing.membership import MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.runtime.client_config import ClientConfig
from tests.suites.transports.load import Load, eventually
from tests.suites.transports.stories import all_healthy, connections_to
from tests.suites.transports.transport import Client, Transport, every_transport

pytestmark = pytest.mark.alone

# Two clients share them without a rest: then `subset_size` is exact.
BACKENDS, SUBSET = 4, 2
LATE_SECONDS = 30.0


def choosing(policy: str) -> ClientConfig:
    weights = WeightConfig(blackout_seconds=0.5, slow_start_seconds=0.0)
    return ClientConfig(task=ClientTaskConfig(policy=PolicyConfig(name=policy, weights=weights)))


async def served_by(client: Client) -> str | None:
    end, backend, details = await client.send(Criticality.CRITICAL, LATE_SECONDS)
    assert end == "OK", details
    return backend


@every_transport
async def test_clients_connect_to_their_subset_and_to_nobody_else(transport: Transport) -> None:
    async with transport.backends(BACKENDS) as backends, contextlib.AsyncExitStack() as stack:
        clients = []
        for index in range(BACKENDS // SUBSET):
            membership = MembershipConfig(subset_size=SUBSET, client_index=index)
            config = ClientConfig(task=ClientTaskConfig(membership=membership))
            made = transport.client(backends.addresses, config)
            clients.append(await stack.enter_async_context(made))
        served = [{await served_by(client) for _ in range(30)} for client in clients]
        # Both of a subset are connected, whoever was sent to.
        await eventually(
            lambda: (
                [len(client.snapshot().backends) for client in clients] == [SUBSET] * len(clients)
                and all(connections_to(backend) for backend in backends.all)
            )
        )
        connections = [connections_to(backend) for backend in backends.all]

    assert [len(backends) for backends in served] == [SUBSET] * len(clients)
    assert served[0].isdisjoint(served[1])
    assert connections == [1] * BACKENDS


@contextlib.asynccontextmanager
async def three(transport: Transport, policy: str, **work: float) -> AsyncIterator[Client]:
    async with (
        transport.backends(3, **work) as backends,
        transport.client(backends.addresses, choosing(policy)) as client,
    ):
        await all_healthy(client, backends)
        assert client.snapshot().policy == policy
        yield client


@every_transport
async def test_round_robin_takes_turns(transport: Transport) -> None:
    async with three(transport, "round_robin") as client:
        served = [await served_by(client) for _ in range(30)]

    assert len(set(served)) == 3
    assert served == served[:3] * 10


@every_transport
async def test_least_loaded_fills_everybody_alike(transport: Transport) -> None:
    async with three(transport, "least_loaded", wait_seconds=0.5) as client:
        rounds = [
            Counter(await asyncio.gather(*(served_by(client) for _ in range(12)))) for _ in range(3)
        ]

    assert [sorted(served.values()) for served in rounds] == [[4, 4, 4]] * 3


@every_transport
async def test_weighted_round_robin_goes_by_what_requests_cost(transport: Transport) -> None:
    cheap, dear = transport.backends(1, cpu_seconds=0.002), transport.backends(1, cpu_seconds=0.02)
    async with (
        cheap,
        dear,
        transport.client(
            [*cheap.addresses, *dear.addresses], choosing("weighted_round_robin")
        ) as client,
        Load(client, 40.0) as load,
    ):
        # Of 200 in turns 100 go to each; by lot, 130 once in 10^5 times.
        await eventually(
            lambda: [a.backend for a in load.answers[-200:]].count(cheap.addresses[0]) >= 130,
            seconds=60.0,
        )
