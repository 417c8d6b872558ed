"""How many requests of a backend want the CPU: now, on average, and how busy that keeps it."""

from __future__ import annotations

import math
from typing import final

__all__ = ["Runnable"]

_MOST = 1e9
# A reader that has said nothing for so long is stuck.
_KNOWN_SECONDS = 5.0
# A queue varies by a request with each that comes and goes: nothing follows from less than this.
_MEAN_SECONDS = 0.05


@final
class Runnable:
    """Keep what was last said of the queue, and sum up what was said since the last fold.

    To record is a few additions, because it is done twice per request; averages are made by `fold`.
    """

    __slots__ = (
        "_averaged_seconds",
        "_busy_ratio",
        "_busy_seconds",
        "_cores",
        "_folded_at",
        "_recorded_at",
        "_summed_at",
        "_waited_seconds",
        "count",
        "mean",
    )

    def __init__(self, cores: float, busy_seconds: float, now: float) -> None:
        """Count nothing yet; the part of the cores that is busy is averaged over `busy_seconds`."""
        self._cores = cores
        self.count = 0.0
        self.mean = 0.0
        """Averaged over 50 ms, as of the last fold."""
        self._recorded_at = -math.inf
        self._folded_at = self._summed_at = now
        self._waited_seconds = 0.0
        self._busy_seconds = 0.0
        self._averaged_seconds = busy_seconds
        self._busy_ratio: float | None = None

    def record(self, count: float, now: float) -> bool:
        """Note a count; return whether it can be one."""
        if not (isinstance(count, (int, float)) and 0.0 <= count <= _MOST):
            return False
        if not self.is_known(now):
            # What was before the silence did not hold all the while.
            self.count = self._waited_seconds = self._busy_seconds = self.mean = 0.0
            self._busy_ratio = None
            self._summed_at = self._folded_at = now
        self._sum(now)
        self.count = float(count)
        self._recorded_at = now
        return True

    def fold(self, now: float) -> float:
        """Average what was recorded; return for how many core-seconds the cores were busy."""
        self._sum(now)
        seconds = now - self._folded_at
        busy_seconds = self._busy_seconds
        self._folded_at = now
        if seconds > 0.0:
            gain = 1.0 - math.exp(-seconds / _MEAN_SECONDS)
            self.mean += gain * (self._waited_seconds / seconds - self.mean)
            busy_ratio = min(1.0, busy_seconds / seconds / self._cores)
            if self._busy_ratio is None:
                self._busy_ratio = busy_ratio
            gain = 1.0 - math.exp(-seconds / self._averaged_seconds)
            self._busy_ratio += gain * (busy_ratio - self._busy_ratio)
        self._waited_seconds = self._busy_seconds = 0.0
        return busy_seconds

    def reported(self, active: int, now: float) -> float:
        """Return what clients are told; where its reader is stuck, all that are active may run."""
        return self.count if self.is_known(now) else float(active)

    def busy_ratio(self, now: float) -> float:
        """Return which part of the cores was busy; 0 is unknown."""
        return self._busy_ratio or 0.0 if self.is_known(now) else 0.0

    def is_known(self, now: float) -> bool:
        """Return whether somebody counts."""
        return now - self._recorded_at <= _KNOWN_SECONDS

    def _sum(self, now: float) -> None:
        seconds = now - self._summed_at
        self._summed_at = now
        if seconds > 0.0:  # A clock may step back.
            count = self.count
            self._waited_seconds += count * seconds
            self._busy_seconds += (count if count < self._cores else self._cores) * seconds
