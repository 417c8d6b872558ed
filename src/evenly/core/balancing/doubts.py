"""Tell a backend that begins to fail from errors that are ordinary.

What a backend says of its errors is a rate, in which those of the last second stand beside all that
went well before.  A backend that begins to fail everything says at first that it fails one request
in fourteen, and draws in more with its empty queue until it says otherwise.  Yet where one in a
hundred fails everywhere, one error says nothing, and chance must not decide who is sent to.

An error is news where it comes from a backend that had none for half a minute, and from no other:

    doubt = (1 - erring others / others)^2, and fades

Where errors are ordinary nearly all have had some lately, and no doubt arises.  One that failed
most of its requests does not count among the others: a fault makes nothing ordinary.  Where errors
are rare one in vain costs next to nothing: a backend has less for some seconds, once in a while.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, final

from evenly.core.balancing.backend import BackendView
from evenly.core.report import LoadReport

__all__ = ["Doubts"]

# A single request, in a rate over a second, is above this for 1.6 s.
_LEAST_PER_SECOND: Final = 0.2
# For how long an error is remembered: what fails once in two minutes is rarely in doubt.
_LATELY_SECONDS: Final = 30.0
# Half of what its part of failed requests was at most: it serves again.
_REFUTED_RATIO: Final = 0.5
# What fails most of its requests is broken: that says nothing of other errors.
_FAULT_RATIO: Final = 0.5
_FADE_SECONDS: Final = 7.0
_FORGOTTEN: Final = 0.01


@final
class _Doubt:
    """Hold how strong the doubt was when, and which part failed at most."""

    __slots__ = ("at", "failing", "strength")

    def __init__(self, strength: float, failing: float, at: float) -> None:
        self.strength = strength
        self.failing = failing
        self.at = at

    @property
    def is_fault(self) -> bool:
        """Whether it failed so much that its errors are not of the ordinary kind."""
        return self.failing >= _FAULT_RATIO


@final
class Doubts:
    """Keep which backends have lately said that they fail, and which of them is in doubt."""

    __slots__ = ("_doubts", "_erring")

    def __init__(self) -> None:
        # When each last said so, the longest ago first.
        self._erring: OrderedDict[BackendView, float] = OrderedDict()
        self._doubts: dict[BackendView, _Doubt] = {}

    def remove(self, view: BackendView) -> None:
        """Forget a backend."""
        self._erring.pop(view, None)
        self._doubts.pop(view, None)

    def record_report(
        self, view: BackendView, report: LoadReport, failing: float, others: int, now: float
    ) -> None:
        """Learn which part of its requests one of several backends says that it fails."""
        doubt = self._doubts.get(view)
        if doubt is not None:
            if failing > doubt.failing:
                # Another error, and nothing between that went well: it begins anew.
                doubt.failing = failing
                doubt.at = now
            elif failing < _REFUTED_RATIO * doubt.failing and report.qps >= _LEAST_PER_SECOND:
                del self._doubts[view]
                if doubt.is_fault:
                    self._erring.pop(view, None)
        if report.eps < _LEAST_PER_SECOND:
            return
        self._drop_old(now)
        # Of one that was not heard before nobody knows what is ordinary.
        if view not in self._erring and view.reports_since is not None and others > 0:
            ordinary = sum(not self._is_fault(other) for other in self._erring)
            erring = min(1.0, ordinary / others)
            self._doubts[view] = _Doubt((1.0 - erring) ** 2, failing, now)
        self._erring[view] = now
        self._erring.move_to_end(view)

    def of(self, view: BackendView, now: float) -> float:
        """Return how much a backend is in doubt, from 0 to 1."""
        if not self._doubts:
            return 0.0
        doubt = self._doubts.get(view)
        if doubt is None:
            return 0.0
        left = doubt.strength * math.exp(-max(0.0, now - doubt.at) / _FADE_SECONDS)
        if left < _FORGOTTEN:
            del self._doubts[view]
            return 0.0
        return left

    def _is_fault(self, view: BackendView) -> bool:
        doubt = self._doubts.get(view)
        return doubt is not None and doubt.is_fault

    def _drop_old(self, now: float) -> None:
        while self._erring:
            view = next(iter(self._erring))
            if now - self._erring[view] < _LATELY_SECONDS:
                return
            del self._erring[view]
