"""Fakes at the seams of `evenly`, for our tests and for yours."""

from __future__ import annotations

from evenly.testing.clock import ManualClock

__all__ = ["ManualClock"]
