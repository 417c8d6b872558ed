"""Let requests that were admitted begin one slice of work at a time, and look at arrivals between.

SRE book, chapter 21: a backend must go on rejecting cheaply "regardless of how much excess traffic
is thrown at" it.  To reject a request it has to look at it, and an event loop that begins each
request as soon as it has read it never gets to the next: grpc.aio takes one request off its
completion queue per four or five turns of the loop, so that turns of 20 ms leave the queue where
nobody sees it until its deadlines have passed (at 3 × the capacity every request does).  So a
request that was admitted waits here for its first step:

    begin   while the work begun since the last look is less than `slice_seconds`
    look    turn the loop without beginning anything until it has been idle for `idle_seconds`,
            or for as long as the work took

"Work" is CPU time: what requests took on average, put down when one begins, and what one took more,
put down when it ends.  Looking for as long as the work took bounds the price: at worst half of the
time goes into reading and refusing.  Otherwise it is one idle wait a slice, 0.3 ms in 10, and a
backend that is mostly idle does without: it has looked.

A turn of the loop that works little is a look as well, where it reads all that has arrived on open
connections (`calm_seconds`): requests of which a turn's take less than that hardly ever wait.  One
that works long is none, because a connection needs four or five turns to be accepted and read, and
its request is not seen meanwhile; nor is one that lasts, because of requests that took more than
they were put down at.

`waiting` is thereby an exact count of the requests admitted and not begun.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import final

from evenly.core import check
from evenly.core.clock import Clock

__all__ = ["StartGate"]

# A turn that does nothing takes 5 µs, reading a request 50 and more.  On a slow machine nothing
# takes longer, so what counts is also measured against the fastest turn seen.
_EMPTY_TURN_SECONDS = 25e-6
_EMPTY_TURN_RATIO = 3.0
# A loop that has worked less than a tenth of the time has had time to look.  Not a half: several
# backends may share a CPU, and each of them is overloaded when it gets its part and no more.
_QUIET_RATIO = 10.0
# However little was begun, there is time to read a few requests.
_LEAST_LOOK_SECONDS = 0.001
# A stream that took minutes of CPU did not take them at once: a look lasts no longer than this.
_MOST_WORK_SECONDS = 0.1
# How fast the mean follows: about the last ten requests count.
_GAIN = 0.1
# From this part of `calm_seconds` on we ask to be told when the loop has turned.
_NOTE_RATIO = 0.25
# A calm turn lasts no longer than so many times `calm_seconds`, with all that is read and written.
_CALM_TURN_RATIO = 2.0


@final
class StartGate:
    """Hold requests back, first come first served, until it is their turn to begin.

    Use it on the loop's thread.  While nobody waits, a request costs three comparisons, and at most
    one call is scheduled for a turn of the loop.
    """

    __slots__ = (
        "_calm_seconds",
        "_charge_seconds",
        "_clock",
        "_fastest_turn_seconds",
        "_idle_seconds",
        "_idle_since",
        "_is_turning",
        "_looking_since",
        "_loop",
        "_note_seconds",
        "_noted_at",
        "_queue",
        "_slice_seconds",
        "_slice_since",
        "_turned_at",
        "_work_seconds",
        "mean_seconds",
        "waiting",
    )

    def __init__(
        self,
        *,
        slice_seconds: float = 0.01,
        idle_seconds: float = 0.0003,
        calm_seconds: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:
        check.number("slice_seconds", slice_seconds, 1e-6, 1.0)
        check.number("idle_seconds", idle_seconds, 0.0, 1.0)
        check.number("calm_seconds", calm_seconds, 0.0, slice_seconds)
        self.waiting = 0
        """Requests admitted and not begun."""
        self.mean_seconds = 0.0
        """What requests took lately; 0 is unknown."""
        self._slice_seconds = slice_seconds
        # Long enough for the thread that feeds the loop to be heard of, on a CPU that both share.
        self._idle_seconds = idle_seconds
        self._calm_seconds = calm_seconds
        # How much work makes us ask for the next turn; `inf` when that was done, or is no look.
        self._note_seconds = math.inf
        self._clock = clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._work_seconds = 0.0  # begun since the last look ...
        self._slice_since = clock()  # ... which ended then
        self._charge_seconds = slice_seconds  # Until one has ended, they begin one by one.
        self._is_turning = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking_since = self._idle_since = self._turned_at = self._noted_at = 0.0
        self._fastest_turn_seconds = math.inf
        self._begin_slice(self._slice_since)

    def try_enter(self) -> bool:
        """Begin a request at once, if nobody waits and the slice is not used up."""
        if self._is_turning:
            return False
        if self._work_seconds >= self._slice_seconds:
            now = self._clock()
            if now - self._slice_since < _QUIET_RATIO * self._work_seconds:
                return False
            self._begin_slice(now)
        self._work_seconds += self._charge_seconds
        if self._work_seconds >= self._note_seconds:
            self._note()
        return True

    async def enter(self) -> None:
        """Return when the request may begin; whoever is cancelled here has not begun."""
        if self.try_enter():
            return
        if not self._is_turning:
            self._loop = asyncio.get_running_loop()
            self._is_turning = True
            self._look()
        assert self._loop is not None  # noqa: S101  It is set while the gate is turning.
        turn = self._loop.create_future()
        self._queue.append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # It was let through, and does not come.
                self._work_seconds = max(0.0, self._work_seconds - self._charge_seconds)
            raise
        finally:
            self.waiting -= 1

    def left(self, cpu_seconds: float, others: int = 0, others_seconds: float = 0.0) -> None:
        """Learn that a request that had begun has ended, and what it took.

        As many `others` have ended since the last one and were not metered; they are put down at
        `others_seconds` each, or what is metered seldom would count for less.
        """
        if cpu_seconds > _MOST_WORK_SECONDS:
            cpu_seconds = _MOST_WORK_SECONDS
        more_seconds = cpu_seconds - self._charge_seconds
        if more_seconds > 0.0:
            self._work_seconds += more_seconds
        if others:
            gain = 1.0 - (1.0 - _GAIN) ** others
            self.mean_seconds += gain * (others_seconds - self.mean_seconds)
        if self.mean_seconds:
            self.mean_seconds += _GAIN * (cpu_seconds - self.mean_seconds)
        else:
            self.mean_seconds = cpu_seconds  # The first is taken whole.
        self._charge_seconds = self.mean_seconds

    def _note(self) -> None:
        """Ask to be told when the loop has turned."""
        self._note_seconds = math.inf
        self._noted_at = self._clock()
        self._soon(self._noted, asyncio.get_running_loop())

    def _noted(self) -> None:
        now = self._clock()
        is_short = now - self._noted_at < _CALM_TURN_RATIO * self._calm_seconds
        if is_short and self._work_seconds < self._calm_seconds:
            self._begin_slice(now)

    def _look(self) -> None:
        """Turn the loop from now on, so that it reads what has arrived."""
        self._looking_since = self._idle_since = self._turned_at = self._clock()
        self._soon_turning(self._turn)

    def _turn(self) -> None:
        now = self._clock()
        took_seconds = now - self._turned_at
        self._turned_at = now
        if took_seconds < self._fastest_turn_seconds:
            self._fastest_turn_seconds = took_seconds
        if took_seconds > max(_EMPTY_TURN_SECONDS, _EMPTY_TURN_RATIO * self._fastest_turn_seconds):
            self._idle_since = now
        most_seconds = min(max(_LEAST_LOOK_SECONDS, self._work_seconds), _MOST_WORK_SECONDS)
        if (
            now - self._idle_since >= self._idle_seconds
            or now - self._looking_since >= most_seconds
        ):
            self._begin_slice(now)
            self._let_through()
        else:
            self._soon_turning(self._turn)

    def _begin_slice(self, now: float) -> None:
        self._work_seconds = 0.0
        self._slice_since = now
        if self._calm_seconds:
            self._note_seconds = _NOTE_RATIO * self._calm_seconds

    def _let_through(self) -> None:
        """Let through as many as fill the slice; they run in the next turn, and then we go on."""
        queue = self._queue
        while queue and self._work_seconds < self._slice_seconds:
            turn = queue.popleft()
            if not turn.done():  # or it was cancelled
                turn.set_result(None)
                self._work_seconds += self._charge_seconds
        if queue:
            self._soon_turning(self._go_on)
        else:
            self._is_turning = False  # Who comes in this turn begins before those let through.

    def _go_on(self) -> None:
        while self._queue and self._queue[0].done():  # cancelled: no reason to look
            self._queue.popleft()
        if not self._queue:
            self._is_turning = False
        elif self._work_seconds < self._slice_seconds:
            self._let_through()  # who came in the meantime
        else:
            self._look()

    def _soon_turning(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101  It is set while the gate is turning.
        self._soon(callback, self._loop)

    @staticmethod
    def _soon(callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        # In an empty context: the one that is current may belong to a request.
        loop.call_soon(callback, context=Context())
