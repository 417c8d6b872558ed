"""Tell and draw figures 20-3 and 20-4."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, final

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator, PercentFormatter

from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story, percent
from evenly.lab.sim.figures.random_subsets import RandomSubsets, draw_subsets

__all__ = ["FIGURE_20_3", "FIGURE_20_4"]


@final
@dataclass(frozen=True, slots=True)
class BookExtremes:
    """Hold the connections that the book names for its least and its most loaded backend."""

    least: int
    most: int


_BOOK: Final = {"20-3": BookExtremes(57, 109), "20-4": BookExtremes(15, 45)}
# Less often than so, and it was not a uniform draw.
_RARE: Final = 0.01
_SIZES: Final = {"20-3": 90, "20-4": 30}


def _tell(number: str, results: Results) -> Story:
    subsets: RandomSubsets = results[f"random subsets of {_SIZES[number]}"]
    book = _BOOK[number]
    return Story(
        caption=(
            f"{subsets.clients} clients each draw {subsets.size} of {subsets.backends} backends."
            " The curve shows how many clients each backend got, the least loaded first, for seed"
            f" {subsets.seed}, and the band where it lay for {len(subsets.draws)} seeds. The"
            " histograms show the least and the most loaded backend of each of those draws, with"
            " the book’s two numbers."
        ),
        comparisons=_comparisons(subsets, book),
        note=_note(subsets, book),
        scenario={
            "algorithm": "random",
            "clients": subsets.clients,
            "backends": subsets.backends,
            "size": subsets.size,
            "seeds": [subsets.seed, subsets.seed + len(subsets.draws) - 1],
        },
        numbers={
            "book_least": book.least,
            "book_most": book.most,
            "connections_sorted": subsets.draws[0],
            "least_by_seed": subsets.leasts,
            "most_by_seed": subsets.mosts,
            "band_low": [min(column) for column in zip(*subsets.draws, strict=True)],
            "band_high": [max(column) for column in zip(*subsets.draws, strict=True)],
        },
    )


def _comparisons(subsets: RandomSubsets, book: BookExtremes) -> tuple[Comparison, ...]:
    ours, mean = subsets.draws[0], subsets.mean
    leasts, mosts = subsets.leasts, subsets.mosts
    return (
        Comparison(
            what="Least loaded backend, connections",
            book=f"{book.least} ({percent(book.least / mean)} of the mean)",
            ours=_extreme(ours[0], leasts, mean),
        ),
        Comparison(
            what="Most loaded backend, connections",
            book=f"{book.most} ({percent(book.most / mean)})",
            ours=_extreme(ours[-1], mosts, mean),
        ),
        Comparison(
            what="Distance from the mean, in standard deviations",
            book=f"{_sigmas(subsets, book.least, book.most)} (our arithmetic)",
            ours=_sigmas(subsets, ours[0], ours[-1]),
        ),
        Comparison(
            what="Draws with a backend as low as the book’s",
            book=_expected(subsets.chance_least_at_most(book.least)),
            ours=f"{sum(least <= book.least for least in leasts)} of {len(leasts)}",
        ),
        Comparison(
            what="Draws with no backend above the book’s highest",
            book=_expected(subsets.chance_most_at_most(book.most)),
            ours=f"{sum(most <= book.most for most in mosts)} of {len(mosts)}",
        ),
    )


def _note(subsets: RandomSubsets, book: BookExtremes) -> str:
    chance = subsets.chance_least_at_most(book.least)
    if chance > _RARE:
        return (
            f"Here the book’s numbers are what uniform draws give: {book.least} and {book.most}"
            " connections are nothing unusual."
        )
    return (
        "The general pattern is the book’s; its numbers are not. Clients that draw uniformly give a"
        f" backend {subsets.mean:g} ± {subsets.sigma:.1f} connections, so that {book.least} is"
        f" {-subsets.sigmas(book.least):.1f} standard deviations below the mean: one draw in about"
        f" {_round(1 / chance)} has a backend as low. The book’s highest, {book.most}, is lower"
        " than in most draws. Something other than one uniform draw is behind them, or much luck."
    )


def _round(number: float) -> int:
    """Return a number to one digit: it is an estimate, and should look like one."""
    unit: int = 10 ** int(math.log10(number))
    return unit * round(number / unit)


def _sigmas(subsets: RandomSubsets, least: int, most: int) -> str:
    low, high = (f"{subsets.sigmas(count):+.1f} σ" for count in (least, most))
    return f"{low} and {high}".replace("-", "−")


def _expected(chance: float) -> str:
    return f"{percent(chance, 1)} expected (our arithmetic)"


def _extreme(count: int, all_counts: list[int], mean: float) -> str:
    return (
        f"{count} ({percent(count / mean)}); all seeds: {min(all_counts)} to {max(all_counts)},"
        f" median {median(all_counts):g}"
    )


def _draw(number: str, canvas: Canvas, results: Results) -> None:
    subsets: RandomSubsets = results[f"random subsets of {_SIZES[number]}"]
    theme, book, mean = canvas.theme, _BOOK[number], subsets.mean
    curve, extremes = canvas.panels(2, share=False)
    ours = [count / mean for count in subsets.draws[0]]
    places = range(len(ours))
    columns = list(zip(*subsets.draws, strict=True))
    curve.fill_between(
        places,
        [min(column) / mean for column in columns],
        [max(column) / mean for column in columns],
        color=theme.blue,
        alpha=0.25,
        lw=0,
        label=f"{len(subsets.draws)} seeds",
    )
    curve.plot(places, ours, color=theme.blue, lw=1.8, label=f"seed {subsets.seed}")
    curve.axhline(1.0, color=theme.ink, lw=0.9, ls=(0, (4, 2)))
    ends = (book.least / mean, book.most / mean)
    curve.plot((0, places[-1]), ends, "D", color=theme.red, ms=6, label="the book", clip_on=False)
    curve.set_ylim(min(subsets.leasts) / mean - 0.1, max(subsets.mosts) / mean + 0.1)
    curve.set_xlim(-4, places[-1] + 4)
    curve.set_xticks([])
    curve.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    canvas.title(curve, f"{subsets.size} of {subsets.backends} backends each")
    canvas.label(curve, x="backends, the least loaded first", y="connections, % of the mean")
    canvas.legend(curve, place="lower right")
    _draw_extremes(canvas, extremes, subsets, book)


def _draw_extremes(canvas: Canvas, axes: Axes, subsets: RandomSubsets, book: BookExtremes) -> None:
    theme = canvas.theme
    sides = (
        (subsets.leasts, book.least, theme.blue, "", "least loaded"),
        (subsets.mosts, book.most, theme.green, "////", "most loaded"),
    )
    for counts, said, color, hatch, name in sides:
        tally = Counter(counts)
        axes.bar(
            list(tally),
            list(tally.values()),
            width=0.9,
            color=color,
            hatch=hatch,
            alpha=0.85,
            edgecolor=theme.paper,
            lw=0,
            label=name,
        )
        axes.axvline(said, color=theme.red, lw=1.6, ls=(0, (4, 2)))
        canvas.write(
            axes,
            said,
            0.99,
            f" book: {said}",
            va="top",
            color=theme.red,
            where="across",
        )
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.xaxis.set_major_locator(MultipleLocator(10 if subsets.size > 50 else 5))
    canvas.title(axes, f"Extremes of {len(subsets.draws)} draws")
    canvas.label(axes, x="connections", y="draws")
    canvas.legend(axes, place="upper center")


def _figure(number: str, percent: int) -> BookFigure:
    size = _SIZES[number]
    return BookFigure(
        number=number,
        title=(
            "Connection distribution with 300 clients, 300 backends, and a subset size of"
            f" {percent}%"
        ),
        jobs={f"random subsets of {size}": Job(run=partial(draw_subsets, size=size), seconds=3.0)},
        tell=partial(_tell, number),
        draw=partial(_draw, number),
        height=3.6,
        narrow_height=6.2,
    )


FIGURE_20_3: Final = _figure("20-3", 30)
FIGURE_20_4: Final = _figure("20-4", 10)
