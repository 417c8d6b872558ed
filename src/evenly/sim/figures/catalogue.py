"""All figures, in the book's order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from evenly.sim.figures.attempt_figure import FIGURE_21_1
from evenly.sim.figures.even_subsets import FIGURE_20_5
from evenly.sim.figures.model import BookFigure
from evenly.sim.figures.policy_switch import FIGURE_20_6
from evenly.sim.figures.random_figure import FIGURE_20_3, FIGURE_20_4
from evenly.sim.figures.scenario_figure import FIGURE_20_1, FIGURE_20_2
from evenly.sim.figures.stack_figure import FIGURE_21_2

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
