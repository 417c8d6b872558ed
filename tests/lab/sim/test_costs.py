"""What requests cost: the mean that was asked for, the shape that was asked for, by seed."""

from __future__ import annotations

import math
import random

import pytest

from evenly.lab.sim.costs import cost_drawer
from evenly.lab.sim.service import RequestCostConfig

SEED = 1
DRAWS = 100_000
ALMOST_ONE = 1.0 - 2.0**-53  # The most that random() returns.


class Fixed(random.Random):
    """Draw the same number every time."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


def drawn(config: RequestCostConfig, seed: int = SEED, count: int = DRAWS) -> list[float]:
    draw = cost_drawer(config, random.Random(seed))
    return [draw() for _ in range(count)]


def pareto(shape: float, spread: float) -> RequestCostConfig:
    return RequestCostConfig(kind="bounded_pareto", mean_seconds=0.02, shape=shape, spread=spread)


def pareto_moment(power: float, shape: float, spread: float) -> float:
    """Return E[(x / low)^power], from the density shape · x^(-shape-1) / (1 - spread^-shape)."""
    tail = 1.0 - math.pow(spread, -shape)
    if power == shape:
        return shape * math.log(spread) / tail
    return shape / (shape - power) * (1.0 - math.pow(spread, power - shape)) / tail


def pareto_low(config: RequestCostConfig) -> float:
    return config.mean_seconds / pareto_moment(1.0, config.shape, config.spread)


@pytest.mark.parametrize(
    ("config", "deviation"),
    [
        pytest.param(
            RequestCostConfig(kind="exponential", mean_seconds=0.02), 1.0, id="exponential"
        ),
        # The variance of exp(N(mu, sigma)) is (exp(sigma^2) - 1) · mean^2.
        pytest.param(
            RequestCostConfig(kind="lognormal", mean_seconds=0.02, sigma=0.5),
            math.sqrt(math.expm1(0.25)),
            id="lognormal",
        ),
        *(
            pytest.param(
                pareto(shape, spread),
                math.sqrt(
                    pareto_moment(2.0, shape, spread) / pareto_moment(1.0, shape, spread) ** 2 - 1.0
                ),
                id=f"bounded pareto, shape {shape}",
            )
            for shape, spread in ((0.5, 100.0), (1.0, 100.0), (1.5, 1000.0), (2.0, 1000.0))
        ),
    ],
)
def test_costs_have_the_mean_that_was_asked_for(
    config: RequestCostConfig, deviation: float
) -> None:
    costs = drawn(config)

    # The mean of n draws has the standard deviation `deviation` / sqrt(n), in means: 4 of them.
    tolerance = 4.0 * deviation / math.sqrt(DRAWS)
    assert math.fsum(costs) / DRAWS == pytest.approx(0.02, rel=tolerance)
    assert min(costs) > 0.0


def test_constant_costs_are_all_the_same() -> None:
    assert set(drawn(RequestCostConfig(kind="constant", mean_seconds=0.02), count=100)) == {0.02}


@pytest.mark.parametrize("shape", [0.5, 1.0, 1.5, 3.0])
def test_bounded_pareto_costs_lie_between_their_bounds_and_reach_them(shape: float) -> None:
    config = pareto(shape, 100.0)
    low = pareto_low(config)

    costs = drawn(config, count=10_000)

    assert low <= min(costs)
    assert max(costs) <= 100.0 * low * (1.0 + 1e-9)
    assert cost_drawer(config, Fixed(0.0))() == pytest.approx(low)
    assert cost_drawer(config, Fixed(ALMOST_ONE))() == pytest.approx(100.0 * low)


@pytest.mark.parametrize(
    ("config", "median"),
    [
        pytest.param(
            RequestCostConfig(kind="exponential", mean_seconds=2.0), 2.0 * math.log(2.0), id="ex"
        ),
        # 1 - (low / x)^shape = (1 - spread^-shape) / 2: for shape 1 and spread 3, x = 1.5 low.
        pytest.param(pareto(1.0, 3.0), 1.5 * 0.02 / (math.log(3.0) / (2.0 / 3.0)), id="pareto"),
    ],
)
def test_the_median_is_that_of_the_distribution(config: RequestCostConfig, median: float) -> None:
    assert cost_drawer(config, Fixed(0.5))() == pytest.approx(median)


def test_the_logarithm_of_lognormal_costs_has_the_deviation_that_was_asked_for() -> None:
    logs = [math.log(cost) for cost in drawn(RequestCostConfig(kind="lognormal", sigma=0.5))]
    mean = math.fsum(logs) / DRAWS

    # The variance of n normal draws has a relative standard deviation of sqrt(2 / n): 4 of them.
    variance = math.fsum((log - mean) ** 2 for log in logs) / DRAWS
    assert variance == pytest.approx(0.25, rel=4.0 * math.sqrt(2.0 / DRAWS))


@pytest.mark.parametrize("kind", ["exponential", "lognormal", "bounded_pareto"])
def test_costs_follow_from_the_seed(kind: str) -> None:
    config = RequestCostConfig(kind=kind)  # type: ignore[arg-type]

    assert drawn(config, seed=1, count=10) == drawn(config, seed=1, count=10)
    assert drawn(config, seed=1, count=10) != drawn(config, seed=2, count=10)
