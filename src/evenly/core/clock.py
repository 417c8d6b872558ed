"""Time is passed in: a clock is any function that returns seconds.

Façades read their clock once per public call and pass `now` down, so that one decision sees one
instant; leaves are only ever told `now`.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Clock"]

Clock = Callable[[], float]
