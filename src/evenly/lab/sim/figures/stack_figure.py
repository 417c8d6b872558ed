"""Tell and draw figure 21-2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FixedLocator, NullLocator

from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story, percent
from evenly.lab.sim.figures.retry_stack import (
    ATTEMPTS,
    CHEAP,
    DEAR,
    LAYERS,
    MODES,
    StackRun,
    run_stack,
)
from evenly.lab.sim.load import to_table

__all__ = ["FIGURE_21_2"]

_THEORY: Final = tuple(ATTEMPTS**layer for layer in range(1, len(LAYERS) + 1))
_BOX_WIDTH: Final = 0.66
_BOX_HEIGHT: Final = 0.42


def _tell(results: Results) -> Story:
    runs = _runs(results, CHEAP)
    dear = _runs(results, DEAR)
    return Story(
        caption=(
            f"The DB frontend is offered {runs[0].load:g} times what it can serve. Every line"
            " between two layers is one attempt per request of the frontend; a dashed one is less"
            " than one. Naive: each layer tries three times, whatever it is answered. Book: three"
            " attempts, a budget of 10 %, and “overloaded; don’t retry” passed up, so that only"
            " backend B retries. evenly: as it comes, where clients also stop sending what would be"
            " rejected."
        ),
        comparisons=(*_attempts(runs), *_successes(runs, dear)),
        note=(
            f"{_THEORY[-1]} attempts would need every one of them to be rejected; the few that are"
            " served end their request’s retries. A rejection costs the DB frontend"
            f" {percent(CHEAP)} of a request in the picture: we chose that, so that it can reject"
            f" all that comes and attempts multiply. At {percent(DEAR)}, the simulator’s default,"
            " it cannot; naive requests time out before they are tried so often, and next to"
            " nothing succeeds. Successes are of one seed and about 800 requests: a few percent are"
            " chance."
        ),
        scenario={run.mode: to_table(run.scenario) for run in runs},
        numbers={
            "layers": LAYERS,
            "attempts_per_request": {run.mode: run.attempts_per_request for run in runs},
            "three_attempts_at_each_layer": _THEORY,
            "goodput_ratio": {run.mode: run.goodput_ratio for run in runs},
            "where_a_rejection_costs_more": {
                "reject_cost_ratio": DEAR,
                "attempts_per_request": {run.mode: run.attempts_per_request for run in dear},
                "goodput_ratio": {run.mode: run.goodput_ratio for run in dear},
            },
        },
    )


def _attempts(runs: Sequence[StackRun]) -> tuple[Comparison, ...]:
    naive, book, ours = (run.attempts_per_request for run in runs)
    return (
        Comparison(
            what="Attempts at the DB frontend per request, all layers retrying",
            book=f"“a combinatorial explosion” (3³ = {_THEORY[-1]}, our arithmetic)",
            ours=f"{naive[-1]:.1f}",
        ),
        Comparison(
            what="Growth at one layer, three attempts",
            book="“just below 3X”",
            ours=f"{naive[-1] / naive[-2]:.2f}×",
        ),
        Comparison(
            what="Growth with the 10 % retry budget",
            book="“just 1.1x in the general case”",
            ours=f"{book[-1] / book[-2]:.2f}×",
        ),
        Comparison(
            what="Who retries",
            book="“only … Backend B, the layer immediately above”",
            ours=f"attempts per request at A {book[0]:.2f}, B {book[1]:.2f},"
            f" DB frontend {book[2]:.2f}",
        ),
        Comparison(
            what="The same with client-side throttling (evenly’s default)",
            book="not said",
            ours=f"A {ours[0]:.2f}, B {ours[1]:.2f}, DB frontend {ours[2]:.2f}",
        ),
    )


def _successes(runs: Sequence[StackRun], dear: Sequence[StackRun]) -> tuple[Comparison, ...]:
    return (
        Comparison(
            what="Requests that succeed, of what the DB frontend could serve",
            book="not said",
            ours="; ".join(f"{run.mode}: {percent(run.goodput_ratio)}" for run in runs),
        ),
        Comparison(
            what=f"Attempts at the DB frontend where a rejection costs {percent(DEAR)}",
            book="not said",
            ours="; ".join(f"{run.mode}: {run.attempts_per_request[-1]:.2f}" for run in dear),
        ),
        Comparison(
            what=f"Requests that succeed where a rejection costs {percent(DEAR)}",
            book="“cost of rejecting versus processing … considerable”; no number",
            ours="; ".join(f"{run.mode}: {percent(run.goodput_ratio)}" for run in dear),
        ),
    )


def _runs(results: Results, reject_cost_ratio: float) -> list[StackRun]:
    return [results[_job(mode.name, reject_cost_ratio)] for mode in MODES]


def _job(mode: str, reject_cost_ratio: float) -> str:
    return f"stack, {mode}, rejecting at {reject_cost_ratio:g}"


def _draw(canvas: Canvas, results: Results) -> None:
    theme = canvas.theme
    colors = (theme.red, theme.blue, theme.green)
    count = len(MODES)
    if canvas.is_narrow:
        grid = canvas.figure.add_gridspec(2, count, height_ratios=(1.5, 1.0))
        chart = canvas.figure.add_subplot(grid[1, :])
    else:
        grid = canvas.figure.add_gridspec(1, count + 1, width_ratios=(*(1.0,) * count, 1.5))
        chart = canvas.figure.add_subplot(grid[0, count])
    runs = _runs(results, CHEAP)
    for place, (mode, run, color) in enumerate(zip(MODES, runs, colors, strict=True)):
        axes = canvas.figure.add_subplot(grid[0, place])
        _draw_stack(canvas, axes, run, color)
        canvas.title(axes, mode.name, mode.rules)
    _draw_chart(canvas, chart, runs, colors)


def _draw_stack(canvas: Canvas, axes: Axes, run: StackRun, color: str) -> None:
    """Draw the layers as boxes, and each attempt per request as a line between two of them."""
    theme = canvas.theme
    for depth, name in enumerate(("frontend", *LAYERS)):
        top = -depth
        axes.add_patch(
            FancyBboxPatch(
                (0.0, top - _BOX_HEIGHT),
                _BOX_WIDTH,
                _BOX_HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=theme.grid,
                edgecolor=theme.faint,
                lw=1.0,
            )
        )
        middle = top - _BOX_HEIGHT / 2
        canvas.write(axes, _BOX_WIDTH / 2, middle, name, ha="center", where="data")
    for depth, attempts in enumerate(run.attempts_per_request):
        lines = max(1, round(attempts))
        style = "-" if attempts > 0.995 else (0, (2, 1.5))
        for line in range(lines):
            x = _BOX_WIDTH * (line + 1) / (lines + 1)
            ends = (-depth - _BOX_HEIGHT, -depth - 1)
            axes.plot((x, x), ends, color=color, lw=1.3, ls=style, solid_capstyle="butt")
        text = f"{attempts:.1f}×" if attempts >= 9.95 else f"{attempts:.2f}×"
        y = -depth - (1 + _BOX_HEIGHT) / 2
        canvas.write(axes, _BOX_WIDTH + 0.04, y, text, where="data", color=color)
    axes.set_xlim(-0.02, 1.0)
    axes.set_ylim(-len(LAYERS) - _BOX_HEIGHT - 0.05, 0.05)
    axes.set_axis_off()


def _draw_chart(canvas: Canvas, axes: Axes, runs: list[StackRun], colors: tuple[str, ...]) -> None:
    theme = canvas.theme
    canvas.dress(axes)
    places = range(len(LAYERS))
    axes.plot(places, _THEORY, color=theme.ink, ls=(0, (4, 2)), lw=1.2, label="3ⁿ")
    for run, color, marker in zip(runs, colors, "osD", strict=True):
        axes.plot(
            places, run.attempts_per_request, color=color, marker=marker, lw=1.8, label=run.mode
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([0.3, 1, 3, 9, 27]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.set_ylim(0.2, 40)
    axes.set_xlim(-0.2, len(LAYERS) - 0.8)
    axes.set_xticks(list(places), LAYERS)
    canvas.title(axes, "attempts per request")
    canvas.legend(axes, place="upper left")


FIGURE_21_2: Final = BookFigure(
    number="21-2",
    title="A stack of dependencies",
    jobs={
        _job(mode.name, cost): Job(
            run=partial(run_stack, mode=mode.name, reject_cost_ratio=cost),
            seconds=(10.0 if cost == CHEAP else 4.0) if mode.insists else 1.0,
        )
        for mode in MODES
        for cost in (CHEAP, DEAR)
    },
    tell=_tell,
    draw=_draw,
    height=4.0,
    narrow_height=6.6,
)
