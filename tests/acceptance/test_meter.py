"""The meter against the real CPU clock."""

from __future__ import annotations

import asyncio
import random
import statistics
import time

import pytest

from bench.meter import PER_AWAIT_NANOSECONDS, PER_REQUEST_NANOSECONDS, measure
from evenly.signals.cost_meter import CostMeter

pytestmark = pytest.mark.acceptance

KINDS = {"small": 0.6e-3, "middle": 1.5e-3, "large": 3.0e-3}
REQUESTS = 150  # of each kind
PARTS = 4  # a quarter at a time; two of them in child tasks


def burn(cpu_seconds: float) -> None:
    ends_at = time.thread_time_ns() + int(cpu_seconds * 1e9)
    while time.thread_time_ns() < ends_at:
        pass


async def part(cpu_seconds: float) -> None:
    burn(cpu_seconds / 2)
    await asyncio.sleep(0)
    burn(cpu_seconds / 2)


async def handler(cpu_seconds: float) -> None:
    each = cpu_seconds / PARTS
    await part(each)
    async with asyncio.TaskGroup() as group:
        group.create_task(part(each))
        group.create_task(part(each))
    await part(each)


async def serve_all(seed: int) -> tuple[dict[str, list[float]], float, float]:
    order = [kind for kind in KINDS for _ in range(REQUESTS)]
    random.Random(seed).shuffle(order)
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    waiting = iter(order)

    async def worker() -> None:  # Eight at a time, so that requests interleave.
        for kind in waiting:
            meter = CostMeter()
            await meter.run(handler(KINDS[kind]))
            costs[kind].append(meter.cpu_seconds)

    started = time.thread_time()
    # Workers stand for a server's connections: outside of any metered context.
    await asyncio.gather(*(worker() for _ in range(8)))
    used = time.thread_time() - started
    return costs, sum(sum(each) for each in costs.values()), used


def test_three_interleaved_kinds_are_told_apart_and_the_cpu_is_accounted_for() -> None:
    errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
    shares: list[float] = []
    for seed in (1, 2, 3):
        costs, attributed, used = asyncio.run(serve_all(seed))
        assert sum(len(each) for each in costs.values()) >= 300
        for kind, cpu_seconds in KINDS.items():
            off = [abs(cost / cpu_seconds - 1.0) for cost in costs[kind]]
            errors[kind].append(statistics.median(off))
        shares.append(attributed / used)
        print(f"seed {seed}: median errors {errors}, attributed {shares}")

    assert max(statistics.median(each) for each in errors.values()) <= 0.15
    assert 0.90 <= statistics.median(shares) <= 1.0


def test_overhead() -> None:
    per_request, per_await, _ = measure(rounds=15)

    assert per_request.nanoseconds <= PER_REQUEST_NANOSECONDS
    assert per_await.nanoseconds <= PER_AWAIT_NANOSECONDS
