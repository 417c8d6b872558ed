"""Draw subset plans: clients per backend, one panel for each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

# The object interface draws without a display or a global state.
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from evenly.core.balancing.subset_plan import SubsetPlan

__all__ = ["draw_plans"]

_FILL = "#4c78a8"
_EXCESS = "#e45756"
_INK = "#333333"
_FAINT = "#999999"


def draw_plans(plans: Sequence[SubsetPlan]) -> bytes:
    """Return a PNG with the load of every backend, sorted, as a multiple of the mean."""
    figure = Figure(figsize=(max(6.0, 2.3 * len(plans)), 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(plans), sharey=True, squeeze=False)[0]
    top = max(1.5, *(plan.balance.most / plan.balance.mean for plan in plans))
    for panel, plan in zip(panels, plans, strict=True):
        _draw_plan(panel, plan)
        panel.set_ylim(0, top * 1.12)
    panels[0].set_ylabel("clients of a backend, % of the panel's mean", color=_INK, fontsize=9)
    first = plans[0]
    figure.suptitle(
        f"Clients per backend: {first.clients} clients, {first.backends} backends, "
        f"at least {min(first.size, first.backends)} connections each",
        color=_INK,
        fontsize=11,
    )
    figure.supxlabel(
        "backends, least loaded first (red: above the mean)",
        color=_INK,
        fontsize=9,
    )
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw_plan(panel: Axes, plan: SubsetPlan) -> None:
    balance = plan.balance
    loads = sorted(count / balance.mean for count in balance.counts)
    edges = range(len(loads) + 1)
    tops = [*loads, loads[-1]]  # A step needs its right edge too.
    panel.fill_between(edges, [min(top, 1.0) for top in tops], step="post", color=_FILL, lw=0)
    panel.fill_between(
        edges, 1.0, [max(top, 1.0) for top in tops], step="post", color=_EXCESS, lw=0
    )
    panel.axhline(1, color=_INK, lw=0.8, ls=(0, (4, 3)))
    panel.yaxis.set_major_locator(MultipleLocator(0.5))
    panel.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    panel.set_xlim(0, len(loads))
    panel.set_xticks([])
    # Not what was asked for but what clients hold: nested rounds it up.
    smallest, largest = balance.smallest_subset, balance.largest_subset
    held = str(smallest) if smallest == largest else f"{smallest} or {largest}"
    panel.set_title(f"{plan.algorithm}\nsubsets of {held}", color=_INK, fontsize=10)
    panel.tick_params(colors=_FAINT, labelcolor=_INK, labelsize=8)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(_FAINT)
    panel.text(
        0.04,
        0.97,
        f"least {balance.least} ({loads[0]:.0%})\nmost {balance.most} ({loads[-1]:.0%})",
        transform=panel.transAxes,
        va="top",
        color=_INK,
        fontsize=8,
    )
