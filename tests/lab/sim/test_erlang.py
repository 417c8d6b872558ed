"""The simulated backends are queues: their mean response times are those of queueing theory.

Estimates come from batches.  In each, more or less was asked than on average, and of more or less
cost; both are known, and what they explain is taken off (control variates), which saves half of the
requests and more.  Batches are hundreds of times longer than queues remember, so they are
independent, and the residuals say how good the estimate is: every test sees to it that the 2 % that
it allows are at least 4 standard errors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from evenly.core.client_task import ClientTaskConfig
from evenly.lab.sim.scenario import ClientsConfig, NetworkConfig, Scenario, WorkloadConfig
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.world import World
from tests.lab.sim.queueing import completions, erlang_c_mean, pollaczek_khinchine_mean
from tests.lab.sim.small import NEVER_SHEDS

SEED = 1
BATCHES = 50
MEAN_SECONDS = 0.005
Floats = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """Be a mean and its standard error."""

    mean: float
    error: float


def estimate(figures: Floats, *controls: Floats) -> Estimate:
    """Return the mean of the figures where all controls are at theirs, 0 (by least squares)."""
    known = np.column_stack([np.ones(len(figures)), *controls])
    inverse = np.linalg.inv(known.T @ known)
    found = inverse @ known.T @ figures
    left = figures - known @ found
    variance = float(left @ left) / (len(figures) - known.shape[1])
    return Estimate(float(found[0]), math.sqrt(variance * float(inverse[0, 0])))


def simulated(cores: int, load: float, kind: str, requests: int) -> Estimate:
    """Return the mean response time of one backend, in seconds, with nothing in the way of it."""
    per_second = load * cores / MEAN_SECONDS
    seconds = math.ceil(requests / per_second / BATCHES) * BATCHES
    settle = 10
    cost = RequestCostConfig(kind=kind, mean_seconds=MEAN_SECONDS)  # type: ignore[arg-type]
    scenario = Scenario(
        title="one queue",
        seconds=float(seconds + settle),
        settle_seconds=float(settle),
        workload=WorkloadConfig(timeout_seconds=1_000.0),
        clients=ClientsConfig(count=1),
        backends=ServiceConfig(
            count=1, cores=cores, cost=cost, connect_cost_seconds=0.0, probe_cost_seconds=0.0
        ),
        network=NetworkConfig(delay_seconds=0.0),
        client_task=ClientTaskConfig(active_limit=1_000_000),
        backend_task=NEVER_SHEDS,
    )
    world = World(scenario, policy="round_robin", load=load, seed=SEED)
    world.run(None)
    assert world.stage.checkers.violations() == ()
    measured = world.stage.recorder.seconds[settle : settle + seconds]
    # Sums over batches, each over what it is on average.
    latencies = _batched([math.fsum(second.latencies) for second in measured])
    offered = _batched([float(sum(second.offered)) for second in measured])
    busy = _batched(world.samples.used[0][settle : settle + seconds])
    length = seconds / BATCHES
    return estimate(
        latencies / (per_second * length),
        offered / (per_second * length) - 1.0,
        busy / (load * length) - 1.0,
    )


def _batched(figures: list[float]) -> Floats:
    return np.asarray(np.array(figures).reshape(BATCHES, -1).sum(axis=1))


def assert_within_two_percent(found: Estimate, expected: float) -> None:
    assert 4.0 * found.error <= 0.02 * expected, (found, expected)
    assert abs(found.mean - expected) <= 0.02 * expected, (found, expected)


# What so many requests are good for was computed beforehand, from the Markov chain (the solution of
# its Poisson equation): with both controls, 2 % are 4 standard errors after 21,000 requests for
# M/M/4 at 0.5, 207,000 at 0.7, 1,770,000 at 0.85, and 49,000 for M/M/1 at 0.3.


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        (0.5, 50_000),
        (0.7, 320_000),
        # 40 CPU seconds; the tests of every day go the other way round, below.
        pytest.param(0.85, 2_400_000, marks=pytest.mark.acceptance),
    ],
)
def test_four_cores_wait_as_erlang_says(load: float, requests: int) -> None:
    found = simulated(4, load, "exponential", requests)

    assert_within_two_percent(found, erlang_c_mean(4, load, MEAN_SECONDS))


def test_one_core_waits_as_erlang_and_pollaczek_and_khinchine_say() -> None:
    expected = erlang_c_mean(1, 0.3, MEAN_SECONDS)
    assert expected == pytest.approx(MEAN_SECONDS / 0.7)  # M/M/1: 1 / (μ − λ)
    assert expected == pytest.approx(pollaczek_khinchine_mean(0.3, MEAN_SECONDS, variation=1.0))

    found = simulated(1, 0.3, "exponential", 100_000)
    assert_within_two_percent(found, expected)


def test_constant_costs_wait_as_pollaczek_and_khinchine_say() -> None:
    # M/D/1: half of the waiting of M/M/1.
    expected = pollaczek_khinchine_mean(0.5, MEAN_SECONDS, variation=0.0)

    found = simulated(1, 0.5, "constant", 80_000)
    assert_within_two_percent(found, expected)


def test_the_recursion_waits_as_erlang_says_near_capacity() -> None:
    # What takes too long for the simulator: that it equals the recursion is in `test_process.py`,
    # where thousands of requests at this load end when the recursion says.
    rng = np.random.default_rng(SEED)
    count = 2_500_000
    gaps = rng.exponential(1.0 / (4 * 0.85), count)
    costs = rng.exponential(1.0, count)
    arrivals = np.cumsum(gaps)
    ends = np.fromiter(completions(zip(arrivals.tolist(), costs.tolist(), strict=True), 4), float)

    def means(figures: Floats) -> Floats:
        return np.asarray(figures.reshape(BATCHES, -1).mean(axis=1))

    found = estimate(means(ends - arrivals), means(gaps) * 4 * 0.85 - 1.0, means(costs) - 1.0)
    assert_within_two_percent(found, erlang_c_mean(4, 0.85, 1.0))
