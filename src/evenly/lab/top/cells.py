"""Write single values as people read them, in characters that the terminal has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rich.text import Text

__all__ = ["Cells", "escaped"]

_NAME_MAX = 40
_MARKS = ("S", "S+", "C", "C+")  # as criticalities are numbered
_EIGHTHS = " ▏▎▍▌▋▊▉"


def escaped(text: str, *, is_ascii: bool = False) -> str:
    """Return a text without anything that controls a terminal or reorders what stands there."""
    return "".join(
        char
        if char.isprintable() and (char.isascii() or not is_ascii)
        else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Write values for a terminal of some width."""

    is_ascii: bool
    is_wide: bool

    @property
    def none(self) -> str:
        """What is not known."""
        return "-" if self.is_ascii else "–"

    @property
    def ellipsis(self) -> str:
        """What is left out."""
        return "..." if self.is_ascii else "…"

    def name(self, text: str) -> str:
        """Return a name from the network, harmless and not too long."""
        shown = escaped(text[: 2 * _NAME_MAX], is_ascii=self.is_ascii)
        if len(shown) <= 2 * _NAME_MAX and len(text) <= 2 * _NAME_MAX:
            return shown
        return shown[: 2 * _NAME_MAX] + self.ellipsis

    def rate(self, value: float | None) -> str:
        """Return something per second: three digits are enough, and whole numbers beyond."""
        if value is None:
            return self.none
        if value == 0.0 or value >= 99.95:
            return f"{value:,.0f}"
        return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"

    def cost(self, value: float | None) -> str:
        """Return CPU seconds per second."""
        if value is None:
            return self.none
        return f"{value:,.2f}" if value >= 0.1 or value == 0.0 else f"{value:.3f}"

    def count(self, value: float | None) -> str:
        """Return how many."""
        return self.none if value is None else f"{value:,.0f}"

    def percent(self, value: float | None) -> str:
        """Return a fraction in per cent."""
        return self.none if value is None else f"{100.0 * value:,.0f}%"

    def ratio(self, value: float | None) -> str:
        """Return a small fraction in per cent."""
        return self.none if value is None else f"{100.0 * value:.1f}%"

    def cut(self, value: float | None) -> str:
        """Return what is below a line: S+ 40% is all of SHEDDABLE, and 40% of SHEDDABLE_PLUS."""
        if value is None:
            return self.none
        percent = min(round(100.0 * value), 100 * len(_MARKS))
        if percent <= 0:
            return "nothing"
        rank = (percent - 1) // 100
        return f"{_MARKS[rank]} {percent - 100 * rank}%"

    def duration(self, seconds: float) -> str:
        """Return a time in milliseconds, or in seconds from one on."""
        if seconds >= 1.0:
            return f"{seconds:.2f} s"
        return f"{1000.0 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"

    def bar(self, value: float | None) -> Text:
        """Return a utilization as a bar with its number: full at 100 %, and the number beyond."""
        if value is None:
            return Text(self.none)
        width = 16 if self.is_wide else 6
        filled = min(1.0, max(0.0, value)) * width
        whole = int(filled)
        if self.is_ascii:
            bar = "#" * whole
        else:
            bar = "█" * whole + _EIGHTHS[int(8 * (filled - whole))].strip()
        style = "green" if value < 0.8 else "yellow" if value < 1.0 else "red"
        return Text.assemble((bar.ljust(width), style), f" {self.percent(value):>4}")
