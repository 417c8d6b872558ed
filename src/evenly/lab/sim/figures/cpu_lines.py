"""Draw the CPU of every backend over time, as figures 20-1 and 20-6 do, and sum it up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from evenly.lab.sim.figures.canvas import Canvas

__all__ = ["draw_cpu_lines", "means", "smoothed", "spread"]

_SMOOTH_SECONDS = 5
_WINDOW = 10


def smoothed(cpu: Sequence[float], seconds: int = _SMOOTH_SECONDS) -> list[float]:
    """Return the mean of each second and those before it, so many in all.

    A backend serves about a hundred requests a second here, whose number and cost are random: one
    second alone is off by 15 %, which has nothing to do with balance.
    """
    sums = [0.0, *accumulate(cpu)]
    return [
        (sums[end] - sums[max(0, end - seconds)]) / min(end, seconds) for end in range(1, len(sums))
    ]


def means(cpu: Sequence[Sequence[float]], begin: int, end: int) -> list[float]:
    """Return the mean CPU of each backend over these seconds."""
    return [fmean(used[begin:end]) for used in cpu]


def spread(cpu: Sequence[Sequence[float]], begin: int, end: int) -> float:
    """Return the most loaded backend's CPU over the least loaded one's.

    It is the median over windows of 10 s, or of the whole where that is shorter; `inf` where a
    backend was not used at all.
    """
    starts = range(begin, max(begin + 1, end - _WINDOW + 1), _WINDOW)
    ratios = []
    for start in starts:
        window = means(cpu, start, min(end, start + _WINDOW))
        ratios.append(max(window) / min(window) if min(window) > 0.0 else math.inf)
    return median(ratios)


def draw_cpu_lines(
    canvas: Canvas,
    axes: Axes,
    cpu: Sequence[Sequence[float]],
    *,
    begin: int,
    end: int,
    when: str = "",
) -> None:
    """Draw a line per backend; those with the most and the least CPU in `begin` to `end` stand out.

    `when` says for readers which seconds these are.  The limit is drawn too: no task can use more
    than all of its CPUs.
    """
    theme = canvas.theme
    load = means(cpu, begin, end)
    most, least = load.index(max(load)), load.index(min(load))
    seconds = range(1, len(cpu[0]) + 1)
    for place, used in enumerate(cpu):
        if place not in (most, least):
            axes.plot(seconds, smoothed(used), color=theme.faint, lw=0.7, alpha=0.55)
    marked = ((most, theme.red, "-", "most loaded"), (least, theme.blue, "-.", "least loaded"))
    for place, color, style, name in marked:
        axes.plot(
            seconds, smoothed(cpu[place]), color=color, lw=2.0, ls=style, label=f"{name}{when}"
        )
    mean = [fmean(column) for column in zip(*map(smoothed, cpu), strict=True)]
    axes.plot(seconds, mean, color=theme.ink, lw=1.4, ls=(0, (4, 2)), label="mean of all")
    axes.axhline(1.0, color=theme.ink, lw=1.0)
    axes.set_ylim(0.0, 1.12)
    axes.set_xlim(0, len(cpu[0]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    canvas.write(axes, 0.4, 1.015, "limit of a task", va="bottom", where="data", faint=True)
