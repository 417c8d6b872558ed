"""The policies by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, final

from evenly.core.balancing.policies.least_loaded import LeastLoaded
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.policies.power_of_two import PowerOfTwo
from evenly.core.balancing.policies.prequal import Prequal, PrequalConfig
from evenly.core.balancing.policies.probing import Probing, ProbingConfig
from evenly.core.balancing.policies.random_choice import RandomChoice
from evenly.core.balancing.policies.round_robin import RoundRobin
from evenly.core.balancing.policies.weighted_least_loaded import WeightedLeastLoaded
from evenly.core.balancing.policies.weighted_round_robin import WeightedRoundRobin
from evenly.core.balancing.weights import WeightConfig
from evenly.errors import ConfigError

__all__ = ["POLICIES", "PolicyConfig", "make_policy"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Choose a policy and set its parameters."""

    name: str = "probing"
    weights: WeightConfig = field(default_factory=WeightConfig)
    probing: ProbingConfig = field(default_factory=ProbingConfig)
    prequal: PrequalConfig = field(default_factory=PrequalConfig)

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, not {self.name!r}")


def make_policy(config: PolicyConfig, *, rng: random.Random, now: float) -> Policy:
    """Return a new policy without backends."""
    return _MAKERS[config.name](config, rng, now)


def _probing(config: PolicyConfig, rng: random.Random, now: float) -> Policy:
    # Its newcomers are held back by the trim; a slow start on top would count twice.
    weights = replace(config.weights, slow_start_seconds=0.0)
    return Probing(config.probing, weight_config=weights, rng=rng, now=now)


_MAKERS: Final[dict[str, Callable[[PolicyConfig, random.Random, float], Policy]]] = {
    "random": lambda _config, rng, _now: RandomChoice(rng=rng),
    "round_robin": lambda _config, _rng, _now: RoundRobin(),
    "least_loaded": lambda _config, _rng, _now: LeastLoaded(),
    "weighted_round_robin": lambda config, rng, _now: WeightedRoundRobin(config.weights, rng=rng),
    "weighted_least_loaded": lambda config, rng, _now: WeightedLeastLoaded(config.weights, rng=rng),
    "power_of_two": lambda _config, rng, _now: PowerOfTwo(rng=rng),
    "prequal": lambda config, rng, _now: Prequal(config.prequal, rng=rng),
    "probing": _probing,
}
POLICIES: Final = tuple(_MAKERS)
