"""Draw what requests cost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from evenly.lab.sim.service import RequestCostConfig

__all__ = ["Draw", "cost_drawer"]

Draw = Callable[[], float]


def cost_drawer(config: RequestCostConfig, rng: random.Random) -> Draw:
    """Return a function that draws costs in CPU seconds, with the mean that was asked for."""
    return _DRAWERS[config.kind](config, rng)


def _constant(config: RequestCostConfig, _rng: random.Random) -> Draw:
    seconds = config.mean_seconds
    return lambda: seconds


def _exponential(config: RequestCostConfig, rng: random.Random) -> Draw:
    mean = config.mean_seconds
    uniform = rng.random
    log = math.log
    return lambda: -mean * log(1.0 - uniform())


def _lognormal(config: RequestCostConfig, rng: random.Random) -> Draw:
    # The mean of exp(N(mu, sigma)) is exp(mu + sigma^2 / 2).
    mu = math.log(config.mean_seconds) - config.sigma**2 / 2.0
    sigma = config.sigma
    normal = rng.normalvariate
    return lambda: math.exp(normal(mu, sigma))


def _bounded_pareto(config: RequestCostConfig, rng: random.Random) -> Draw:
    """Invert F(x) = (1 - (low/x)^shape) / (1 - spread^-shape) for low <= x <= spread * low."""
    shape = config.shape
    tail = 1.0 - config.spread**-shape
    if shape == 1.0:
        mean = math.log(config.spread) / tail
    else:
        mean = shape / (shape - 1.0) * (1.0 - config.spread ** (1.0 - shape)) / tail
    low = config.mean_seconds / mean
    uniform = rng.random
    power = -1.0 / shape
    return lambda: low * (1.0 - tail * uniform()) ** power


_DRAWERS: Final[dict[str, Callable[[RequestCostConfig, random.Random], Draw]]] = {
    "constant": _constant,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "bounded_pareto": _bounded_pareto,
}
