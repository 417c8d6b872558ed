"""Write figures for people: percentages, milliseconds, thousands."""

from __future__ import annotations

import html
import math
from typing import Final

from evenly.lab.sim.row_figures import Unit, said_percent

__all__ = ["NOTHING", "escaped", "said"]

NOTHING: Final = "–"


def said(value: float | None, unit: Unit) -> str:
    """Return a figure in the unit that people use for it; a dash if there is none.

    `page.js` writes the values of charts in the same way.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if unit == "percent":
        return said_percent(value)
    if unit == "seconds":
        return _seconds(value)
    if unit == "tenths":
        return f"{value:.1f} s"
    if unit == "each":
        return f"{value:.3f}"  # One retry in a thousand requests is worth seeing.
    return f"{value:.2f}" if unit == "ratio" and value < 99.95 else _digits(value)


def escaped(text: str) -> str:
    """Return text as HTML, quotes included; file names may hold bytes that are not UTF-8."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def _seconds(seconds: float) -> str:
    # The limits are those of the rounded figure: 0.99999 s is 1 s, not 1,000 ms.
    if seconds >= 0.9995:
        return f"{_digits(seconds)} s"
    if seconds >= 0.0009995:
        return f"{_digits(1e3 * seconds)} ms"
    return f"{_digits(1e6 * seconds)} µs" if seconds > 0.0 else "0 s"


def _digits(value: float) -> str:
    """Return three significant digits, or all that stand before the point."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"
