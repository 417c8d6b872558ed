"""What the requests that ended lately took, on average.

    average ← average + gain · (request − average)          about the last twenty count

To do so for each request costs more than to serve a cheap one, so requests that end shortly after
one another are summed up and averaged together.  n requests of which m is the mean weigh as much as
they would one by one:

    average ← average + (1 − (1 − gain)ⁿ) · (m − average)

The first two are taken whole, each: the first request of a process loads what the others find
loaded, and would be a third of the average twenty requests later.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["Averages"]

_GAIN: Final = 0.05


@final
class Averages:
    """Average what requests took.

    Whoever sums up adds to `count` and the sums, and calls `take` before it reads an average.
    """

    __slots__ = (
        "_is_begun",
        "active",
        "count",
        "cpu_seconds",
        "is_known",
        "latency_seconds",
        "mean_cpu_seconds",
        "seconds",
        "usual_active",
    )

    def __init__(self) -> None:
        # Sums over `count` requests that are not averaged yet.
        self.count = 0
        self.active = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._is_begun = False
        self.is_known = False
        """Whether any was served."""
        self.latency_seconds = 0.0
        """From admission to the end; 0 is unknown."""
        self.usual_active = 1.0
        """How many were active when one ended, itself included."""
        self.mean_cpu_seconds = 0.0
        """What one used of a CPU; 0 is unknown."""

    def take(self, used_seconds: float) -> None:
        """Average what was summed up, of which all used this together."""
        count = self.count
        self.record(count, self.seconds / count, self.active / count, used_seconds / count)
        self.count = self.active = 0
        self.seconds = self.cpu_seconds = 0.0

    def record(self, count: int, seconds: float, active: float, used_seconds: float) -> None:
        """Average so many requests of which each took this."""
        gain = 1.0 - (1.0 - _GAIN) ** count if self._is_begun else 1.0
        self._is_begun = self.is_known or count > 1
        self.is_known = True
        self.latency_seconds += gain * (seconds - self.latency_seconds)
        self.usual_active += gain * (active - self.usual_active)
        # Where nobody meters the CPU, a request may need it all the time that it takes.
        self.mean_cpu_seconds += gain * ((used_seconds or seconds) - self.mean_cpu_seconds)
