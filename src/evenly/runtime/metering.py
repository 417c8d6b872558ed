"""Choose which requests of a method are metered.

Metering costs 3 µs in a loop that does nothing else, and three times that in a server, whose caches
are cold: too much for a handler that takes 10 µs of a request's 250.  So the methods that are cheap
are metered now and then, and the requests between are put down at the mean: what a customer pays is
right on average.  A method that takes 0.5 ms or more is metered always, and so is a stream.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, final

from evenly.signals.meter import CostMeter

__all__ = ["Metering"]

_CHEAP_SECONDS: Final = 0.0005
_SKIPPED_MOST: Final = 15  # One in eight or so ...
_VERY_CHEAP_SECONDS: Final = 0.0001
_VERY_CHEAP_SKIPPED_MOST: Final = 63  # ... and one in 32: metering costs as much as the handler.
_GAIN: Final = 0.1


@final
class Metering:
    """Meter the requests of one method, or some of them.

    `measured` is told what those took of this process, `charged` what was added to that.
    """

    __slots__ = ("_charged", "_is_always_on", "_measured", "_rng", "mean_seconds", "skips")

    def __init__(
        self,
        measured: Callable[[float], None],
        charged: Callable[[float], None],
        *,
        is_always_on: bool,
        rng: random.Random | None = None,
    ) -> None:
        self._measured = measured
        self._charged = charged
        self._is_always_on = is_always_on
        # Drawn, because a fixed stride may fall in step with what clients send.
        self._rng = random.Random() if rng is None else rng
        self.skips = 0
        """How many requests from now on are not metered."""
        self.mean_seconds = 0.0
        """What requests that were metered took lately."""

    def next(self) -> CostMeter | None:
        """Return a meter for the next request, or `None` for one that is not metered."""
        if self.skips:
            self.skips -= 1
            return None
        return CostMeter()

    def cpu_seconds(self, meter: CostMeter | None) -> float:
        """Return what a request took: as metered, or as others did."""
        if meter is None:
            return self.mean_seconds
        seconds = meter.cpu_seconds
        self._measured(meter.measured_seconds)
        if meter.charged_seconds:
            self._charged(meter.charged_seconds)
        self.mean_seconds += _GAIN * (seconds - self.mean_seconds)
        if not self._is_always_on and self.mean_seconds < _CHEAP_SECONDS > seconds:
            is_very_cheap = self.mean_seconds < _VERY_CHEAP_SECONDS
            most = _VERY_CHEAP_SKIPPED_MOST if is_very_cheap else _SKIPPED_MOST
            self.skips = self._rng.randrange(most)
        return seconds
