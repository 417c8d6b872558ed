"""Tell and draw figures 20-1 and 20-2."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.ticker import MultipleLocator

from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.cpu_lines import draw_cpu_lines
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story, percent
from evenly.lab.sim.figures.two_scenarios import DEFAULT, POLICIES, PolicyRun, run_policy
from evenly.lab.sim.load import to_table

__all__ = ["FIGURE_20_1", "FIGURE_20_2"]

_NAMES: Final = {"round_robin": "Round robin", DEFAULT: f"evenly’s default ({DEFAULT})"}


def _tell_20_1(results: Results) -> Story:
    runs = _runs(results)
    bad, good = runs.values()
    return Story(
        caption=(
            "The same requests on the same machines, balanced by two policies: one line per backend"
            " task. Traffic can grow only until the most loaded task is at its limit. With round"
            f" robin that task is at {percent(bad.most_ratio)} while the mean is at"
            f" {percent(bad.mean_ratio)}; with evenly’s default all tasks rise together."
        ),
        comparisons=(
            Comparison(
                what="CPU of the most loaded task, as a multiple of the least loaded one’s",
                book="round robin: “up to 2x”; ideal: “exactly the same”",
                ours=f"round robin: {bad.spread:.2f}×; {DEFAULT}: {good.spread:.2f}×",
            ),
            Comparison(
                what="CPU of the most loaded task, with the same traffic",
                book="traffic can grow until it “reaches its capacity limit”",
                ours=f"round robin: {percent(bad.most_ratio)} of its CPUs;"
                f" {DEFAULT}: {percent(good.most_ratio)}",
            ),
            Comparison(
                what="Requests that failed",
                book="not said",
                ours=f"round robin: {percent(bad.result.row.errors_ratio, 2)};"
                f" {DEFAULT}: {percent(good.result.row.errors_ratio, 2)}",
            ),
        ),
        note=(
            "The book’s picture has no numbers. “Up to 2x” is from its section on round robin;"
            " ours has machines of which the fastest is twice as fast as the slowest, which alone"
            " makes 2×. Lines are means of 5 s; the multiple is the median of windows of 10 s."
        ),
        scenario=to_table(bad.scenario),
        numbers={
            policy: {
                "cpu_by_backend_and_second": _rounded_lines(run),
                "max_over_min": run.spread,
                "p99_seconds": run.result.row.p99_seconds,
            }
            for policy, run in runs.items()
        },
    )


def _tell_20_2(results: Results) -> Story:
    runs = _runs(results)
    bad, good = runs.values()
    cpus = len(bad.cpus) * bad.scenario.backends.cores
    return Story(
        caption=(
            "What each task used while the load stayed, the most loaded task first, and what is"
            " wasted above it: reserved, but out of reach, because the most loaded task reaches its"
            " limit first. The hatched area is Σ(CPU[0] − CPU[i])."
        ),
        comparisons=(
            Comparison(
                what="Σ(CPU[0] − CPU[i])",
                book="“will be wasted”; no number",
                ours=f"round robin: {bad.wasted_cpus:.1f}; {DEFAULT}: {good.wasted_cpus:.1f}"
                f" of {cpus} CPUs",
            ),
            Comparison(
                what="Usable of 1,000 CPUs reserved",
                book="badly balanced: “say, 700”",
                ours=f"round robin: {1000 * bad.usable_ratio:.0f};"
                f" {DEFAULT}: {1000 * good.usable_ratio:.0f}",
            ),
        ),
        note=(
            "The book’s CPU[i] is a rate at one moment; ours is a mean over the time for which the"
            " load stays, so that chance does not count as imbalance."
        ),
        scenario=to_table(bad.scenario),
        numbers={
            policy: {
                "cpus_used_by_task": [round(used, 4) for used in run.cpus],
                "cpus_wasted": run.wasted_cpus,
                "usable_of_1000": 1000 * run.usable_ratio,
            }
            for policy, run in runs.items()
        },
    )


def _draw_20_1(canvas: Canvas, results: Results) -> None:
    panels = canvas.panels(len(_NAMES))
    for axes, (policy, run) in zip(panels, _runs(results).items(), strict=True):
        begin, end = run.span
        draw_cpu_lines(canvas, axes, run.result.series.cpu, begin=begin, end=end)
        canvas.title(axes, _NAMES[policy], f"most over least: {run.spread:.2f}×")
        canvas.label(axes, x="seconds" if axes is panels[-1] or not canvas.is_narrow else "")
    canvas.label(panels[0], x=panels[0].get_xlabel(), y="CPU of a task, % of its CPUs")
    canvas.legend(panels[0], place="lower right")


def _draw_20_2(canvas: Canvas, results: Results) -> None:
    theme = canvas.theme
    panels = canvas.panels(len(_NAMES))
    for axes, (policy, run) in zip(panels, _runs(results).items(), strict=True):
        places = range(len(run.cpus))
        wasted = [run.cpus[0] - used for used in run.cpus]
        axes.bar(places, run.cpus, width=0.86, color=theme.blue, label="used")
        axes.bar(
            places,
            wasted,
            bottom=run.cpus,
            width=0.86,
            facecolor=theme.paper,
            edgecolor=theme.red,
            hatch="////",
            lw=0.6,
            label="wasted",
        )
        axes.axhline(run.cpus[0], color=theme.ink, lw=1.2, ls=(0, (4, 2)), label="CPU[0]")
        axes.set_xticks([])
        axes.yaxis.set_major_locator(MultipleLocator(0.5))
        axes.set_ylim(0.0, run.scenario.backends.cores * 1.02)
        canvas.title(
            axes,
            _NAMES[policy],
            f"Σ(CPU[0] − CPU[i]) = {run.wasted_cpus:.1f} CPUs;"
            f" {1000 * run.usable_ratio:.0f} of 1,000 usable",
        )
    canvas.label(panels[0], x="tasks, the most loaded first", y="CPUs used by a task, of 2")
    canvas.label(panels[1], x="tasks, the most loaded first")
    canvas.legend(panels[1], place="upper right")


def _runs(results: Results) -> dict[str, PolicyRun]:
    return {policy: results[f"two scenarios, {policy}"] for policy in POLICIES}


def _rounded_lines(run: PolicyRun) -> list[list[float]]:
    return [[round(used, 4) for used in line] for line in run.result.series.cpu]


_JOBS: Final = {
    f"two scenarios, {policy}": Job(run=partial(run_policy, policy=policy), seconds=seconds)
    for policy, seconds in (("round_robin", 5.0), (DEFAULT, 8.0))
}
FIGURE_20_1: Final = BookFigure(
    number="20-1",
    title="Two scenarios of per-task load distribution over time",
    jobs=_JOBS,
    tell=_tell_20_1,
    draw=_draw_20_1,
    height=3.8,
    narrow_height=6.2,
)
FIGURE_20_2: Final = BookFigure(
    number="20-2",
    title="Histogram of CPU used and wasted in two scenarios",
    jobs=_JOBS,
    tell=_tell_20_2,
    draw=_draw_20_2,
    height=3.4,
    narrow_height=5.8,
)
