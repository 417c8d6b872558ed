"""Bring a request to a connection where that takes time: probes, a wait for backends, a connect.

Most requests find their connection at once, in their own thread, and never come here.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from evenly.core.attempt import Ask, Attempt
from evenly.core.request import Next, Outcome, Rejection, Request
from evenly.grpc.connection import State
from evenly.grpc.sync.connection import Connection
from evenly.grpc.sync.errors import CLOSED, EXPIRED, NOTHING_SENT, Unsent
from evenly.runtime.client import Waiting

if TYPE_CHECKING:
    from evenly.grpc.sync.service import Service

__all__ = ["SLICE_SECONDS", "Placed", "Turn"]

SLICE_SECONDS: Final = 0.2
"""No wait is longer, as in gRPC: a signal that another thread gets does not end the main thread's
wait, and Python handles it only there."""

Placed = tuple[Attempt, Connection]
"""An attempt that has been begun, and the connection on which it counts as active."""


@final
class Turn:
    """Hold one request until it can be sent, or cannot.

    `on_done` is told on the loop's thread; without it somebody calls `wait`.  Whoever gets a
    `Placed` has to end it; one that nobody takes is ended here.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        attempt: Attempt | None,
        on_done: Callable[[Placed | Unsent], None] | None,
        *,
        is_patient: bool,
    ) -> None:
        self._service = service
        self._request = request
        self._attempt = attempt
        """Begun, and not sent."""
        self._on_done = on_done
        self._is_patient = is_patient
        self._is_over = False
        self._result: Placed | Unsent = CLOSED
        self._over = threading.Event()
        self._waiting: Waiting | None = None
        self._is_counted = False
        self._timer: asyncio.TimerHandle | None = None

    # Any thread.

    def wait(self) -> Placed | Unsent:
        """Wait for the result, no longer than the request's deadline."""
        deadline_at = self._request.deadline_at
        try:
            while True:
                left_seconds = math.inf if deadline_at is None else deadline_at - time.monotonic()
                if self._over.wait(min(SLICE_SECONDS, max(0.0, left_seconds))):
                    return self._result
                if left_seconds <= 0.0 and self._end(EXPIRED, Outcome.NOT_SENT):
                    return EXPIRED
        except BaseException:  # Such as a KeyboardInterrupt.
            if not self._end(CLOSED, Outcome.CANCELLED) and isinstance(self._result, tuple):
                self._service.abandon(*self._result)
            raise

    def cancel(self) -> bool:
        """Give the request up; return False if it has its result."""
        return self._end(CLOSED, Outcome.CANCELLED)

    def close(self) -> None:
        """End it because the channel is closed."""
        if self._end(CLOSED, Outcome.CANCELLED):
            self._tell()

    def _end(self, result: Placed | Unsent, outcome: Outcome | None) -> bool:
        """Set the result, unless there is one; `outcome` ends the attempt that was not sent."""
        with self._service.lock:
            if self._is_over:
                return False
            self._is_over = True
            self._result = result
            attempt, self._attempt = self._attempt, None
            if attempt is not None and outcome is not None:
                attempt.finish(outcome, is_final=True)
            self._service.turns.discard(self)
        if self._service.background.is_here:
            self._clean()
        else:
            self._service.background.soon(self._clean)
        return True

    def _tell(self) -> None:
        self._over.set()
        if self._on_done is not None:
            self._on_done(self._result)

    # The loop's thread.

    def start(self, answer: Attempt | Ask | None) -> None:
        """Begin with what the core answered; `None` if it was not asked."""
        if self._is_over:
            return
        deadline_at = self._request.deadline_at
        if self._on_done is not None and deadline_at is not None:
            loop = self._service.background.loop
            self._timer = loop.call_at(deadline_at, self._expire)
        if answer is None:
            self._park()
        elif isinstance(answer, Ask):
            self._count(is_waiting=self._is_patient)
            runtime = self._service.runtime
            self._waiting = runtime.ask(answer, self._go_on, is_patient=self._is_patient)
        else:
            self._connect(answer)

    def connected(self, connection: Connection) -> None:
        """Go on: the connection that was waited for stands, or is gone."""
        if not self._is_over:
            self._take(connection)

    def _park(self) -> None:
        if self._is_over:
            return
        runtime = self._service.runtime
        self._count(is_waiting=True)
        self._waiting = runtime.park(self._request, self._go_on, is_patient=self._is_patient)
        runtime.settled()  # Since this was decided, a backend may have come.

    def _go_on(self, answer: Attempt | Rejection) -> None:
        self._waiting = None
        self._count(is_waiting=False)
        if not isinstance(answer, Attempt):
            service = self._service
            if self._end(Unsent.refused(answer, self._request, service.name), None):
                self._tell()
            return
        with self._service.lock:
            if self._is_over:
                answer.finish(Outcome.CANCELLED, is_final=True)
                return
            self._attempt = answer
        self._connect(answer)

    def _connect(self, attempt: Attempt) -> None:
        connection = self._service.connection_for(attempt)
        if connection is not None and connection.state is State.CONNECTING:
            connection.park(self)
        else:
            self._take(connection)

    def _take(self, connection: Connection | None) -> None:
        """Send on this connection, or elsewhere if it is none."""
        service = self._service
        again: Attempt | Rejection | Ask | None = None
        with service.lock:
            attempt = self._attempt
            if attempt is None or self._is_over:
                return
            is_placed = connection is not None and connection.is_ready
            if connection is not None and is_placed:
                connection.active += 1
                self._end((attempt, connection), None)
            else:
                self._attempt = None
                if attempt.finish(Outcome.NOT_SENT) is Next.RETRY:
                    again = service.runtime.task.begin(self._request, attempt)
                    if isinstance(again, Attempt):
                        self._attempt = again
        if is_placed:
            self._tell()
        elif isinstance(again, Attempt):
            self._connect(again)
        else:
            service.runtime.settled()
            if self._is_patient:
                self._park()
            elif self._end(NOTHING_SENT, None):
                self._tell()

    def _expire(self) -> None:
        if self._end(EXPIRED, Outcome.NOT_SENT):
            self._tell()

    def _count(self, *, is_waiting: bool) -> None:
        """Say whether the next attempt that ends anywhere may make room for this request."""
        with self._service.lock:
            self._service.waiting += is_waiting - self._is_counted
        self._is_counted = is_waiting

    def _clean(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        self._count(is_waiting=False)
