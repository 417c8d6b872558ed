"""Time things against an empty method call, in turns, so that a noisy moment hits both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Case", "Row", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Name something to time: what `prepare` returns does it n times, from a fresh start."""

    what: str
    prepare: Callable[[], Callable[[int], None]]
    bound: float | None = None
    """The most empty method calls that it may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    nanoseconds: float
    ratio: float
    """Median over the rounds of (its time / the empty call's time in the same round)."""
    bound: float | None

    @property
    def is_missed(self) -> bool:
        return self.bound is not None and self.ratio > self.bound

    def as_json(self) -> dict[str, object]:
        return {
            "what": self.what,
            "nanoseconds": round(self.nanoseconds, 1),
            "empty_calls": round(self.ratio, 2),
            "bound": self.bound,
        }


class _Empty:
    def call(self, now: float) -> None:
        pass


def _run_empty(count: int) -> None:
    call = _Empty().call
    for _ in range(count):
        call(0.0)


def compare(cases: Sequence[Case], *, rounds: int, count: int = 4000) -> list[Row]:
    """Measure every case and the empty call once per round."""
    times: dict[str, list[float]] = {case.what: [] for case in cases}
    ratios: dict[str, list[float]] = {case.what: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            run = case.prepare()
            run(100)  # Warm up.
            gc.collect()
            empty = _seconds(_run_empty, count)
            seconds = _seconds(run, count)
            times[case.what].append(seconds / count * 1e9)
            ratios[case.what].append(seconds / empty)
    return [
        Row(
            what=case.what,
            nanoseconds=statistics.median(times[case.what]),
            ratio=statistics.median(ratios[case.what]),
            bound=case.bound,
        )
        for case in cases
    ]


def _seconds(run: Callable[[int], None], count: int) -> float:
    started = time.perf_counter()
    run(count)
    return time.perf_counter() - started
