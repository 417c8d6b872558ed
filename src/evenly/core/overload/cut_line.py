"""Where a backend cuts: it admits what is at or above one level, and refuses everything below.

SRE book, chapter 21, "Criticality": a task rejects requests of one criticality "only if it's already
rejecting all requests of all lower criticalities".  With one number to compare with a request's
level that cannot be otherwise.  The number is found every 10 ms, from what is asked for and what can
be served:

    S     served per second, were all cores busy         cores · ended / busy core-seconds   (2 s)
    d[c]  asked for per second, by criticality           arrivals, and what clients hold back (1 s)
    n     in the queue or on a CPU                       averaged over 50 ms
    n*    what that should be                            1.25 · cores + slack
    e     = (n* − n) / n*
    W     = S · (1 + g)                                  g = 0.6 e where n is below n*, 0.2 e above
    cut   = the level above which the demand is W;       0 where all of it is less

The slack is four requests, at least 5 ms of work, and for slow requests 50 ms of it and one: so
requests of 50 µs and of half a second both wait little.

What clients hold back is not seen, but they say above which level they send everything: their line.
So a request of criticality c that comes with the line l stands for 1 / (c + 1 − l) of them.  A
criticality that all of them hold back is remembered, follows those that are seen, and is forgotten
in 5 s.

Two things do not wait for an average.  When demand rises at once, 0.05 and 0.2 s of arrivals that
chance does not explain are believed.  And a queue beyond the hard bound pulls the line up, up to
CRITICAL_PLUS; into that only if it alone is more than can be served, or the queue twice as long.
"""

from __future__ import annotations

import math
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.core.level import TOP
from evenly.core.runnable import Runnable

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
_FORGET_SECONDS: Final = 5.0
# Of a criticality of which less than this is sent, what comes says little of what is held back.
_LEAST_SENT: Final = 0.1
_ONSET_SECONDS: Final = (0.05, 0.2)
_ONSET_SIGMAS: Final = 3.0
_ONSET_LEAST: Final = 2.0

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
        "_cores",
        "_demand",
        "_ended",
        "_fill",
        "_folded_at",
        "_line",
        "_queue",
        "_recent",
        "_served_busy",
        "_served_ended",
        "_served_used",
        "_used",
        "_usual",
        "arrived",
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
        # Since the last fold; the first is added to directly, once per request.
        self.arrived = [0] * _COUNT
        """Arrivals by criticality."""
        self.sent = [0.0] * _COUNT
        """... and how many more of them there are that their clients hold back."""
        self.lines = 0.0
        """The sum of the lines that they came with."""
        self._ended = 0
        self._used = 0.0
        # Decayed counts, and how full their windows are.
        self._served_ended = self._served_busy = self._served_used = 0.0
        self._demand = [0.0] * _COUNT
        self._usual = 0.0
        self._fill = 0.0
        self._recent = [0.0] * len(_ONSET_SECONDS)
        self._line = 0.0

    def hold_back(self, criticality: Criticality, line: float) -> None:
        """Learn that an arrival's client holds back what is below this line."""
        self.lines += line
        part = criticality + 1.0 - line
        if part < 1.0:
            self.sent[criticality] += 1.0 / max(_LEAST_SENT, part) - 1.0

    def fold(self, ended: int, used_seconds: float, now: float) -> None:
        """Find it anew.

        `ended` requests have ended in all, and used so many CPU seconds, as far as that is metered.
        """
        seconds = now - self._folded_at
        if seconds <= 0.0:
            return
        self._folded_at = now
        queue = self._queue
        busy_seconds = queue.fold(now)
        kept = math.exp(-seconds / _SERVED_SECONDS)
        self._served_ended = self._served_ended * kept + (ended - self._ended)
        self._served_busy = self._served_busy * kept + busy_seconds
        self._served_used = self._served_used * kept + (used_seconds - self._used)
        self._ended = ended
        self._used = used_seconds
        # An event loop is seldom seen to run what it runs; then the CPU that was used tells.
        busy = max(self._served_busy, _USED_RATIO * self._served_used)
        self.served = served = self._cores * self._served_ended / busy if busy > 0.0 else 0.0
        factor = self._learn(served, seconds)
        if not served or not queue.is_known(now):
            self.value = self.wait_seconds = 0.0
            return
        waiting = queue.count - self._cores
        self.wait_seconds = (waiting + 1.0 + self._cores) / served if waiting > 0.0 else 0.0
        self._set(served, factor)

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
        kept = math.exp(-seconds / window)
        self._fill = self._fill * kept + 1.0 - kept
        scale = 1.0 / (window * self._fill)
        if count:
            gain = 1.0 - math.exp(-seconds / _LINE_SECONDS)
            self._line += gain * (self.lines / count - self._line)
        before = after = 0.0
        hidden = min(_COUNT, int(self._line + _LEAST_SENT))  # Of these hardly anything is sent.
        demand, sent = self._demand, self.sent
        for i in range(hidden, _COUNT):
            before += demand[i]
            demand[i] = demand[i] * kept + arrived[i] + sent[i]
            after += demand[i]
        if hidden:
            ratio = after / before if before > 0.0 else kept
            ratio = min(ratio, 1.0 / kept) * math.exp(-seconds / _FORGET_SECONDS)
            for i in range(hidden):
                demand[i] = max(demand[i] * ratio, demand[i] * kept + arrived[i])
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

    def _set(self, served: float, scale: float) -> None:
        queue = self._queue
        target = self.target()
        error = (target - queue.mean) / target
        correction = (
            min(_MOST_BELOW, _GAIN_BELOW * error)
            if error > 0.0
            else max(-_MOST_ABOVE, _GAIN_ABOVE * error)
        )
        hard = max(target + 1.75 * self._cores, 0.15 * served)
        if queue.count > hard:
            correction = -min(1.0, 0.5 * queue.count / hard)
        value = self._level_of(served * (1.0 + correction) / scale)
        highest = TOP - 1.0
        if value > highest:
            cap = highest + min(1.0, max(0.0, 0.5 * queue.mean / hard - 1.0))
            value = min(value, max(cap, self._level_of(served / scale)))
        elif value < self._line - _SINK_MOST:
            value = self._line - _SINK_MOST
        self.value = value

    def _level_of(self, wanted: float) -> float:
        """Return the level above which there is so much demand."""
        for i in range(_COUNT - 1, -1, -1):
            here = self._demand[i]
            if here > wanted:
                return i + 1.0 - max(0.0, wanted) / here
            wanted -= here
        return 0.0
