"""Emulate a machine with slots and sleeps, so that two real cores can show a fleet.

A request takes a slot, as it would take a core, for what it costs over the machine's speed; without
a free slot it waits in line.  A slot that becomes free goes to the next in line from the moment at
which it did, not from when our timer was heard: a demo on a busy laptop has the capacity it says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

__all__ = ["Machine"]


@final
class _Job:
    __slots__ = ("done", "has_left", "is_in_line", "is_wanted", "seconds", "since", "took_seconds")

    def __init__(self, seconds: float, since: float, done: asyncio.Future[None]) -> None:
        self.seconds = seconds
        self.since = since
        self.done = done
        self.has_left = False
        self.is_in_line = True
        self.is_wanted = True
        self.took_seconds = 0.0


@final
class Machine:
    """Work on `slots` requests at a time; `changed` is told when that or the line has changed."""

    def __init__(self, slots: int, speed: float, changed: Callable[[], None]) -> None:
        self.speed = speed
        self.slots = slots
        self._keeps_unwanted = False
        self.busy = 0
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._line: deque[_Job] = deque()
        self._unwanted = 0
        # Slot-seconds worked until `_until`, for the utilization.
        self._worked = 0.0
        self._until = self._loop.time()

    def keep_unwanted(self, *, is_on: bool) -> None:
        """Keep requests in line whose clients have left, as a plain server does, or drop them."""
        self._keeps_unwanted = is_on
        if not is_on:
            for job in self._line:
                self._drop(job)
        self._changed()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line) - self._unwanted

    def worked_seconds(self) -> float:
        """Return how many slot-seconds have been worked so far."""
        self._count(self._loop.time())
        return self._worked

    async def work(self, seconds: float) -> float:
        """Return when `seconds` of work at speed 1 are done, and what they took of a slot.

        Whoever is cancelled has lost interest.  What is being worked on is finished nevertheless,
        as code that computes would.
        """
        job = _Job(seconds, self._loop.time(), self._loop.create_future())
        self._line.append(job)
        self._begin(job.since)
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            job.has_left = True
            if job.is_in_line and not self._keeps_unwanted:
                self._drop(job)
                self._changed()
            raise
        return job.took_seconds

    def _drop(self, job: _Job) -> None:
        if job.has_left and job.is_wanted:
            job.is_wanted = False
            self._unwanted += 1

    def _begin(self, free_at: float) -> None:
        """Give free slots to those in line, from `free_at` or from when they came."""
        while self.busy < self.slots and self._line:
            job = self._line.popleft()
            job.is_in_line = False
            if not job.is_wanted:
                self._unwanted -= 1
                continue
            began_at = max(free_at, job.since)
            self._count(began_at)
            self.busy += 1
            job.took_seconds = job.seconds / self.speed
            ends_at = began_at + job.took_seconds
            self._loop.call_at(ends_at, self._end, ends_at, job)
        self._changed()

    def _end(self, ended_at: float, job: _Job) -> None:
        self._count(ended_at)
        self.busy -= 1
        if not job.done.done():
            job.done.set_result(None)
        self._begin(ended_at)

    def _count(self, now: float) -> None:
        if now > self._until:
            self._worked += self.busy * (now - self._until)
            self._until = now
