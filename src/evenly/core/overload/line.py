"""What a client task knows of its backends' cut-lines: the level below which sending is in vain.

    line = average over time of the cut-lines that are reported (0.1 s), less a margin

A report speaks for all backends until the next one comes.  A request below the line would probably
be refused by any of them; the margin keeps a few of those that might be, so that all see whether
there is room again.
"""

from __future__ import annotations

import math
from typing import Final, final

__all__ = ["Line"]

_AVERAGE_SECONDS: Final = 0.1
_MARGIN: Final = 0.03
# An average falls for ever; below this it holds nothing back.
_NOTHING: Final = 1.0 / 64.0
# Reports of one instant are about as many backends: each is to count for something.
_LEAST_SECONDS: Final = 1e-4


@final
class Line:
    """Average the cut-lines that backends report."""

    __slots__ = ("_average", "fresh_seconds", "heard_at", "last", "value")

    def __init__(self, fresh_seconds: float) -> None:
        """Know nothing yet; what is heard is believed for `fresh_seconds`."""
        self.fresh_seconds = fresh_seconds
        self._average = 0.0
        self.last = 0.0
        """What the last report said."""
        self.heard_at = -math.inf
        self.value = 0.0
        """The line, as of the last report; 0 where nothing is held back."""

    def record(self, cut: float, now: float) -> None:
        """Learn what a backend reports."""
        seconds = now - self.heard_at
        if seconds > self.fresh_seconds:
            self._average = cut
        else:
            gain = 1.0 - math.exp(-max(seconds, _LEAST_SECONDS) / _AVERAGE_SECONDS)
            self._average += gain * (cut - self._average)
            if cut == 0.0 and self._average < _NOTHING:
                self._average = 0.0
        self.value = max(0.0, self._average - _MARGIN)
        self.last = cut
        self.heard_at = now

    @property
    def is_raised(self) -> bool:
        """Whether the last that was heard is that something is refused."""
        return self._average > 0.0

    def is_fresh(self, now: float) -> bool:
        """Return whether a report came lately."""
        return now - self.heard_at <= self.fresh_seconds
