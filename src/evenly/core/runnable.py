"""How many requests of a backend want the CPU now, and what that means to ramps and to clients.

A count of requests says little of a queue by itself: sixty of 50 µs are worked off in 3 ms.  The
ramps see it per core, weighed by what a request costs, without the few that are always there.

They see nothing of a queue that is no evidence of overload: while it is not known what a request
takes, or where a CPU that was idle until a moment ago works it off soon.
"""

from __future__ import annotations

import math
from typing import final

from evenly.core.averages import Averages
from evenly.core.backend_task_config import BackendTaskConfig
from evenly.core.window import DecayingAverage

__all__ = ["Runnable"]

_MOST = 1e9
# A reader that has said nothing for so long is stuck.
_KNOWN_SECONDS = 5.0
# Cores that were busy for less of the last `rate_seconds` were idle.
_IDLE_RATIO = 0.1


@final
class Runnable:
    """Keep what was last said of the queue, and how busy the cores were."""

    __slots__ = ("_busy", "_config", "_count", "_idle_at", "_recorded_at")

    def __init__(self, config: BackendTaskConfig) -> None:
        self._config = config
        self._count = 0.0
        self._recorded_at = self._idle_at = -math.inf
        # The part of the cores that is busy: the utilization where nobody reads the CPU clock,
        # over as long as the rates with which it makes a weight.
        self._busy = DecayingAverage(config.rate_seconds)

    def record(self, count: float, ended: Averages, now: float) -> float:
        """Note a count, and return what the ramps are to see of it: NaN for nonsense."""
        if not (isinstance(count, (int, float)) and 0.0 <= count <= _MOST):
            return math.nan
        config = self._config
        if not self._is_known(now):
            # What was before the silence did not hold all the while.
            self._busy = DecayingAverage(config.rate_seconds)
        if self._busy.value(now) < _IDLE_RATIO:
            self._idle_at = now
        self._count = float(count)
        self._recorded_at = now
        self._busy.record(now, min(1.0, count / config.cores))
        if self._is_burst(ended, now):
            return 0.0
        weighed = count * self._weight(ended.mean_cpu_seconds)
        return max(0.0, weighed - config.runnable_slack) / config.cores

    def is_harmless(self, mean_cpu_seconds: float) -> bool:
        """Return whether the queue is soon worked off: forty of a millisecond, not of a second."""
        wait_seconds = self._count * mean_cpu_seconds / self._config.cores
        return wait_seconds < self._config.harmless_seconds

    def reported(self, active: int, now: float) -> float:
        """Return what clients are told; where its reader is stuck, all that are active may run."""
        return self._count if self._is_known(now) else float(active)

    def busy_ratio(self, now: float) -> float:
        """Return which part of the cores was busy; 0 is unknown."""
        return self._busy.value(now) if self._is_known(now) else 0.0

    def alike(self, per_core: float, mean_cpu_seconds: float) -> float:
        """Return the count of which the ramps would see so much per core; 0 for nothing."""
        if per_core == 0.0:
            return 0.0
        config = self._config
        weighed = config.runnable_slack + config.cores * per_core
        return min(weighed / self._weight(mean_cpu_seconds), _MOST)

    def _is_burst(self, ended: Averages, now: float) -> bool:
        """Return whether the queue says nothing of an overload, whatever its length.

        An idle CPU has `burst_seconds` of work to give, within which it is seen what requests cost.
        """
        if not ended.is_known:
            return self._config.burst_seconds > 0.0
        wait_seconds = self._count * ended.mean_cpu_seconds / self._config.cores
        is_new = 0.0 <= now - self._idle_at < self._config.rate_seconds
        return is_new and wait_seconds < self._config.burst_seconds

    def _weight(self, mean_cpu_seconds: float) -> float:
        """Return as how much of a request one counts in a queue: by its cost, at most 1."""
        unit_seconds = self._config.unit_seconds
        # Before anything was served nothing is known.
        mean_seconds = mean_cpu_seconds or unit_seconds
        return mean_seconds / unit_seconds if mean_seconds < unit_seconds else 1.0

    def _is_known(self, now: float) -> bool:
        """Return whether somebody counts."""
        return now - self._recorded_at <= _KNOWN_SECONDS
