"""Turn scenes into panels: the lines for `page.js` to draw, and the same in words."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from evenly.lab.sim.cpu_samples import quantile
from evenly.lab.sim.page.measures import Measure
from evenly.lab.sim.page.numbers import Values, known, mean_of, short
from evenly.lab.sim.page.scenes import Scene
from evenly.lab.sim.page.units import said
from evenly.lab.sim.row_figures import CPU_SPREAD, ERRORS, GOODPUT, P99, RowFigure, Unit
from evenly.lab.sim.scenario import OMNISCIENT

__all__ = ["LOAD_FIGURES", "Panel", "cpu_panel", "load_panel", "measure_panel"]

Json: TypeAlias = dict[str, object]

# Up to so many lines can be told apart as a texture; more are a band whatever one does.
_MOST_LINES = 200
# And all of them together may have so many points: 200 backends for a minute.
_MOST_LINE_POINTS = 12_000

_QUANTILES: Final = (
    ("most", 1.0),
    ("p95", 0.95),
    ("p75", 0.75),
    ("p50", 0.5),
    ("p25", 0.25),
    ("p5", 0.05),
    ("least", 0.0),
)
_EXTREMES: Final = ("most", "least")
# As places in _QUANTILES: p5 to p95, and the half in the middle.
_BANDS: Final = ((5, 1), (4, 2))

LOAD_FIGURES: Final = (GOODPUT, P99, CPU_SPREAD, ERRORS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Be one chart: what `page.js` draws, and a text that says the same."""

    drawing: Json
    words: str


def measure_panel(scene: Scene, measure: Measure, policies: Sequence[str]) -> Panel:
    """Return one line per policy over time."""
    lines: list[Json] = []
    beside: list[Json] = []
    parts: list[str] = []
    levels: dict[str, float] = {}
    for index, policy in enumerate(policies):
        result = scene.drawn.get(policy)
        if result is None or not _is_shown(
            policy, scene.drawn, has_omniscient=measure.has_omniscient
        ):
            continue
        values = measure.values(result.series, scene.step)
        lines.append(_line(index, policy, values))
        parts.append(f"{policy} {_summed_up(values, scene, measure)}")
        if measure.beside is not None:
            label = f"{policy}, {measure.beside_title}"
            beside.append(_line(index, label, measure.beside(result.series, scene.step), "beside"))
        if measure.mark is not None:
            levels[measure.mark_title] = measure.mark(result.series)
    worst = "highest" if measure.is_high_bad else "lowest"
    return Panel(
        drawing=_over_time(scene, measure.unit)
        | {
            "scale": measure.scale,
            "floor": measure.floor,
            "top": measure.top,
            "lines": _merged(beside, measure.beside_title) + lines,
            "marks": [{"label": name, "at": short(level)} for name, level in levels.items()],
        },
        words=f"{_median_of(scene).capitalize()}, {worst} in brackets: {'; '.join(parts)}.",
    )


def cpu_panel(scene: Scene, policy: str, index: int) -> Panel | None:
    """Return the CPU of all backends under one policy; of very many, only the quantiles."""
    result = scene.drawn.get(policy)
    if result is None:
        return None
    backends = [mean_of(one, scene.step) for one in result.series.cpu]
    columns = [sorted(known(column)) for column in zip(*backends, strict=True)]
    lines: dict[str, Values] = {
        name: [quantile(column, ratio) if column else None for column in columns]
        for name, ratio in _QUANTILES
    }
    count = len(backends)
    has_lines = count <= _MOST_LINES and count * len(columns) <= _MOST_LINE_POINTS
    figures = ", ".join(
        f"{name} {_median_said(_measured(values, scene), 'percent')}"
        for name, values in lines.items()
    )
    return Panel(
        drawing=_over_time(scene, "percent")
        | {
            "scale": "linear",
            "axis": "cpu",
            "top": 1.0,
            "policy": index,
            "lines": [
                _line(index, name, values, _cpu_kind(name, has_lines=has_lines))
                for name, values in lines.items()
            ],
            "bands": _BANDS[:1] if has_lines else _BANDS,
            "backends": [_shortened(values) for values in backends] if has_lines else [],
        },
        words=f"{count} {'backend' if count == 1 else 'backends'}; CPU, {_median_of(scene)}: "
        f"{figures}.",
    )


def load_panel(scenes: Sequence[Scene], figure: RowFigure, policies: Sequence[str]) -> Panel:
    """Return one line per policy over the loads; every point is the median over the seeds."""
    lines: list[Json] = []
    parts: list[str] = []
    unit = figure.unit
    for index, policy in enumerate(policies):
        if not _is_shown(policy, policies, has_omniscient=figure is not CPU_SPREAD):
            continue
        values = [figure.median(scene.runs.get(policy, ())).value for scene in scenes]
        lines.append(_line(index, policy, values))
        points = zip(scenes, values, strict=True)
        said_points = ", ".join(f"{said(value, unit)} at {scene.load:g}" for scene, value in points)
        parts.append(f"{policy} {said_points}")
    return Panel(
        drawing={
            "x": {"unit": "load", "at": [short(scene.load) for scene in scenes]},
            "unit": unit,
            "scale": "log" if unit in ("seconds", "ratio") else "linear",
            "floor": 1.0 if unit == "ratio" else 0.0,
            "lines": lines,
        },
        words=f"{'; '.join(parts)}.",
    )


def _is_shown(policy: str, policies: Collection[str], *, has_omniscient: bool) -> bool:
    """Return whether to draw it: omniscient only where it is a limit, or nothing else ran."""
    return has_omniscient or policy != OMNISCIENT or len(policies) == 1


def _over_time(scene: Scene, unit: Unit) -> Json:
    count = -(-scene.seconds // scene.step)
    return {
        "x": {
            "unit": "s",
            "step": scene.step,
            "count": count,
            "measured": scene.measured,
        },
        "unit": unit,
    }


def _cpu_kind(name: str, *, has_lines: bool) -> str:
    """Return how to draw a quantile: what a band or the backends show already is only read out."""
    if name == "p50":
        return ""
    return "extreme" if name in _EXTREMES and not has_lines else "quiet"


def _line(policy: int, label: str, values: Values, kind: str = "") -> Json:
    return {"policy": policy, "label": label, "values": _shortened(values), "kind": kind}


def _shortened(values: Values) -> Values:
    return [short(value) for value in values]


def _merged(lines: list[Json], label: str) -> list[Json]:
    """Return one line without a policy where all are the same: the load often is."""
    if lines and all(line["values"] == lines[0]["values"] for line in lines):
        return [lines[0] | {"policy": None, "label": label}]
    return lines


def _median_of(scene: Scene) -> str:
    begin, end = scene.measured
    return f"median from {begin} to {end} s"


def _measured(values: Values, scene: Scene) -> Values:
    """Return the points that lie in the measured span; if none does whole, those that touch it."""
    begin, end = scene.measured
    step = scene.step
    last = len(values) if end == scene.seconds else end // step
    return values[-(-begin // step) : last] or values[begin // step : -(-end // step)]


def _summed_up(values: Values, scene: Scene, measure: Measure) -> str:
    measured = _measured(values, scene)
    found = known(measured)
    if not found:
        return "has nothing to measure"
    worst = said(max(found) if measure.is_high_bad else min(found), measure.unit)
    missing = len(measured) - len(found)
    gaps = f", nothing to measure at {missing} of {len(measured)} points" if missing else ""
    return f"{_median_said(found, measure.unit)} ({worst}){gaps}"


def _median_said(values: Sequence[float | None], unit: Unit) -> str:
    found = known(values)
    return said(statistics.median(found) if found else None, unit)
