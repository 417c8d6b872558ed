"""Where a backend cuts: it admits what is at or above one level, and refuses everything below.

SRE book, chapter 21, "Criticality": a task rejects requests of one criticality "only if it's
already rejecting all requests of all lower criticalities".  With one number to compare with a
request's level that cannot be otherwise.  The number is found every 10 ms, from what is asked for
and what can be served:

    S     served per second, were all cores busy         cores · passed / busy core-seconds   (2 s)
    d[c]  asked for per second, by criticality           arrivals, and what clients hold back
                                                         (the last 100, of 1 to 5 s)
    n     in the queue or on a CPU                       averaged over 50 ms
    n*    what that should be                            1.25 · cores + slack
    e     = (n* − n) / n*
    W     = S · (1 + g)                                  g = 0.6 e where n is below n*, 0.2 e above
    b     the part of the cores that is busy             averaged over 0.2 s
    cut   = the level above which the demand is W / min(1, b / 0.7);    0 where all of it is less

The slack is four requests, at least 5 ms of work, and for slow requests 50 ms of it and one: so
requests of 50 µs and of half a second both wait little.

Where cores rest while something is refused, less is asked for than was believed: hence b, and below
b = 0.5 the demand is learnt anew within 0.5 s.  So slow requests, whose windows are long, do not
stay refused when an overload has ended.  A queue that is too long says the same the other way: the
last second counts then.

What clients hold back is not seen, but they say above which level they send everything: their line.
So a request of criticality c that comes with the line l stands for 1 / (c + 1 − l) of them, 10 at
most.  A criticality that all of them hold back is remembered, follows those that are seen, and is
forgotten within 5 s.

Two things do not wait for an average.  When demand rises at once, 0.05 and 0.2 s of arrivals that
chance does not explain are believed.  And a queue beyond the hard bound pulls the line up, up to
CRITICAL_PLUS; into that only if it alone is more than can be served, or the queue nearly half as
long again.

A burst at a process that was idle is no overload as long as a quarter of a second works it off.
"""

from __future__ import annotations

import math
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.core.level import TOP
from evenly.core.overload.runnable import Runnable

__all__ = ["CutLine"]

_COUNT: Final = len(Criticality)
_SERVED_SECONDS: Final = 2.0
# What few requests used varies, so that it says a little less.
_USED_RATIO: Final = 0.8
# So few requests say little, but who waits for more is late.
_WINDOW_REQUESTS: Final = 100.0
_WINDOW_LEAST_SECONDS: Final = 1.0
_WINDOW_MOST_SECONDS: Final = 5.0
_LINE_SECONDS: Final = 0.1
_UNHEARD_SECONDS: Final = 1.0
_FORGET_SECONDS: Final = 5.0
# Of a criticality of which less than this is sent, what comes says little of what is held back.
_LEAST_SENT: Final = 0.1
_ONSET_SECONDS: Final = (0.05, 0.2)
_ONSET_SIGMAS: Final = 3.0
_ONSET_LEAST: Final = 2.0

_BUSY_SECONDS: Final = 0.2
# A queue is now and then empty by chance, and event loops are busier than they are seen to be.
_BUSY_ENOUGH: Final = 0.7
_BUSY_LEAST: Final = 0.07
# Cores that rest so much while something is refused say that the demand is of another time.
_BUSY_LITTLE: Final = 0.5
_WINDOW_IDLE_SECONDS: Final = 0.5

# Who was idle a moment ago has no evidence yet that it cannot do the work in time.
_RESTED: Final = 0.2
_BURST_MEMORY_SECONDS: Final = 1.0
_BURST_SECONDS: Final = 0.25
# After so long without a look nothing is left of what was before.
_LONG_SECONDS: Final = 60.0
_LEAST_BUSY_SECONDS: Final = 1e-9

_GAIN_BELOW: Final = 0.6
_GAIN_ABOVE: Final = 0.2
_MOST_BELOW: Final = 0.5
_MOST_ABOVE: Final = 0.3
# The cut-line falls no faster below the line of those who send: what they hold back comes at once.
_SINK_MOST: Final = 0.5


@final
class CutLine:
    """Find the level below which a backend refuses."""

    __slots__ = (
        "_busy_ratio",
        "_cores",
        "_demand",
        "_folded_at",
        "_line",
        "_passed",
        "_queue",
        "_recent",
        "_rested_at",
        "_seen",
        "_served_busy",
        "_served_passed",
        "_served_used",
        "_unheard_seconds",
        "_used",
        "_usual",
        "_weight",
        "arrived",
        "is_long",
        "lines",
        "sent",
        "served",
        "value",
        "wait_seconds",
    )

    def __init__(self, queue: Runnable, cores: float, now: float) -> None:
        self._queue = queue
        self._cores = cores
        self._folded_at = now
        self.value = 0.0
        """The cut-line.  A plain attribute, for it is read once per request."""
        self.wait_seconds = 0.0
        """How long it takes until a request that arrives now is done; 0 where nobody waits."""
        self.served = 0.0
        """S; 0 is unknown."""
        self.is_long = False
        """Whether the queue is longer than it should be, as of the last fold."""
        # Since the last fold; the first is added to directly, once per request.
        self.arrived = [0] * _COUNT
        """Arrivals by criticality."""
        self.sent = [0.0] * _COUNT
        """... and how many more of them there are that their clients hold back."""
        self.lines = 0.0
        """The sum of the lines that they came with."""
        self._passed = 0.0
        self._used = 0.0
        self._busy_ratio = 0.0
        # Decayed counts, and of how many seconds they are.
        self._served_passed = self._served_busy = self._served_used = 0.0
        self._seen = [0.0] * _COUNT
        self._demand = [0.0] * _COUNT
        self._usual = 0.0
        self._weight = 0.0
        self._recent = [0.0] * len(_ONSET_SECONDS)
        self._line = 0.0
        self._unheard_seconds = 0.0
        self._rested_at = -math.inf

    def hold_back(self, criticality: Criticality, line: float) -> None:
        """Learn that an arrival's client holds back what is below this line."""
        self.lines += line
        part = criticality + 1.0 - line
        if part < 1.0:
            self.sent[criticality] += 1.0 / max(_LEAST_SENT, part) - 1.0

    def fold(self, passed: float, used_seconds: float, now: float) -> None:
        """Find it anew.

        So many requests have passed the queue in all, 0 until it is known what one takes, and so
        many CPU seconds were used, as far as that is metered.  A request that waits for something
        else has passed: its CPU was used, though it ends late.
        """
        seconds = min(now - self._folded_at, _LONG_SECONDS)
        if seconds <= 0.0:  # A clock may step back.
            self._folded_at = now
            return
        self._folded_at = now
        queue = self._queue
        busy_seconds = queue.fold(now)
        kept = math.exp(-seconds / _SERVED_SECONDS)
        self._served_passed = max(0.0, self._served_passed * kept + (passed - self._passed))
        self._served_busy = self._served_busy * kept + busy_seconds
        # A request that took long says so when it ends; of more than there was, it was before.
        used = self._served_used * kept + (used_seconds - self._used)
        self._served_used = min(used, _SERVED_SECONDS * self._cores)
        busy_ratio = max(busy_seconds, used_seconds - self._used) / (seconds * self._cores)
        gain = 1.0 - math.exp(-seconds / _BUSY_SECONDS)
        self._busy_ratio += gain * (min(1.0, busy_ratio) - self._busy_ratio)
        self._passed = passed
        self._used = used_seconds
        # An event loop is seldom seen to run what it runs; then the CPU that was used tells.
        busy = max(self._served_busy, _USED_RATIO * self._served_used)
        served = self._cores * self._served_passed / busy if busy > _LEAST_BUSY_SECONDS else 0.0
        self.served = served
        factor = self._learn(served, seconds)
        if not served or not queue.is_known(now):
            self.value = self.wait_seconds = 0.0
            self.is_long = False
            return
        waiting = queue.count - self._cores
        self.wait_seconds = (waiting + 1.0 + self._cores) / served if waiting > 0.0 else 0.0
        if self._busy_ratio < _RESTED:
            self._rested_at = now
        self._set(served, factor, now)

    def target(self) -> float:
        """Return how many requests the queue should hold: n*."""
        served = self.served
        slack = max(min(4.0, 1.0 + 0.05 * served), 0.005 * served)
        return 1.25 * self._cores + slack

    def _learn(self, served: float, seconds: float) -> float:
        """Learn what is asked for; return how many times that is asked for at once."""
        arrived = self.arrived
        count = arrived[0] + arrived[1] + arrived[2] + arrived[3]
        window = _WINDOW_LEAST_SECONDS
        if served:
            window = min(max(window, _WINDOW_REQUESTS / served), _WINDOW_MOST_SECONDS)
        if self.value > 0.0 and self._busy_ratio < _BUSY_LITTLE:
            window = _WINDOW_IDLE_SECONDS
        elif self._queue.mean > self.target() + self._cores:  # So does a queue that is too long.
            window = _WINDOW_LEAST_SECONDS
        kept = math.exp(-seconds / window)
        self._weight = self._weight * kept + min(seconds, window)
        scale = 1.0 / self._weight
        self._unheard_seconds += seconds
        if count:
            # Since the last that was heard, and be that long ago: who is slow gets few requests.
            gain = 1.0 - math.exp(-self._unheard_seconds / _LINE_SECONDS)
            self._line += gain * (self.lines / count - self._line)
            self._unheard_seconds = 0.0
        elif self._unheard_seconds > _UNHEARD_SECONDS:  # Or a line that holds all back would stay.
            self._line *= math.exp(-seconds / _UNHEARD_SECONDS)
        self._learn_demand(kept, seconds)
        self._usual = self._usual * kept + count
        factor = 1.0
        for i, onset_seconds in enumerate(_ONSET_SECONDS):
            recent = self._recent[i] * math.exp(-seconds / onset_seconds) + count
            self._recent[i] = recent
            usual = self._usual * scale * onset_seconds
            if usual and recent > usual + _ONSET_SIGMAS * math.sqrt(usual) + _ONSET_LEAST:
                factor = max(factor, recent / usual)
        if count:
            self.arrived = [0] * _COUNT
            self.sent = [0.0] * _COUNT
            self.lines = 0.0
        return factor * scale

    def _learn_demand(self, kept: float, seconds: float) -> None:
        before = after = 0.0
        hidden = min(_COUNT, int(self._line + _LEAST_SENT))  # Of these hardly anything is sent.
        arrived, sent, seen, demand = self.arrived, self.sent, self._seen, self._demand
        for i in range(_COUNT):
            seen[i] = seen[i] * kept + arrived[i]
        for i in range(hidden, _COUNT):
            before += demand[i]
            demand[i] = demand[i] * kept + arrived[i] + sent[i]
            after += demand[i]
        if hidden:
            ratio = after / before if before > 0.0 else kept
            ratio = min(ratio, 1.0 / kept) * math.exp(-seconds / _FORGET_SECONDS)
            for i in range(hidden):
                demand[i] = max(demand[i] * ratio, seen[i])

    def _set(self, served: float, scale: float, now: float) -> None:
        queue = self._queue
        if now - self._rested_at < _BURST_MEMORY_SECONDS and self._is_soon_done(queue.count):
            self.value = 0.0
            self.is_long = False
            return
        target = self.target()
        self.is_long = queue.mean > target
        error = (target - queue.mean) / target
        correction = (
            min(_MOST_BELOW, _GAIN_BELOW * error)
            if error > 0.0
            else max(-_MOST_ABOVE, _GAIN_ABOVE * error)
        )
        hard = max(target + 1.75 * self._cores, 0.15 * served)
        if queue.count > hard:
            correction = -min(1.0, 0.5 * queue.count / hard)
        busy = 1.0  # Where more wait than should, nothing rests.
        if queue.count < target:
            busy = min(1.0, max(_BUSY_LEAST, self._busy_ratio) / _BUSY_ENOUGH)
        value = self._level_of(served * (1.0 + correction) / busy / scale)
        highest = TOP - 1.0
        if value > highest:
            cap = highest + min(1.0, max(0.0, 0.5 * queue.mean / hard - 0.7))
            value = min(value, max(cap, self._level_of(served / scale)))
        elif self.value > 0.0 and value < self._line - _SINK_MOST:
            value = self._line - _SINK_MOST
        self.value = value

    def _is_soon_done(self, count: float) -> bool:
        """Return whether so many are no overload for who was idle a moment ago."""
        served = self.served
        if self._served_used > 0.0:  # Who reads a burst is busy, and has served nobody of it yet.
            served = max(served, self._cores * self._served_passed / self._served_used)
        return count < _BURST_SECONDS * served

    def _level_of(self, wanted: float) -> float:
        """Return the level above which there is so much demand."""
        for i in range(_COUNT - 1, -1, -1):
            here = self._demand[i]
            if here > wanted:
                return i + 1.0 - max(0.0, wanted) / here
            wanted -= here
        return 0.0
