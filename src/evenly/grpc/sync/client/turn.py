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

from evenly.core.attempt import Attempt
from evenly.core.exchange import Connect, Ended, Exchange, Park, Step
from evenly.grpc.common.connections import State
from evenly.grpc.sync.client.connection import Connection
from evenly.grpc.sync.client.errors import CLOSED, Unsent

if TYPE_CHECKING:
    from evenly.grpc.sync.client.service import Service

__all__ = ["SLICE_SECONDS", "Placed", "Result", "Turn"]

SLICE_SECONDS: Final = 0.2
"""No wait is longer, as in gRPC: a signal that another thread gets does not end the main thread's
wait, and Python handles it only there."""

Placed = tuple[Attempt, Connection]
"""An attempt that is to be sent now, and the connection on which it counts as active."""

Result = Placed | Unsent | None
"""What becomes of a request; `None`: nothing more is sent, and what was sent and failed stands."""


@final
class Turn:
    """Hold one request until it can be sent, or cannot.

    It is over when the service has the request elsewhere, or nowhere.  `on_done` is told then, on
    the loop's thread; without it somebody calls `wait`.  Who gives up says so to the service.
    """

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        on_done: Callable[[Result], None] | None,
    ) -> None:
        self._service = service
        self._exchange = exchange
        self._on_done = on_done
        self._result: Result = CLOSED
        self._has_result = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    # Any thread.

    @property
    def is_over(self) -> bool:
        """Whether it has its result or was given up; ask under the lock."""
        return self._service.under_way.get(self._exchange) is not self

    def begin(self, step: Step) -> None:
        """Begin with what the core said; under the lock under which it did."""
        if isinstance(step, Park):
            # Before anybody else can find it in the line.
            self._service.runtime.hold(self._exchange, step, self.go_on)
        self._service.background.soon(self._start, step)

    def wait(self) -> Result:
        """Wait for the result, no longer than the request's deadline."""
        deadline_at = self._exchange.request.deadline_at
        while True:
            left_seconds = math.inf if deadline_at is None else deadline_at - time.monotonic()
            if self._has_result.wait(min(SLICE_SECONDS, max(0.0, left_seconds))):
                return self._result
            if left_seconds <= 0.0:
                self._expire()
                deadline_at = None  # If it was not that, its result is on its way.

    def close(self) -> None:
        """End it because the channel is closed."""
        with self._service.lock:
            if self.is_over:
                return
            self._exchange.cancel()
            self._end(CLOSED)
        self._tell()

    def clean(self) -> None:
        """Leave nothing behind, on the loop's thread; what it held may be for others now."""
        if self._timer is not None:
            self._timer.cancel()
        self._service.runtime.follow_up()

    def _expire(self) -> None:
        with self._service.lock:
            if self.is_over or self._exchange.is_over:
                return  # It has its result, or is about to be told how it ended.
            ended = self._exchange.expire(is_sent=False)
            self._end(self._service.result_of(ended, self._exchange))
        self._tell()

    def _end(self, result: Unsent | None) -> None:
        del self._service.under_way[self._exchange]
        self._result = result

    def _tell(self) -> None:
        self._service.background.soon(self.clean)
        self._has_result.set()
        if self._on_done is not None:
            self._on_done(self._result)

    # The loop's thread.

    def _start(self, step: Step) -> None:
        if self.is_over:
            return
        deadline_at = self._exchange.request.deadline_at
        if self._on_done is not None and deadline_at is not None:
            self._timer = self._service.background.loop.call_at(deadline_at, self._expire)
        if isinstance(step, Park):
            self._service.runtime.follow_up()  # It may have a backend tried.
        else:
            self.go_on(step)

    def go_on(self, step: Step) -> None:
        """Do what the core says."""
        service = self._service
        if isinstance(step, Attempt):
            connection = service.connection_for(step)
            if connection is None or connection.state is not State.CONNECTING:
                self._send(step, connection)
                return
            with service.lock:
                wait = None if self.is_over else self._exchange.connect()
            if wait is not None:
                connection.park(self, wait.until)
        elif isinstance(step, Ended):
            with service.lock:
                if self.is_over:
                    return
                self._end(service.result_of(step, self._exchange))
            self._tell()
        else:
            service.runtime.hold(self._exchange, step, self.go_on)

    def connected(self, connection: Connection) -> None:
        """Go on: the connection that was waited for stands, or is gone."""
        with self._service.lock:
            if self.is_over:
                return
            attempt = self._exchange.connected()
        self._send(attempt, connection)

    def waited(self) -> float | None:
        """Go on elsewhere, if that can be had; else return until when to wait on."""
        with self._service.lock:
            if self.is_over:
                return None
            step = self._exchange.waited()
        if isinstance(step, Connect):
            return step.until
        self.go_on(step)
        self._service.runtime.follow_up()
        return None

    def _send(self, attempt: Attempt, connection: Connection | None) -> None:
        """Have it sent on this connection, or elsewhere if it is none."""
        service = self._service
        with service.lock:
            if self.is_over:
                return
            if connection is not None and connection.is_ready:
                self._result = service.place(self._exchange, attempt, connection)
                step = None
            else:
                step = self._exchange.not_sent()
        if step is None:
            self._tell()
        else:
            self.go_on(step)
            service.runtime.follow_up()
