"""List the figures that people read of runs, once: the terminal and the page only format them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, final

from evenly.core.criticality import Criticality
from evenly.lab.sim.result import Result

__all__ = [
    "CPU_SPREAD",
    "ERRORS",
    "GOODPUT",
    "P99",
    "FigureGroups",
    "Reading",
    "RowFigure",
    "Unit",
    "customer_figures",
    "figure_groups",
    "said_percent",
]

Unit: TypeAlias = Literal["percent", "seconds", "tenths", "count", "ratio", "each"]
"""`tenths` are seconds to one decimal; `each` is so many per request."""

_SHORT_NAMES: Final = {
    Criticality.CRITICAL_PLUS.name: "C+",
    Criticality.CRITICAL.name: "C",
    Criticality.SHEDDABLE_PLUS.name: "S+",
    Criticality.SHEDDABLE.name: "S",
}


@final
class Reading(NamedTuple):
    """Be what one figure says of a run, or of several."""

    value: float | None
    """`None` if there was nothing to measure."""
    is_more: bool = False
    """Whether it is more than that: the run ended before anyone could see how much more."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigure:
    """Say what one figure is called, how it is read of a run, and how of several seeds."""

    title: str
    heading: str
    """The same for a column that is no wider than its figures."""
    unit: Unit
    of: Callable[[Result], float | None]
    worst: Literal["highest", "lowest"] = "highest"
    is_more: Callable[[Result], bool] = lambda _: False
    is_missing_left_out: bool = False
    """Whether a run that has no such figure says nothing; otherwise it counts as the worst."""

    def ordered(self, results: Sequence[Result]) -> list[Reading]:
        """Return the readings that count, from the lowest to the highest.

        What could not be measured is at the bad end: to leave it out would flatter.
        """
        readings = [self._reading(result) for result in results]
        if self.is_missing_left_out:
            readings = [reading for reading in readings if reading.value is not None]
        missing = math.inf if self.worst == "highest" else -math.inf
        return sorted(
            readings,
            key=lambda one: (one.is_more, missing if one.value is None else one.value),
        )

    def median(self, results: Sequence[Result]) -> Reading:
        """Return the median; half way between two is missing or open if one of them is."""
        ordered = self.ordered(results)
        if not ordered:
            return Reading(None)
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        if low.value is None or high.value is None:
            return Reading(None)
        return Reading(low.value + (high.value - low.value) / 2.0, low.is_more or high.is_more)

    def is_measured(self, results: Iterable[Result]) -> bool:
        """Whether any run has it."""
        return any(self._reading(result).value is not None for result in results)

    def _reading(self, result: Result) -> Reading:
        value = self.of(result)
        if value is None or not math.isfinite(value):
            return Reading(None)
        return Reading(value, self.is_more(result))


@final
class FigureGroups(NamedTuple):
    """Hold figures that are read together, together."""

    balance: tuple[RowFigure, ...]
    success: tuple[RowFigure, ...]
    effort: tuple[RowFigure, ...]
    cost: tuple[RowFigure, ...]
    """What simulating it took."""


GOODPUT: Final = RowFigure(
    title="Goodput, of what was possible",
    heading="goodput",
    unit="percent",
    of=lambda result: result.row.goodput_ratio,
    worst="lowest",
)
ERRORS: Final = RowFigure(
    title="Requests that did not succeed",
    heading="errors",
    unit="percent",
    of=lambda result: result.row.errors_ratio,
)
P99: Final = RowFigure(
    title="Latency p99",
    heading="p99\nms",
    unit="seconds",
    of=lambda result: result.row.p99_seconds,
)
CPU_SPREAD: Final = RowFigure(
    title="CPU p95 / p5 of backends",
    heading="CPU\np95/p5",
    unit="ratio",
    of=lambda result: result.row.cpu_p95_over_p5,
)
_BALANCE: Final = (
    RowFigure(
        title="Latency p50",
        heading="p50\nms",
        unit="seconds",
        of=lambda result: result.row.p50_seconds,
    ),
    P99,
    RowFigure(
        title="p99 over that of omniscient",
        heading="p99\n/ideal",
        unit="ratio",
        of=lambda result: result.row.p99_over_ideal,
    ),
    CPU_SPREAD,
    RowFigure(
        title="CPU max / min of backends",
        heading="CPU\nmax/min",
        unit="ratio",
        of=lambda result: result.row.cpu_max_over_min,
    ),
    RowFigure(
        title="Wasted capacity",
        heading="CPU\nwasted",
        unit="percent",
        of=lambda result: result.row.wasted_ratio,
    ),
)
_CLIENT_GAP: Final = RowFigure(
    title="Most by which client tasks that send seldom and often differ in success",
    heading="seldom\n/often",
    unit="percent",
    of=lambda result: max(
        (
            abs(success["seldom"] - success["often"])
            for success in result.row.success_by_client_rate.values()
        ),
        default=None,
    ),
)
_EFFORT: Final = (
    RowFigure(
        title="Attempts per request",
        heading="attempts\n/request",
        unit="each",
        of=lambda result: result.row.attempts_per_request,
    ),
    RowFigure(
        title="Probes per request",
        heading="probes\n/request",
        unit="each",
        of=lambda result: result.row.probes_per_request,
    ),
    RowFigure(
        title="Recovery (>: not by the end)",
        heading="recovery\ns",
        unit="tenths",
        of=lambda result: result.row.recovery_seconds,
        is_more=lambda result: not result.series.has_recovered,
        is_missing_left_out=True,  # There was nothing to recover from.
    ),
)
_COST: Final = (
    RowFigure(
        title="Requests simulated",
        heading="requests",
        unit="count",
        of=lambda result: result.row.requests,
    ),
    RowFigure(
        title="CPU time spent simulating",
        heading="CPU\nspent",
        unit="seconds",
        of=lambda result: result.row.cpu_seconds_spent,
    ),
)


def figure_groups(results: Sequence[Result]) -> FigureGroups:
    """Return all figures but the customers'; which criticalities there are, the results say."""
    successes = (GOODPUT, ERRORS, *_successes(results), *_users(results), _CLIENT_GAP)
    return FigureGroups(_BALANCE, successes, _EFFORT, _COST)


def customer_figures(results: Sequence[Result]) -> list[RowFigure]:
    """Return the success of each customer; none unless there are several."""
    names = dict.fromkeys(name for one in results for name in one.series.success_by_customer)

    def success(name: str) -> RowFigure:
        return RowFigure(
            title=f"Success, customer {name}",
            heading=name,
            unit="percent",
            of=lambda result: result.series.success_by_customer.get(name),
            worst="lowest",
        )

    return [success(name) for name in names]


def said_percent(ratio: float) -> str:
    """Return hundredths of a percent, where only all is 100% and only nothing is 0%."""
    if 0.0 < ratio < 0.00005:
        return "<0.01%"
    if 0.99995 <= ratio < 1.0:
        return ">99.99%"
    return f"{ratio:.2%}"


def _successes(results: Sequence[Result]) -> list[RowFigure]:
    """Return a figure for each criticality, the highest first, if there are several."""
    sent = {name for result in results for name in result.row.success_by_criticality}
    present = [name for name in _SHORT_NAMES if name in sent]

    def success(name: str) -> RowFigure:
        return RowFigure(
            title=f"Success, {name}",
            heading=f"{_SHORT_NAMES[name]}\nsuccess",
            unit="percent",
            of=lambda result: result.row.success_by_criticality.get(name),
            worst="lowest",
        )

    return [success(name) for name in present] if len(present) > 1 else []


def _users(results: Sequence[Result]) -> list[RowFigure]:
    """Return a figure for the users of each criticality, where a user makes several calls."""
    sent = {name for result in results for name in result.row.users_by_criticality}

    def served(name: str) -> RowFigure:
        return RowFigure(
            title=f"Users wholly served, {name}",
            heading=f"{_SHORT_NAMES[name]}\nusers",
            unit="percent",
            of=lambda result: result.row.users_by_criticality.get(name),
            worst="lowest",
        )

    return [served(name) for name in _SHORT_NAMES if name in sent]
