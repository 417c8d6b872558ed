"""What the tests of balancing make their backends of."""

from __future__ import annotations

import random

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig

START = 1_000.0


class Draws(random.Random):
    """Give these numbers in turn."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self._numbers = list(numbers)

    def random(self) -> float:
        return self._numbers.pop(0)


def new_view(name: str) -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    return BackendView(Backend(name), health, error_decay_seconds=5.0, now=START)
