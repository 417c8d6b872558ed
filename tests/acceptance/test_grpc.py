"""Time bounds of the gRPC transport, with real processes and signals: medians of three runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from bench import grpc_calls
from tests.suites.transports import stories
from tests.suites.transports.grpc_clients import (
    NO_RETRIES,
    GrpcClient,
    evenly_client,
    round_robin_client,
)
from tests.suites.transports.overload import overloaded
from tests.suites.transports.processes import Backends

pytestmark = pytest.mark.acceptance

_RUNS = 3


async def three_times(
    story: Callable[[Backends, GrpcClient], Awaitable[stories.Fault]], backends: int = 3
) -> list[stories.Fault]:
    faults = []
    for _ in range(_RUNS):
        async with (
            Backends(backends, wait_seconds=0.02) as running,
            evenly_client(running.addresses, NO_RETRIES) as client,
        ):
            faults.append(await story(running, client))
    return faults


async def test_deploys_beside_round_robin() -> None:
    async with (
        Backends(5, wait_seconds=0.005) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        ours = await stories.rolling_restarts(backends, client, restarts=20)
    async with (
        Backends(5, wait_seconds=0.005, is_plain=True) as backends,
        round_robin_client(backends.addresses) as client,
    ):
        theirs = await stories.rolling_restarts(backends, client, restarts=20)
    print(f"\nevenly {ours}\nround_robin {theirs}")

    assert ours.failures == Counter()


async def test_a_stopped_backend_is_out_within_five_seconds() -> None:
    faults = await three_times(stories.stopped)
    noticed = [fault.noticed_seconds for fault in faults]
    print(f"\nout after {noticed}, back after {[f.recovered_seconds for f in faults]}")

    assert statistics.median(noticed) <= 5.0


async def test_a_service_that_is_gone_fails_at_once_and_is_back_within_five_seconds() -> None:
    faults = await three_times(stories.all_gone_and_back)
    print(f"\n{[(f.noticed_seconds, f.recovered_seconds) for f in faults]}")

    assert statistics.median(fault.noticed_seconds for fault in faults) <= 1.0
    assert statistics.median(fault.recovered_seconds for fault in faults) <= 5.0


async def test_a_failing_backend_gets_under_one_percent_after_two_seconds() -> None:
    faults = await three_times(stories.failing_fast)
    print(f"\n{[fault.share for fault in faults]}")

    assert statistics.median(fault.share for fault in faults) < 0.01


async def test_an_idle_client_hears_of_a_lame_duck_within_a_tenth_of_a_second() -> None:
    seconds = []
    for _ in range(_RUNS):
        async with (
            Backends(2, wait_seconds=0.02) as backends,
            evenly_client(backends.addresses) as client,
        ):
            seconds.append(await stories.lame_duck_told_to_idle_client(backends, client))
    print(f"\n{seconds}")

    assert statistics.median(seconds) < 0.1


async def test_three_times_the_capacity_beside_plain_grpc() -> None:
    plain = await overloaded(is_plain=True, overload_seconds=20.0, calm_seconds=8.0)
    print(f"\nplain {plain}")
    runs = []
    for _ in range(_RUNS):
        run = await overloaded(
            is_plain=False, overload_seconds=20.0, calm_seconds=8.0, capacity=plain["capacity"]
        )
        print(f"evenly {run}")
        runs.append(run)

    assert statistics.median(run["goodput"] for run in runs) >= 0.9
    assert statistics.median(run["served"]["CRITICAL_PLUS"] for run in runs) >= 0.99
    assert statistics.median(run["recovered_seconds"] for run in runs) <= 5.0
    assert plain["goodput"] < 0.9


def test_throughput_is_at_least_nine_tenths_of_bare_grpc() -> None:
    comparisons = grpc_calls.measure(rounds=7)
    grpc_calls.show(comparisons)

    assert not any(comparison.is_missed for comparison in comparisons)
