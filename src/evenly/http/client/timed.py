"""The time that a request may take: until its deadline, and for each phase where a library says so.

One timer does both.  It is not moved when there is more time than it knows of: one that comes too
soon looks again, which is cheaper than to arm another for each chunk of a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from evenly.core.request import Request
from evenly.http.client.errors import Phase
from evenly.http.client.service import Service

__all__ = ["PhaseSeconds", "Timed"]

PhaseSeconds = Mapping[Phase, float | None]


class Timed:
    """Be something that ends when its time is up."""

    __slots__ = ("_limit_at", "_phase", "_request", "_seconds", "_service", "_timer", "_timer_at")

    # Set by those who are: a constructor of its own would cost each request a call.
    _limit_at: float | None
    _phase: Phase
    """What is waited for."""
    _request: Request
    _seconds: PhaseSeconds | None
    """How long each phase may take, beside the deadline."""
    _service: Service
    _timer: asyncio.Handle | None
    _timer_at: float
    """When it comes: uvloop's handles for what is due at once cannot be asked."""

    def _expire(self) -> None:
        """End: time is up."""
        raise NotImplementedError

    def _enter(self, phase: Phase) -> None:
        """Begin to wait for something, no longer than it may take."""
        self._phase = phase
        at = self._request.deadline_at
        if self._seconds is None:
            if self._timer is not None:
                return  # It stands from the beginning to the end.
        else:
            seconds = self._seconds.get(phase)
            if seconds is not None:
                limit_at = self._service.loop.time() + seconds
                if at is None or limit_at < at:
                    at = limit_at
        self._limit(at)

    def _leave(self) -> None:
        """Wait for nothing but the deadline: it is for the caller to go on."""
        if self._seconds is not None:
            self._limit(self._request.deadline_at)

    def _limit(self, at: float | None) -> None:
        self._limit_at = at
        timer = self._timer
        if at is None or (timer is not None and self._timer_at <= at):
            return  # A timer that comes too soon looks again.
        if timer is not None:
            timer.cancel()
        self._timer = self._service.loop.call_at(at, self._tick)
        self._timer_at = at

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        at = self._limit_at
        if at is None:
            return
        if self._service.loop.time() < at:
            self._limit(at)
            return
        self._expire()
