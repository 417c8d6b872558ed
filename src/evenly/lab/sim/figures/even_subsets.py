"""Figure 20-5: deterministic subsetting gives every backend exactly as many clients.

SRE book, chapter 20, "A Subset Selection Algorithm: Deterministic Subsetting"; and beside it
evenly's own default, which is as even and reopens far less when a backend comes or goes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from evenly.core.balancing.subset_plan import SubsetPlan, plan_subsets
from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story, percent
from evenly.lab.sim.figures.random_subsets import RandomSubsets, draw_subsets

__all__ = ["FIGURE_20_5", "plan"]

_NAMES: Final = {
    "deterministic": "The book’s deterministic subsets",
    "nested": "evenly’s nested subsets",
}
_SIZE: Final = 10


def plan(
    _seed: int, *, algorithm: str, clients: int = 300, backends: int = 300, size: int = _SIZE
) -> SubsetPlan:
    """Count connections, and what changes cost; neither algorithm knows a seed."""
    return plan_subsets(algorithm, clients=clients, backends=backends, size=size)


def _tell(results: Results) -> Story:
    book, ours = _plans(results)
    drawn = _random(results)
    return Story(
        caption=(
            f"{book.clients} clients each take {book.size} of {book.backends} backends. The book’s"
            " algorithm is flat: every backend has exactly as many clients. evenly’s default is"
            " flat too, to within one client. The dotted line is what random subsets of the same"
            f" size give, with seed {drawn.seed}."
        ),
        comparisons=(
            Comparison(
                what="Connections of a backend, deterministic subsets",
                book="“exactly the same number” each",
                ours=_range(book),
            ),
            Comparison(
                what="Connections of a backend, nested subsets",
                book="“differ by at most 1” (of its own algorithm)",
                ours=_range(ours),
            ),
            Comparison(
                what="Connections opened when one backend is added",
                book="not said",
                ours=_churn(book.churn.add_backend, ours.churn.add_backend),
            ),
            Comparison(
                what="Connections opened by a rolling restart of all backends",
                book="not said",
                ours=_churn(book.churn.rolling_restart, ours.churn.rolling_restart),
            ),
        ),
        note=(
            f"Nested subsets are larger here: {_held(ours)} backends where {book.size} were asked"
            " for, because sizes are rounded up to the next halving of the fleet. Each percentage"
            " is of the algorithm’s own connections. Neither depends on the seed."
        ),
        scenario={
            "algorithms": [book.algorithm, ours.algorithm],
            "clients": book.clients,
            "backends": book.backends,
            "size": book.size,
        },
        numbers={
            **{each.algorithm: _numbers(each) for each in (book, ours)},
            "random": {"connections_sorted": drawn.draws[0]},
        },
    )


def _numbers(each: SubsetPlan) -> dict[str, object]:
    return {
        "connections_by_backend": each.balance.counts,
        "subset_sizes": [each.balance.smallest_subset, each.balance.largest_subset],
        "opened_when_one_is_added": each.churn.add_backend,
        "opened_by_rolling_restart": each.churn.rolling_restart,
    }


def _range(each: SubsetPlan) -> str:
    balance = each.balance
    if balance.least == balance.most:
        return f"exactly {balance.least} each"
    return f"{balance.least} to {balance.most} (mean {balance.mean:.2f})"


def _churn(book: float, ours: float) -> str:
    return f"deterministic: {percent(book)} of all; nested: {percent(ours, 2 if ours < 0.1 else 0)}"


def _held(each: SubsetPlan) -> str:
    smallest, largest = each.balance.smallest_subset, each.balance.largest_subset
    return str(smallest) if smallest == largest else f"{smallest} or {largest}"


def _plans(results: Results) -> tuple[SubsetPlan, SubsetPlan]:
    book, ours = (results[f"{algorithm} subsets"] for algorithm in _NAMES)
    return book, ours


def _random(results: Results) -> RandomSubsets:
    drawn: RandomSubsets = results[f"random subsets of {_SIZE}"]
    return drawn


def _draw(canvas: Canvas, results: Results) -> None:
    theme = canvas.theme
    plans = _plans(results)
    drawn = _random(results)
    panels = canvas.panels(len(plans))
    for axes, each in zip(panels, plans, strict=True):
        counts = sorted(each.balance.counts)
        edges = range(len(counts) + 1)
        axes.fill_between(edges, [*counts, counts[-1]], step="post", color=theme.blue, lw=0)
        axes.axhline(each.balance.mean, color=theme.ink, lw=1.0, ls=(0, (4, 2)), label="mean")
        axes.set_xlim(0, len(counts))
        axes.set_xticks([])
        canvas.title(
            axes, _NAMES[each.algorithm], f"{_range(each)}; each client holds {_held(each)}"
        )
    panels[0].plot(
        range(len(drawn.draws[0])),
        drawn.draws[0],
        color=theme.red,
        ls=":",
        lw=2.2,
        label="random subsets",
    )
    panels[0].set_ylim(0, 24)
    canvas.label(panels[0], y="clients of a backend")
    canvas.label(panels[-1], x="backends, the least loaded first")
    canvas.legend(panels[0], place="upper left")


FIGURE_20_5: Final = BookFigure(
    number="20-5",
    title=(
        "Connection distribution with 300 clients and deterministic subsetting to 10 of 300"
        " backends"
    ),
    jobs={
        **{
            f"{algorithm} subsets": Job(run=partial(plan, algorithm=algorithm), seconds=0.5)
            for algorithm in _NAMES
        },
        f"random subsets of {_SIZE}": Job(
            run=partial(draw_subsets, size=_SIZE, draws=1), seconds=0.1
        ),
    },
    tell=_tell,
    draw=_draw,
    height=3.4,
    narrow_height=5.6,
)
