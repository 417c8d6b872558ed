"""Choose which requests of a method are metered.

Metering costs 3 µs in a loop that does nothing else, and three times that in a server, whose caches
are cold: a tenth of a handler that takes 0.1 ms.  So methods that are cheap are metered now and
then, and the requests between are put down at the mean:

    below 0.1 ms on average     one in 32, or in eight where one took 1 ms lately
    below 0.5 ms                one in eight, or all where one took 1 ms lately
    otherwise, and streams      all

Where a method's requests differ a lot and most are cheap, too little is put down to them, because
it is while the mean is low that they are skipped: a third less, where one in ten takes 3 ms and the
others 0.05.  The process's clock makes up for the sum (`CostKeeper`); with quotas all are metered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, final

from evenly.signals.cost_meter import CostMeter

__all__ = ["Metering"]

_SELDOM_SECONDS: Final = 0.0001
_SELDOM_SKIPPED_MOST: Final = 63  # One in 32 or so ...
_SOMETIMES_SECONDS: Final = 0.0005
_SOMETIMES_SKIPPED_MOST: Final = 15  # ... and one in eight.
_DEAR_SECONDS: Final = 0.001
_DEAR_KEPT_RATIO: Final = 0.995  # One that took twice that is forgotten after 139 that are metered.
_GAIN: Final = 0.1


@final
class Metering:
    """Meter the requests of one method, or some of them.

    `measured` is told what those took of this process, and how many others since the last were put
    down at what; `charged`, what was added to that.
    """

    __slots__ = (
        "_charged",
        "_dearest_seconds",
        "_drawn",
        "_is_always_on",
        "_measured",
        "_own_seconds",
        "_rng",
        "mean_seconds",
        "skips",
    )

    def __init__(
        self,
        measured: Callable[[float, int, float], None],
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
        self._drawn = 0
        self._dearest_seconds = 0.0  # of late
        self._own_seconds = 0.0  # the mean without what was charged
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
        own_seconds = meter.measured_seconds
        self._measured(own_seconds, self._drawn - self.skips, self._own_seconds)
        if meter.charged_seconds:
            self._charged(meter.charged_seconds)
        gain = _GAIN if self.mean_seconds else 1.0  # The first is taken whole.
        self.mean_seconds += gain * (seconds - self.mean_seconds)
        self._own_seconds += gain * (own_seconds - self._own_seconds)
        self._dearest_seconds = max(seconds, _DEAR_KEPT_RATIO * self._dearest_seconds)
        most = 0 if self._is_always_on or seconds >= _SOMETIMES_SECONDS else self._skipped_most()
        self._drawn = self.skips = self._rng.randrange(most) if most else 0
        return seconds

    def _skipped_most(self) -> int:
        is_even = self._dearest_seconds < _DEAR_SECONDS
        if self.mean_seconds < _SELDOM_SECONDS:
            return _SELDOM_SKIPPED_MOST if is_even else _SOMETIMES_SKIPPED_MOST
        if self.mean_seconds < _SOMETIMES_SECONDS and is_even:
            return _SOMETIMES_SKIPPED_MOST
        return 0
