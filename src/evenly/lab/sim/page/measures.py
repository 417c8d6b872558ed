"""List what the page draws over time, and say of each picture what a good one looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from evenly.core.criticality import Criticality
from evenly.lab.sim.page.numbers import Values, mean_of, per, worst_of
from evenly.lab.sim.result import Series
from evenly.lab.sim.row_figures import Unit

__all__ = ["CPU", "LOADS", "Figure", "Measure", "figures_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Take one line per policy from the series: it is drawn in a panel of its own."""

    title: str
    unit: Unit
    values: Callable[[Series, int], Values]
    """From the series, with so many seconds to a point."""
    scale: Literal["linear", "log", "log1p"] = "linear"
    """`log` and `log1p` (which has a zero) are used where values span more than 20 times."""
    floor: float = 0.0
    """Where a linear axis begins."""
    top: float = 0.0
    """How far an axis reaches at least."""
    is_high_bad: bool = True
    beside: Callable[[Series, int], Values] | None = None
    """A second line to hold the first against; dashed."""
    beside_title: str = ""
    mark: Callable[[Series], float] | None = None
    """A level to hold the lines against."""
    mark_title: str = ""
    has_omniscient: bool = True
    """False where it would look like a limit and is none: it does not even out CPU."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Put panels under one heading, with one sentence that says how to read them."""

    key: str
    title: str
    good: str
    key_to_lines: str = ""
    """What lines and areas stand for, where the legend does not say it."""
    measures: tuple[Measure, ...] = ()


CPU: Final = Figure(
    key="cpu",
    title="CPU of every backend",
    good="all backends lie in one narrow band, and none is far above the others: the most loaded "
    "backend is the first to fail, and the others cannot help it.",
    key_to_lines="Thin lines are backends, the thick line is their median, and the band holds p5 "
    "to p95.  Where that would be too many lines, there is a second band from p25 to p75, and the "
    "thin lines are the most and the least loaded.",
)
LOADS: Final = Figure(
    key="loads",
    title="All loads",
    good="goodput stays at 100% and p99 stays flat as the load rises to 1; beyond that, goodput "
    "stays where it is.  Medians over the seeds.",
)


def figures_of(series: Sequence[Series]) -> tuple[Figure, ...]:
    """Return the figures that compare policies; only criticalities that were sent have a panel."""
    known = [name for one in series for name, counts in one.offered.items() if any(counts)]
    order = [criticality.name for criticality in sorted(Criticality, reverse=True)]
    others = sorted(set(known).difference(order))
    present = [name for name in (*order, *others) if name in known]
    success = (_success(present),) if present else ()
    return (*_BALANCE, *success, *_EFFORT)


def _offered(series: Series) -> list[int]:
    return _total(series.offered, len(series.attempts))


def _succeeded(series: Series) -> list[int]:
    return _total(series.succeeded, len(series.attempts))


def _total(counts: Mapping[str, Sequence[int]], seconds: int) -> list[int]:
    return [sum(one[second] for one in counts.values()) for second in range(seconds)]


def _success(criticalities: Sequence[str]) -> Figure:
    def measure(name: str) -> Measure:
        def values(series: Series, step: int) -> Values:
            offered = series.offered.get(name, ())
            return per(series.succeeded.get(name, (0,) * len(offered)), offered, step)

        return Measure(title=name, unit="percent", values=values, top=1.0, is_high_bad=False)

    return Figure(
        key="success",
        title="Success by criticality",
        good="100%.  Under overload the lower criticalities give way, SHEDDABLE first, and "
        "CRITICAL_PLUS last or not at all.",
        measures=tuple(measure(name) for name in criticalities),
    )


_BALANCE: Final = (
    Figure(
        key="spread",
        title="Spread: CPU p95 over p5",
        good="close to 1 and flat.  At 1 every backend works as hard as every other.",
        measures=(
            Measure(
                title="p95 / p5 of the CPU of healthy backends",
                unit="ratio",
                values=lambda series, step: mean_of(series.spread, step),
                scale="log",
                floor=1.0,
                has_omniscient=False,
            ),
        ),
    ),
    Figure(
        key="wasted",
        title="Wasted capacity",
        good="close to 0%.  It is what is paid for and cannot be used, because no backend may be "
        "loaded more than the most loaded one: Σ(CPU[0] − CPU[i]) over n · CPU[0].",
        measures=(
            Measure(
                title="idle beside the most loaded backend",
                unit="percent",
                values=lambda series, step: mean_of(series.wasted_ratio, step),
                has_omniscient=False,
            ),
        ),
    ),
    Figure(
        key="latency",
        title="Latency of requests that succeeded",
        good="low and flat, with p99 a small multiple of p50; below capacity, close to omniscient "
        "where it is shown.",
        measures=(
            Measure(
                title="p50",
                unit="seconds",
                values=lambda series, step: worst_of(series.p50_seconds, step),
                scale="log",
            ),
            Measure(
                title="p99",
                unit="seconds",
                values=lambda series, step: worst_of(series.p99_seconds, step),
                scale="log",
            ),
        ),
    ),
    Figure(
        key="throughput",
        title="Offered and succeeded",
        good="succeeded covers offered up to the capacity line, and stays at that line when more "
        "is offered.",
        key_to_lines="Thick: succeeded.  Thin, with short dashes: offered.",
        measures=(
            Measure(
                title="requests per second that succeeded",
                unit="count",
                values=lambda series, step: mean_of(_succeeded(series), step),
                is_high_bad=False,
                beside=lambda series, step: mean_of(_offered(series), step),
                beside_title="offered",
                mark=lambda series: series.capacity,
                mark_title="capacity",
            ),
        ),
    ),
    Figure(
        key="connections",
        title="Connections opened",
        good="one burst when the client tasks start, then only what restarts make necessary.",
        measures=(
            Measure(
                title="connections opened per second",
                unit="count",
                values=lambda series, step: mean_of(series.connections, step),
                scale="log1p",
            ),
        ),
    ),
)

_EFFORT: Final = (
    Figure(
        key="effort",
        title="Attempts and probes per request",
        good="attempts close to 1, so that retries do not feed an overload; probes below 1, "
        "because each costs both sides a little CPU.",
        measures=(
            Measure(
                title="attempts per request",
                unit="each",
                values=lambda series, step: per(series.attempts, _offered(series), step),
            ),
            Measure(
                title="probes per request",
                unit="each",
                values=lambda series, step: per(series.probes, _offered(series), step),
            ),
        ),
    ),
    Figure(
        key="refusals",
        title="Throttled and rejected",
        good="nothing below capacity.  Above it, client tasks throttle nearly all that is too "
        "much, which is almost free, and backends reject little, which costs them CPU.",
        measures=(
            Measure(
                title="requests per second throttled by client tasks",
                unit="count",
                values=lambda series, step: mean_of(series.throttled, step),
            ),
            Measure(
                title="attempts per second rejected by backends",
                unit="count",
                values=lambda series, step: mean_of(series.rejected, step),
            ),
        ),
    ),
)
