"""Make long series short: fewer points, fewer digits, quantiles in place of a thousand backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

__all__ = [
    "Values",
    "known",
    "mean_of",
    "per",
    "points_step",
    "short",
    "worst_of",
]

Values: TypeAlias = list[float | None]
_T = TypeVar("_T")

# A panel is at most some 1,300 pixels wide: more points than half of that cannot be told apart.
_MOST_POINTS = 600


def points_step(seconds: int) -> int:
    """Return how many seconds one point of a chart sums up."""
    return max(1, -(-seconds // _MOST_POINTS))


def mean_of(values: Sequence[float | None], step: int) -> Values:
    """Return the mean of every `step` values; what is `None` is left out."""
    return [
        math.fsum(group) / len(group) if group else None
        for group in map(known, _grouped(values, step))
    ]


def worst_of(values: Sequence[float | None], step: int) -> Values:
    """Return the highest of every `step` values: a mean would hide a bad second."""
    return [max(group, default=None) for group in map(known, _grouped(values, step))]


def per(numerators: Sequence[float], denominators: Sequence[float], step: int) -> Values:
    """Return sums over sums for every `step` values; `None` where there is nothing to divide by."""
    groups = zip(_grouped(numerators, step), _grouped(denominators, step), strict=True)
    return [sum(above) / sum(below) if sum(below) > 0 else None for above, below in groups]


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are there, and finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


def short(value: float | None) -> float | None:
    """Return four significant digits, which is more than a chart can show; `None` if not finite.

    Near 1 they are six, and less than 1 stays less: a success of 99.997% is not one of 100%.
    """
    if value is None or not math.isfinite(value):
        return None
    if 0.99 <= value < 1.0:
        return min(float(f"{value:.6f}"), 0.999999)
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _grouped(values: Sequence[_T], step: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), step):
        yield values[start : start + step]
