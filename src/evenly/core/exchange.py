"""The life of one request on the calling side: told what happened, it answers what to do next.

Every transport, and the simulator, drives this and decides nothing itself.  It is a loop around
steps:

    Attempt    send it to its backend; then `ended`, or `not_sent` if nothing left this process.
               Where its connection is still being opened, `connect` first
    Ask        probe its backends, hand their answers to the client task; then `probed`
    Connect    wait for the connection; then `connected`, or `not_sent` if it cannot be had, or
               `waited` when `until` has passed
    Park       wait for a backend; `Requests` says when it goes on, and how
    Ended      hand the end up

A deadline that passes is told by `expire`, and a caller that gives up by `cancel`, at any time.

SRE book, chapter 21, "Deciding to Retry", and gRPC's wait-for-ready.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, final

from evenly.core.attempt import Ask, Attempt
from evenly.core.client_task import ClientTask
from evenly.core.clock import Clock
from evenly.core.request import Ended, Next, Outcome, Reason, Rejection, Request
from evenly.errors import UsageError

__all__ = ["Connect", "Ended", "Exchange", "Park", "Requests", "Step"]

_EXPIRED: Final = Rejection(Reason.EXPIRED, retryable=False)
_NO_BACKEND: Final = Rejection(Reason.NO_BACKEND, retryable=False)
_NO_CONNECTION: Final = Rejection(Reason.NO_CONNECTION, retryable=False)


@final
@dataclass(frozen=True, slots=True)
class Connect:
    """Wait for the connection to an attempt's backend, until an instant at most."""

    attempt: Attempt
    until: float


@final
class Park:
    """Wait for a backend."""

    __slots__ = ()


Step = Attempt | Ask | Park | Ended

_PARK: Final = Park()


@final
class _State(enum.Enum):
    NEW = "not begun"
    ASKING = "waiting for probes"
    PARKED = "waiting for a backend"
    CONNECTING = "waiting for a connection"
    SENDING = "being sent"
    OVER = "over"


# By their own names, because an enum's members take long to look up.
_NEW: Final = _State.NEW
_SENDING: Final = _State.SENDING
_OVER: Final = _State.OVER
_RETRY: Final = Next.RETRY
# So many of those that left the line may stand in its heap, beside as many as wait.
_LEFT_MOST: Final = 64


@final
class Requests:
    """Hold what the requests of one client task share: patience, and the line of those that wait.

    Before the backends are known every request waits.  After that only those wait that are patient
    and find no backend, and nobody overtakes them.
    """

    __slots__ = (
        "_clock",
        "_heap",
        "_line",
        "_patience_seconds",
        "_tickets",
        "is_closed",
        "is_discovered",
        "parked",
        "task",
    )

    def __init__(
        self,
        task: ClientTask,
        *,
        clock: Clock,
        patience_seconds: float,
        is_discovered: bool = False,
    ) -> None:
        self.task = task
        self._clock = clock
        self._patience_seconds = patience_seconds
        self.is_discovered = is_discovered
        """Whether there has been a list of backends, or the wait for it is over."""
        self.is_closed = False
        """Whether nothing waits or is sent any more."""
        self.parked = 0
        """How many requests wait for a backend."""
        # Who waits, with a number that is new each time it is parked.  Whoever leaves is left in
        # the heap, and passed over there.
        self._line: dict[Exchange, int] = {}
        self._heap: list[tuple[int, int, Exchange]] = []
        self._tickets = count()

    def discovered(self) -> list[tuple[Exchange, Step]]:
        """Learn that the backends are known; return who goes on, and how."""
        self.is_discovered = True
        steps = [(exchange, exchange.backends_changed()) for exchange in self._in_order()]
        return [(exchange, step) for exchange, step in steps if not isinstance(step, Park)]

    def next_parked(self) -> tuple[Exchange, Step] | None:
        """Return the first in line and how it goes on, or `None` if it has to wait on.

        Ask again until then, after whatever may have made room for a request.
        """
        while self.is_discovered and self._heap:
            _, ticket, exchange = self._heap[0]
            if self._line.get(exchange) == ticket:
                step = exchange.backends_changed()
                return None if isinstance(step, Park) else (exchange, step)
            heappop(self._heap)
        return None

    def close(self) -> list[tuple[Exchange, Step]]:
        """End those that wait, and have nothing begin any more; return who ends, and how.

        What is under way ends as it will.  There is no backend to send it to again.
        """
        self.is_closed = self.is_discovered = True
        self.task.update(())
        return [(exchange, exchange.no_backend()) for exchange in self._in_order()]

    # For exchanges.

    def patience_ends_at(self) -> float:
        """Return until when a request waits for a connection before it looks elsewhere."""
        return self._clock() + self._patience_seconds

    def ticket(self) -> int:
        """Return a number for a request that may have to wait: the order is that of numbers."""
        return next(self._tickets)

    def park(self, exchange: Exchange, place: int) -> Park:
        """Line a request up, by the number that it was given."""
        ticket = next(self._tickets)
        self._line[exchange] = ticket
        self.parked = len(self._line)
        heappush(self._heap, (place, ticket, exchange))
        if len(self._heap) > 2 * self.parked + _LEFT_MOST:
            self._heap = sorted(
                entry for entry in self._heap if self._line.get(entry[2]) == entry[1]
            )
        return _PARK

    def leave(self, exchange: Exchange) -> None:
        """Take a request out of the line."""
        if self._line.pop(exchange, None) is not None:
            self.parked = len(self._line)
            if not self._line:
                self._heap.clear()

    def _in_order(self) -> list[Exchange]:
        heap = sorted(self._heap)
        return [exchange for _, ticket, exchange in heap if self._line.get(exchange) == ticket]


@final
class Exchange:
    """One request, from its call site to its end: each attempt is begun and finished here, once."""

    __slots__ = (
        "_ask",
        "_is_patient",
        "_place",
        "_requests",
        "_state",
        "attempt",
        "on_step",
        "outcome",
        "request",
    )

    def __init__(
        self,
        requests: Requests,
        request: Request,
        is_patient: bool = False,
    ) -> None:
        """`is_patient`: where there is no backend it waits for one, as gRPC's wait-for-ready."""
        self._requests = requests
        self._is_patient = is_patient
        self._state = _NEW
        self._ask: Ask | None = None
        self.request = request
        self.on_step: Callable[[Step], None] | None = None
        """While it is parked: what its driver calls when it goes on."""
        self.attempt: Attempt | None = None
        """The attempt under way: begun, and not finished."""
        self.outcome: Outcome | None = None
        """How the last attempt ended that was sent.  It stands where no other can be sent."""

    def __repr__(self) -> str:
        return f"<Exchange {self._state.value}, {self.attempt!r}>"

    @property
    def is_over(self) -> bool:
        """Whether it has ended or was cancelled."""
        return self._state is _OVER

    def begin(self) -> Step:
        """Begin, once."""
        if self._state is not _NEW:
            raise UsageError(f"begin(): this request has been begun already: {self!r}")
        requests = self._requests
        if self._is_patient or not requests.is_discovered:
            self._place = requests.ticket()
            if requests.parked or not requests.is_discovered:
                return self._park()
        return self._go_on(requests.task.begin(self.request))

    def probed(self) -> Step:
        """Go on: the probes were answered, or time for them is up."""
        ask, self._ask = self._ask, None
        if ask is None:
            raise self._misused("probed")
        return self._go_on(ask.resume())

    def connect(self) -> Connect:
        """Learn that the attempt's connection is being opened, so that it has to wait."""
        attempt = self.attempt
        if attempt is None or self._state is not _SENDING:
            raise self._misused("connect")
        self._state = _State.CONNECTING
        return Connect(attempt, self._requests.patience_ends_at())

    def connected(self) -> Attempt:
        """Go on: the connection stands."""
        attempt = self.attempt
        if attempt is None or self._state is not _State.CONNECTING:
            raise self._misused("connected")
        self._state = _SENDING
        return attempt

    def waited(self) -> Step | Connect:
        """Go elsewhere, if a connection stands there: this one may never come to stand."""
        attempt = self.attempt
        if attempt is None or self._state is not _State.CONNECTING:
            raise self._misused("waited")
        if self._requests.task.is_connected_without(attempt):
            return self.not_sent()
        return Connect(attempt, self._requests.patience_ends_at())

    def backends_changed(self) -> Step:
        """Look again whether there is a backend, and leave the line if there is."""
        if self._state is not _State.PARKED:
            raise self._misused("backends_changed")
        answer = self._requests.task.begin(self.request)
        if self._is_patient and isinstance(answer, Rejection) and answer.is_for_want_of_backend:
            return _PARK
        self._requests.leave(self)
        return self._go_on(answer)

    def no_backend(self) -> Ended:
        """End, because there will be no backend to wait for."""
        if self._state is not _State.PARKED:
            raise self._misused("no_backend")
        return self._refuse(_NO_BACKEND)

    def not_sent(self, *, is_final: bool = False) -> Step:
        """Learn that nothing of the attempt left this process: it is sent elsewhere, if it can be.

        `is_final` says that the request cannot be sent again.
        """
        attempt = self.attempt
        if attempt is None:
            raise self._misused("not_sent")
        again = self._finish(attempt, Outcome.NOT_SENT, is_final)
        if isinstance(again, Attempt):
            return again
        is_patient = self._is_patient and not self._requests.is_closed
        if is_patient and self.outcome is None and not is_final:
            self._requests.task.withdraw()
            return self._park()  # Where it was begun, before all that came later.
        if again is None:
            return self._refuse(_NO_CONNECTION)
        return self._end(_NO_CONNECTION)  # That there is no other was seen already.

    def ended(self, outcome: Outcome, *, is_final: bool = False) -> Attempt | Ended:
        """Learn how the attempt ended, once it was sent; there may be another one.

        `is_final` says that the request cannot be sent again: its caller has seen a part of the
        response or gave up, or a part of its body is gone.
        """
        attempt = self.attempt
        if attempt is None or self._state is not _SENDING:
            raise self._misused("ended")
        self.outcome = outcome
        again = self._finish(attempt, outcome, is_final)
        if isinstance(again, Attempt):
            return again
        self._state = _OVER
        return outcome.ended

    def expire(self, *, is_sent: bool = True) -> Ended:
        """End, because the deadline has passed.

        `is_sent=False` says that nothing of an attempt under way has left this process: threads may
        find so between the step that begins it and what its driver does with it.
        """
        if self.is_over:
            raise self._misused("expire")
        attempt = self.attempt
        if attempt is not None:
            is_sent = is_sent and self._state is _SENDING
            if is_sent:
                self.outcome = Outcome.TIMEOUT
            self._finish(attempt, Outcome.TIMEOUT if is_sent else Outcome.NOT_SENT, True)
        return self._refuse(_EXPIRED)

    def cancel(self) -> None:
        """End, because the caller gave up.  If it is over, nothing happens."""
        if self.is_over:
            return
        attempt = self.attempt
        if attempt is not None:
            self._finish(attempt, Outcome.CANCELLED, True)
        self._leave()

    def _go_on(self, answer: Attempt | Ask | Rejection) -> Step:
        if isinstance(answer, Attempt):
            self._state = _SENDING
            self.attempt = answer
            return answer
        if isinstance(answer, Ask):
            self._state = _State.ASKING
            self._ask = answer
            return answer
        if self._is_patient and answer.is_for_want_of_backend and not self._requests.is_closed:
            return self._park()
        return self._end(answer)

    def _finish(
        self, attempt: Attempt, outcome: Outcome, is_final: bool
    ) -> Attempt | Ask | Rejection | None:
        """Finish the attempt under way; return the next, or why there is none if one may be."""
        self.attempt = None
        if attempt.finish(outcome, is_final=is_final) is not _RETRY:
            return None
        answer = self._requests.task.begin(self.request, attempt)
        if isinstance(answer, Attempt):
            self._state = _SENDING
            self.attempt = answer
        return answer

    def _park(self) -> Park:
        self._state = _State.PARKED
        return self._requests.park(self, self._place)

    def _refuse(self, rejection: Rejection) -> Ended:
        """End a request for a reason that the client task does not know."""
        if self.outcome is None:
            self._requests.task.refuse(self.request, rejection)
        return self._end(rejection)

    def _end(self, rejection: Rejection) -> Ended:
        """End a request that is not sent now.  What was sent before and failed stands."""
        self._leave()
        return Ended(None, rejection) if self.outcome is None else self.outcome.ended

    def _leave(self) -> None:
        self._requests.leave(self)
        self._ask = None
        self._state = _OVER

    def _misused(self, verb: str) -> UsageError:
        return UsageError(f"{verb}(): not now: {self!r}")
