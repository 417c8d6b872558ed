"""Sample the CPU of every backend once a second, and see how even it is.

SRE book, chapter 20: "in the case of a large spread, we are wasting the sum of the differences in
the CPU from any task to CPU[0]", the most loaded one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from evenly.lab.sim.events import Events
from evenly.lab.sim.machine import Machine

__all__ = ["CpuSamples", "Evenness", "evenness", "quantile"]

_WINDOW = 10


class Evenness(NamedTuple):
    """Say how evenly CPU is used; a ratio to nothing is `None`."""

    p95_over_p5: float | None
    max_over_min: float | None
    wasted_ratio: float | None


@final
class CpuSamples:
    """Keep the CPU of every machine, second by second."""

    def __init__(self, events: Events, machines: Sequence[Machine]) -> None:
        self._events = events
        self._machines = machines
        self._before = [0.0] * len(machines)
        self.used: list[list[float]] = [[] for _ in machines]
        """Busy cores over cores, by machine and second."""
        self._healthy_since: list[list[float]] = [[] for _ in machines]
        self._events.at(1.0, self._sample)

    def _sample(self) -> None:
        for place, machine in enumerate(self._machines):
            busy = machine.busy_seconds()
            self.used[place].append((busy - self._before[place]) / machine.config.cores)
            self._before[place] = busy
            self._healthy_since[place].append(machine.healthy_since())
        self._events.at(len(self.used[0]) + 1.0, self._sample)

    def over(self, begin: int, end: int) -> Evenness | None:
        """Return the evenness over these seconds, of the backends healthy throughout."""
        seconds = end - begin
        means = [
            math.fsum(used[begin:end]) / seconds
            for used, since in zip(self.used, self._healthy_since, strict=True)
            if len(used) >= end and all(instant <= begin for instant in since[begin:end])
        ]
        return evenness(means)

    def windows(self, begin: int, end: int) -> Evenness | None:
        """Return the median evenness of windows of 10 s, or of the whole if it is shorter."""
        starts = range(begin, end - _WINDOW + 1, _WINDOW)
        spans = [(start, start + _WINDOW) for start in starts] or [(begin, end)]
        found = [each for each in (self.over(*span) for span in spans if span[1] > span[0]) if each]
        if not found:
            return None
        return Evenness(*(_median(figures) for figures in zip(*found, strict=True)))


def evenness(cpu: Sequence[float]) -> Evenness | None:
    """Return how even these are, or `None` if there is nothing to compare."""
    if len(cpu) < 2:
        return None
    ordered = sorted(cpu)
    least, most = ordered[0], ordered[-1]
    low = quantile(ordered, 0.05)
    wasted = math.fsum(most - used for used in ordered)
    return Evenness(
        p95_over_p5=quantile(ordered, 0.95) / low if low > 0.0 else None,
        max_over_min=most / least if least > 0.0 else None,
        wasted_ratio=wasted / (len(ordered) * most) if most > 0.0 else None,
    )


def _median(figures: Sequence[float | None]) -> float | None:
    """Return the median; what could not be measured is worse than anything that could."""
    known = sorted(figure for figure in figures if figure is not None)
    place = len(figures) // 2
    return known[place] if place < len(known) else None


def quantile(ordered: Sequence[float], ratio: float) -> float:
    """Return a quantile of an ordered sequence, between its two nearest values."""
    place = ratio * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
