"""Time bounds of every transport, with real processes and signals: medians of three runs."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from bench import grpc_calls
from evenly.core.criticality import Criticality
from tests.suites.transports import stories
from tests.suites.transports.overload import overloaded
from tests.suites.transports.processes import Backends
from tests.suites.transports.transport import (
    IDLE,
    NO_RETRIES,
    Client,
    Transport,
    every_transport,
)

pytestmark = pytest.mark.acceptance

_RUNS = 3


async def three_times(
    transport: Transport, story: Callable[[Backends, Client], Awaitable[stories.Fault]]
) -> list[stories.Fault]:
    faults = []
    for _ in range(_RUNS):
        async with (
            transport.backends(3, wait_seconds=0.02) as backends,
            transport.client(backends.addresses, NO_RETRIES) as client,
        ):
            faults.append(await story(backends, client))
    return faults


@every_transport
async def test_deploys_beside_round_robin(transport: Transport) -> None:
    async with (
        transport.backends(5, wait_seconds=0.005) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        ours = await stories.rolling_restarts(backends, client, restarts=20)
    async with (
        transport.backends(5, wait_seconds=0.005, is_plain=True) as backends,
        transport.plain_client(backends.addresses) as client,
    ):
        theirs = await stories.rolling_restarts(backends, client, restarts=20)
    print(f"\n{transport.name}: evenly {ours}\nround robin {theirs}")

    assert ours.failures == Counter()


@every_transport
async def test_a_stopped_backend_is_out_within_five_seconds(transport: Transport) -> None:
    faults = await three_times(transport, stories.stopped)
    noticed = [fault.noticed_seconds for fault in faults]
    recovered = [fault.recovered_seconds for fault in faults]
    print(f"\n{transport.name}: out after {noticed}, back after {recovered}")

    assert statistics.median(noticed) <= 5.0


@every_transport
async def test_a_service_that_is_gone_fails_at_once_and_is_back_within_five_seconds(
    transport: Transport,
) -> None:
    faults = await three_times(transport, stories.all_gone_and_back)
    print(f"\n{transport.name}: {[(f.noticed_seconds, f.recovered_seconds) for f in faults]}")

    assert statistics.median(fault.noticed_seconds for fault in faults) <= 1.0
    assert statistics.median(fault.recovered_seconds for fault in faults) <= 5.0


@every_transport
async def test_a_failing_backend_gets_under_one_percent_after_two_seconds(
    transport: Transport,
) -> None:
    faults = await three_times(transport, stories.failing_fast)
    print(f"\n{transport.name}: {[fault.share for fault in faults]}")

    assert statistics.median(fault.share for fault in faults) < 0.01


@every_transport
async def test_an_idle_client_hears_of_a_lame_duck_within_a_tenth_of_a_second(
    transport: Transport,
) -> None:
    seconds = []
    for _ in range(_RUNS):
        async with (
            transport.backends(2, wait_seconds=0.02) as backends,
            transport.client(backends.addresses, IDLE) as client,
        ):
            seconds.append(await stories.lame_duck_told_to_idle_client(backends, client))
    print(f"\n{transport.name}: {seconds}")

    assert statistics.median(seconds) < 0.1


@every_transport
async def test_requests_one_after_another_do_not_wait_for_acknowledgements(
    transport: Transport,
) -> None:
    seconds = []
    async with (
        transport.backends(1) as backends,
        transport.client(backends.addresses, None) as client,
    ):
        for _ in range(100):
            begun_at = time.perf_counter()
            end, _, details = await client.send(Criticality.CRITICAL, 5.0)
            assert end == "OK", details
            seconds.append(time.perf_counter() - begun_at)
    median = statistics.median(seconds)
    print(f"\n{transport.name}: {1000 * median:.2f} ms")

    # A socket without TCP_NODELAY waits 40 ms for an acknowledgement that the other side delays.
    assert median < 0.02


@every_transport
async def test_three_times_the_capacity_beside_a_plain_service(transport: Transport) -> None:
    plain = await overloaded(transport, is_plain=True, overload_seconds=20.0, calm_seconds=8.0)
    print(f"\n{transport.name}: plain {plain}")
    runs = []
    for _ in range(_RUNS):
        run = await overloaded(
            transport,
            is_plain=False,
            overload_seconds=20.0,
            calm_seconds=8.0,
            capacity=plain["capacity"],
        )
        print(f"evenly {run}")
        runs.append(run)

    assert statistics.median(run["goodput"] for run in runs) >= 0.9
    assert statistics.median(run["served"]["CRITICAL_PLUS"] for run in runs) >= 0.99
    assert statistics.median(run["recovered_seconds"] for run in runs) <= 5.0
    assert plain["goodput"] < 0.9


def test_throughput_is_at_least_nine_tenths_of_bare_grpc() -> None:
    comparisons = grpc_calls.measure(rounds=15)
    grpc_calls.show(comparisons)

    assert not any(comparison.is_missed for comparison in comparisons)
