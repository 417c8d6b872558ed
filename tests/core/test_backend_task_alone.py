"""Backends with customers' quotas that nobody aggregates, beside backends that somebody does."""

from __future__ import annotations

import random

import pytest

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.quota_aggregator import MemoryAggregator
from evenly.core.request import Outcome, Reason, Request
from evenly.testing import ManualClock

SECONDS = 30
COST_SECONDS = 0.05
LIMIT = 1.0
QUOTA = QuotaConfig(limits={"a": LIMIT, "b": LIMIT}, default_limit=0.0)


def used(backends: int, demands: dict[str, float], *, is_aggregated: bool) -> dict[str, float]:
    """Return what customers used, in CPUs, of this demand at each backend."""
    clock = ManualClock()
    config = BackendTaskConfig(quota=QUOTA)
    tasks = [
        BackendTask(config, clock=clock, rng=random.Random(1), boot=1) for _ in range(backends)
    ]
    aggregator = MemoryAggregator(QUOTA)
    spent = dict.fromkeys(demands, 0.0)
    for tenth in range(10 * SECONDS):
        for customer, demand in demands.items():
            for task in tasks:
                for _ in range(round(demand * 0.1 / COST_SECONDS)):
                    answer = task.admit(Request(customer=customer))
                    if isinstance(answer, Admission):
                        answer.finish(Outcome.OK, COST_SECONDS)
                        spent[customer] += COST_SECONDS
                    else:
                        assert answer.reason is Reason.OUT_OF_QUOTA
        if is_aggregated and tenth % 10 == 9:
            for number, task in enumerate(tasks):
                aggregator.report(str(number), task.quota_demand(), clock())
            for number, task in enumerate(tasks):
                task.update_quotas(aggregator.limits_of(str(number), clock()))
        clock.advance(0.1)
    return {customer: seconds / SECONDS for customer, seconds in spent.items()}


@pytest.mark.parametrize("backends", [1, 2, 5])
def test_without_an_aggregator_each_backend_grants_the_whole_limit(backends: int) -> None:
    found = used(backends, {"a": 3.0, "b": 0.5}, is_aggregated=False)

    # The bucket holds a second's worth at the start, beyond the rate: 31 of 30 s.
    assert found["a"] == pytest.approx(backends * LIMIT, rel=1.0 / SECONDS + 0.01)
    assert found["b"] == pytest.approx(backends * 0.5)  # At each it is within its limit.


@pytest.mark.parametrize("backends", [1, 2, 5])
def test_with_one_all_together_grant_the_limit(backends: int) -> None:
    found = used(backends, {"a": 3.0}, is_aggregated=True)

    # Until the first limits come, after a second, each has a full bucket and the whole rate.
    assert LIMIT <= found["a"] <= LIMIT * (1.0 + 2.0 * backends / SECONDS)
