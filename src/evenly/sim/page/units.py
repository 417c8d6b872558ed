"""Write figures for people: percentages, milliseconds, thousands."""

from __future__ import annotations

import html
import math
from typing import Final, Literal, TypeAlias

__all__ = ["NOTHING", "Unit", "escaped", "said"]

Unit: TypeAlias = Literal["percent", "seconds", "count", "ratio", "each"]
"""`each` is so many per request.  `page.js` writes them in the same way."""

NOTHING: Final = "–"


def said(value: float | None, unit: Unit) -> str:
    """Return a figure in the unit that people use for it; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if unit == "percent":
        return _percent(value)
    if unit == "seconds":
        return _seconds(value)
    if unit == "each":
        return f"{value:.3f}"  # One retry in a thousand requests is worth seeing.
    return f"{value:.2f}" if unit == "ratio" and value < 99.95 else _digits(value)


def escaped(text: str) -> str:
    """Return text as HTML, quotes included; file names may hold bytes that are not UTF-8."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def _percent(ratio: float) -> str:
    """Return hundredths of a percent, where only all is 100% and only nothing is 0%."""
    percent = 100.0 * ratio
    if 0.0 < percent < 0.005:
        return "<0.01%"
    if 99.995 <= percent < 100.0:
        return ">99.99%"
    return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"


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
