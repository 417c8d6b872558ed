"""Draw numbers as people write them: with few digits, over many orders of magnitude."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar, final

__all__ = ["Luck"]

T = TypeVar("T")

# What few digits cost is a scenario that can be read; 3 leave steps of at most 1 %.
_DIGITS = 3


@final
class Luck:
    """Draw from one generator."""

    __slots__ = ("_rng",)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._rng.random() < probability

    def whole(self, low: int, high: int) -> int:
        """Return a whole number in [low, high], each as likely."""
        return self._rng.randint(low, high)

    def size(self, low: int, high: int) -> int:
        """Return a whole number in [low, high], small ones more often: 1 as often as 2 and 3."""
        return min(high, int(self.magnitude(low, high + 1)))

    def number(self, low: float, high: float) -> float:
        """Return a number between the two, evenly."""
        return _short(self._rng.uniform(low, high), low, high)

    def magnitude(self, low: float, high: float) -> float:
        """Return a number between the two, evenly by its logarithm."""
        drawn = math.exp(self._rng.uniform(math.log(low), math.log(high)))
        return _short(drawn, low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of these."""
        return self._rng.choice(choices)

    def some_of(self, choices: Sequence[T], count: int) -> list[T]:
        """Return so many of these, in a random order."""
        return self._rng.sample(choices, count)


def _short(value: float, low: float, high: float) -> float:
    rounded = float(f"{value:.{_DIGITS}g}")
    return min(max(rounded, low), high)
