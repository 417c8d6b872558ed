"""All figures, in the book's order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from evenly.lab.sim.figures.attempt_figure import FIGURE_21_1
from evenly.lab.sim.figures.even_subsets import FIGURE_20_5
from evenly.lab.sim.figures.model import BookFigure
from evenly.lab.sim.figures.policy_switch import FIGURE_20_6
from evenly.lab.sim.figures.random_figure import FIGURE_20_3, FIGURE_20_4
from evenly.lab.sim.figures.scenario_figure import FIGURE_20_1, FIGURE_20_2
from evenly.lab.sim.figures.stack_figure import FIGURE_21_2

__all__ = ["FIGURES"]

FIGURES: Final[Mapping[str, BookFigure]] = MappingProxyType(
    {
        figure.number: figure
        for figure in (
            FIGURE_20_1,
            FIGURE_20_2,
            FIGURE_20_3,
            FIGURE_20_4,
            FIGURE_20_5,
            FIGURE_20_6,
            FIGURE_21_1,
            FIGURE_21_2,
        )
    }
)
"""By number."""
