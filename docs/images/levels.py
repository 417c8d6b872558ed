"""Draw `levels.png`: one cut-line, and what users get of their calls.

    python docs/images/levels.py

Twice the capacity, of 10/30/30/30 %: what is above 1.67 can be served.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from evenly.core.criticality import Criticality
from evenly.lab.sim.figures.canvas import Canvas, Picture

_CUT: Final = 1.0 + 2.0 / 3.0
_CALLS: Final = 4
_USERS: Final = 3
# Of SHEDDABLE_PLUS not by chance: in either panel a third of the calls is above the cut-line.
_OWN: Final = ((0.82, 0.31, 0.12, 0.55), (0.22, 0.74, 0.40, 0.05), (0.91, 0.10, 0.58, 0.78))
_SHARED: Final = (0.28, 0.84, 0.48)

Lucks = list[tuple[float, ...]]
"""Those of the calls of each user."""


def main() -> None:
    """Draw both panels, and write the picture beside this file."""
    canvas = Canvas(Picture("wide", "light"), height=4.4)
    own, shared = canvas.panels(2)
    rng = random.Random(2)
    drawn: list[Lucks] = [
        [tuple(rng.uniform(0.06, 0.94) for _ in range(_CALLS)) for _ in range(_USERS)]
        for _ in Criticality
    ]
    drawn[Criticality.SHEDDABLE_PLUS] = list(_OWN)
    _draw(canvas, own, drawn)
    canvas.title(
        own,
        "Each call has a luck of its own",
        "SHEDDABLE_PLUS: 4 of 12 calls are served, and no user has all four",
    )
    _draw(canvas, shared, [[(luck,) * _CALLS for luck in _SHARED] for _ in Criticality])
    canvas.title(
        shared,
        "The calls of a user share one luck",
        "SHEDDABLE_PLUS: 4 of 12 calls are served, and user B has all four",
    )
    canvas.label(own, y="level = criticality + luck")
    (Path(__file__).parent / "levels.png").write_bytes(canvas.png())


def _draw(canvas: Canvas, axes: Axes, lucks: list[Lucks]) -> None:
    theme = canvas.theme
    axes.set_ylim(0, len(Criticality))
    axes.set_xlim(-1.15, _USERS)
    axes.set_yticks(range(len(Criticality) + 1))
    axes.set_xticks([user + 0.5 for user in range(_USERS)])
    axes.set_xticklabels([f"user {name}" for name in "ABC"])
    axes.axhspan(0, _CUT, color=theme.grid, alpha=0.5, lw=0)
    axes.axhline(_CUT, color=theme.red, lw=1.4)
    canvas.write(axes, 0.01, _CUT / len(Criticality) - 0.03, "cut-line 1.67", color=theme.red)
    for criticality in Criticality:
        place = (criticality + 0.85) / len(Criticality)
        canvas.write(axes, 0.01, place, criticality.name, faint=True)
        for user, calls in enumerate(lucks[criticality]):
            across = [user + 0.5 + (call - 1.5) * 0.17 for call in range(_CALLS)]
            levels = [criticality + luck for luck in calls]
            inside = [theme.blue if level >= _CUT else theme.paper for level in levels]
            edge = [theme.blue if level >= _CUT else theme.red for level in levels]
            axes.scatter(across, levels, s=42, c=inside, edgecolors=edge, lw=1.3, zorder=3)


if __name__ == "__main__":
    main()
