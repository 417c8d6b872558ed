"""The throttles by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from evenly.core.overload.adaptive_throttle import AdaptiveThrottle, AdaptiveThrottleConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottle, ResponsiveThrottleConfig
from evenly.core.overload.throttle import NoThrottle, Throttle
from evenly.errors import ConfigError

__all__ = ["THROTTLES", "ThrottleConfig", "make_throttle"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleConfig:
    """Choose a throttle and set its parameters."""

    name: str = "responsive"
    responsive: ResponsiveThrottleConfig = field(default_factory=ResponsiveThrottleConfig)
    adaptive: AdaptiveThrottleConfig = field(default_factory=AdaptiveThrottleConfig)

    def __post_init__(self) -> None:
        if self.name not in THROTTLES:
            raise ConfigError(f"throttle must be one of {', '.join(THROTTLES)}, not {self.name!r}")


def make_throttle(config: ThrottleConfig, *, rng: random.Random, now: float) -> Throttle:
    """Return a new throttle that has seen nothing yet."""
    return _MAKERS[config.name](config, rng, now)


_MAKERS: Final[dict[str, Callable[[ThrottleConfig, random.Random, float], Throttle]]] = {
    "responsive": lambda config, rng, now: ResponsiveThrottle(config.responsive, rng=rng, now=now),
    "adaptive": lambda config, rng, _now: AdaptiveThrottle(config.adaptive, rng=rng),
    "off": lambda _config, _rng, _now: NoThrottle(),
}
THROTTLES: Final = tuple(_MAKERS)
