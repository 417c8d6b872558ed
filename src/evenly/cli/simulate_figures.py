"""Write the figures of a simulation for a terminal: one column, with its points in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evenly.lab.sim.result import Result
from evenly.lab.sim.row_figures import Reading, RowFigure, Unit, said_percent

__all__ = ["cells_of"]

_NOTHING = "-"


def cells_of(figure: RowFigure, lines: Sequence[Sequence[Result]]) -> list[str]:
    """Return what to write for each line: the figure of its run, or the median of its runs."""
    readings = [figure.median(line) for line in lines]
    write = _milliseconds(readings) if figure.unit == "seconds" else _WRITERS[figure.unit]
    return [
        _NOTHING
        if reading.value is None
        else f"{'>' if reading.is_more else ''}{write(reading.value)}"
        for reading in readings
    ]


def _milliseconds(readings: Sequence[Reading]) -> Callable[[float], str]:
    """Write all with the same decimals, so that the points stand below one another."""
    largest = max((one.value for one in readings if one.value is not None), default=0.0)
    decimals = 2 if largest < 0.1 else 1
    return lambda seconds: f"{seconds * 1000:.{decimals}f}"


_WRITERS: dict[Unit, Callable[[float], str]] = {
    "percent": said_percent,
    "tenths": "{:.1f}".format,
    "count": "{:,.0f}".format,
    "ratio": "{:.2f}".format,
    "each": "{:.3f}".format,
}
