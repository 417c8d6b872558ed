"""Say what is read of the rows of a simulation, and in which units people read it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

from evenly.core.criticality import Criticality
from evenly.sim.result import Row

__all__ = ["Figure", "measured_figures"]

_SHORT_NAMES = {
    Criticality.CRITICAL_PLUS: "C+",
    Criticality.CRITICAL: "C",
    Criticality.SHEDDABLE_PLUS: "S+",
    Criticality.SHEDDABLE: "S",
}
_NOTHING = "-"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Say what one column of figures reads of a row, and in which unit it is written."""

    heading: str
    of: Callable[[Row], float | None]
    unit: Literal["ms", "%", "s", "ratio", "per request"]
    worst: float = math.inf

    def cells(self, lines: Sequence[Sequence[Row]]) -> list[str]:
        """Return what to write for each line: the figure of its row, or the median of its rows."""
        values = [self._median(line) for line in lines]
        if self.unit == "ms":
            return _milliseconds(values)
        write = _WRITERS[self.unit]
        return [_NOTHING if value is None else write(value) for value in values]

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Whether any row has it."""
        return any(self.of(row) is not None for row in rows)

    def _median(self, rows: Sequence[Row]) -> float | None:
        # What could not be measured counts as the worst: nothing succeeded, or it did not recover.
        # To leave it out would flatter.
        figures = [self.of(row) for row in rows]
        median = statistics.median(self.worst if value is None else value for value in figures)
        return median if math.isfinite(median) else None


def measured_figures(rows: Sequence[Row]) -> list[list[Figure]]:
    """Return the figures that any row has, in groups that are read together."""
    balance = [
        Figure(heading="p50\nms", of=lambda row: row.p50_seconds, unit="ms"),
        Figure(heading="p99\nms", of=lambda row: row.p99_seconds, unit="ms"),
        Figure(heading="p99\n/ideal", of=lambda row: row.p99_over_ideal, unit="ratio"),
        Figure(heading="CPU\np95/p5", of=lambda row: row.cpu_p95_over_p5, unit="ratio"),
        Figure(heading="CPU\nmax/min", of=lambda row: row.cpu_max_over_min, unit="ratio"),
        Figure(heading="CPU\nwasted", of=lambda row: row.wasted_ratio, unit="%"),
    ]
    success = [
        Figure(heading="goodput", of=lambda row: row.goodput_ratio, unit="%"),
        Figure(heading="errors", of=lambda row: row.errors_ratio, unit="%"),
        *_successes(rows),
    ]
    effort = [
        Figure(
            heading="attempts\n/request",
            of=lambda row: row.attempts_per_request,
            unit="per request",
        ),
        Figure(
            heading="probes\n/request", of=lambda row: row.probes_per_request, unit="per request"
        ),
        Figure(heading="recovery\ns", of=lambda row: row.recovery_seconds, unit="s"),
    ]
    return [
        [figure for figure in group if figure.is_measured(rows)]
        for group in (balance, success, effort)
    ]


def _successes(rows: Sequence[Row]) -> Iterator[Figure]:
    """Yield a figure for each criticality, the highest first, if there are several."""
    present = [
        criticality
        for criticality in _SHORT_NAMES
        if any(criticality.name in row.success_by_criticality for row in rows)
    ]
    if len(present) > 1:
        for criticality in present:

            def success(row: Row, name: str = criticality.name) -> float | None:
                return row.success_by_criticality.get(name)

            heading = f"{_SHORT_NAMES[criticality]}\nsuccess"
            yield Figure(heading=heading, of=success, unit="%", worst=-math.inf)


def _milliseconds(values: Sequence[float | None]) -> list[str]:
    """Write all with the same decimals, so that the points stand below one another."""
    largest = max((value for value in values if value is not None), default=0.0)
    decimals = 2 if largest < 0.1 else 1
    return [_NOTHING if value is None else f"{value * 1000:.{decimals}f}" for value in values]


def _percent(ratio: float) -> str:
    # Something lost is not nothing, and nearly all is not all.
    if 0.0 < ratio < 0.00005:
        return "<0.01%"
    if 0.99995 <= ratio < 1.0:
        return ">99.99%"
    return f"{ratio:.2%}"


_WRITERS: dict[str, Callable[[float], str]] = {
    "%": _percent,
    "s": "{:.1f}".format,
    "ratio": "{:.2f}".format,
    "per request": "{:.3f}".format,
}
