"""One service as the threads of this process see it: decisions, and a connection to each backend.

Channels to the same target share it.  The core is not thread-safe, so there is one lock around it;
a request takes it twice, for some microseconds, to be begun and to be settled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import final

import grpc

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import Observer
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.discovery.target import Discovery
from evenly.grpc.connection import State
from evenly.grpc.connections import Connections
from evenly.grpc.options import Options, channel_options
from evenly.grpc.outcome import PUSHBACK_KEY, outcome_of, outcome_of_lost
from evenly.grpc.sync import background
from evenly.grpc.sync.connection import Connection
from evenly.grpc.sync.errors import CLOSED, Unsent
from evenly.grpc.sync.turn import Placed, Turn
from evenly.grpc.target import grpc_target
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from evenly.wire import load_header, orca
from evenly.wire.metadata import REJECT_KEY

__all__ = ["Service"]

_CLOSED = "Cannot invoke RPC on closed channel!"
_FORKED = "this call began before the process was forked"


@final
class Service(Connections[Connection]):
    """Be one service for the threads of this process."""

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
        observer: Observer,
    ) -> None:
        self.name = target if isinstance(target, str) else type(target).__name__
        self.lock = threading.RLock()
        super().__init__(
            ClientRuntime(target, config, observer=observer, lock=self.lock, part=options)
        )
        self.background = background.hold()
        self.turns: set[Turn] = set()
        """Requests that wait to be sent."""
        self.waiting = 0
        """How many of them may go on when an attempt ends."""
        self.users = 0
        """Open channels that use it."""
        self.closed_because: str | None = None
        self._credentials = credentials
        self._compression = compression
        self._options = channel_options(target, options)
        self._check_seconds = config.task.membership.health.check_seconds
        self._unclosed: set[Connection] = set()
        self.background.run(self.runtime.start, self.background.loop, self)

    def stop(self) -> None:
        """Close every connection; calls that have not ended are cancelled.

        That is waited for only where there are such calls: a connection that nobody uses closes by
        itself, a little later, because of a thread of gRPC's that still looks at it.
        """
        with self.lock:
            self.closed_because = _CLOSED
            turns = list(self.turns)
        for turn in turns:
            turn.close()
        self.background.run(self._retire_all)
        with self.lock:
            used = [connection for connection in self._unclosed if connection.active]
        for connection in used:
            connection.close()
        background.release()

    def _retire_all(self) -> None:
        self.runtime.stop()
        for backend in [connection.backend for connection in self.connections.values()]:
            self.disconnect(backend)

    def leave_to_parent(self) -> None:
        """Do nothing any more: this is a forked child, and all of it belongs to its parent."""
        self.lock = threading.RLock()  # Somebody may have held it.
        self.closed_because = _FORKED
        for connection in self._unclosed:
            connection.leave_to_parent()

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        with self.lock:
            return self.runtime.task.snapshot()

    # Requests, on any thread.

    def begin(
        self,
        request: Request,
        previous: Attempt | None = None,
        *,
        is_patient: bool = False,
        on_done: Callable[[Placed | Unsent], None] | None = None,
    ) -> Placed | Unsent | Turn:
        """Find a connection for a request, or for its next attempt; where that takes time, wait.

        `on_done` is what a `Turn` calls; without it, somebody waits for it.
        """
        if self.closed_because is not None:
            if previous is not None:
                return CLOSED
            raise ValueError(self.closed_because)
        answer: Attempt | Ask | Rejection | None = None
        probes: Sequence[Backend] = ()
        task = self.runtime.task
        with self.lock:
            if previous is not None:
                answer = task.begin(request, previous)
            elif self.runtime.is_discovered and not (is_patient and self.waiting):
                answer = task.begin(request)
                probes = task.take_probes()
            placed = self._placed(answer)
        if probes:
            self.background.soon(self.runtime.probe, probes)
        if placed is not None:
            return placed
        if isinstance(answer, Rejection):
            if answer.reason is Reason.NO_BACKEND:
                self.background.soon(self.runtime.settled)  # It may have one tried.
            if previous is not None or not (is_patient and answer.is_for_want_of_backend):
                return Unsent.refused(answer, request, self.name)
            answer = None
        return self._wait(request, answer, on_done, is_patient=is_patient)

    def _placed(self, answer: Attempt | Ask | Rejection | None) -> Placed | None:
        """Count an attempt in on its connection, if that stands."""
        if isinstance(answer, Attempt):
            connection = self.connections.get(answer.view.backend.address)
            if connection is not None and connection.is_ready:
                connection.active += 1
                return answer, connection
        return None

    def _wait(
        self,
        request: Request,
        answer: Attempt | Ask | None,
        on_done: Callable[[Placed | Unsent], None] | None,
        *,
        is_patient: bool,
    ) -> Turn:
        attempt = answer if isinstance(answer, Attempt) else None
        turn = Turn(self, request, attempt, on_done, is_patient=is_patient)
        try:
            with self.lock:
                self.turns.add(turn)
                is_closed = self.closed_because is not None
            if is_closed:
                turn.close()
            else:
                self.background.soon(turn.start, answer)
        except BaseException:  # A KeyboardInterrupt: nobody would hold the turn.
            turn.cancel()
            raise
        return turn

    def settle(
        self,
        attempt: Attempt,
        connection: Connection,
        code: grpc.StatusCode,
        trailers: Iterable[tuple[str, str | bytes]] | None,
        details: str | None = None,
        *,
        is_final: bool = False,
        is_cancelled: bool = False,
    ) -> tuple[Outcome, Next]:
        """End an attempt with what gRPC says of it; return how, and what to do now."""
        load = _first(load_header.KEY, trailers)
        report = None if load is None else load_header.parse_load(load)
        outcome = outcome_of(
            code,
            _first(REJECT_KEY, trailers),
            is_reported=report is not None,
            has_pushback=_first(PUSHBACK_KEY, trailers) is not None,
            is_cancelled=is_cancelled or self.closed_because is not None,
        )
        if outcome is Outcome.LOST:
            now = time.monotonic()
            outcome = outcome_of_lost(attempt, details, now, is_ready=connection.is_ready)
        view = attempt.view
        said = None
        if load is None and trailers and self.runtime.task.wants_orca(view):
            said = orca.parse_metadata(_first(orca.HTTP_KEY, trailers))
        with self.lock:
            before = view.health.state
            if report is not None:
                self.runtime.task.record_report(view.backend, report)
            elif outcome is Outcome.OK:
                self.runtime.task.record_repeat(view.backend)
            if said is not None:
                self.runtime.task.record_orca(view.backend, said)
            verdict = attempt.finish(outcome, is_final=is_final)
            connection.active -= 1
            is_unused = connection.active == 0 and connection.state is State.GONE
            # What the runtime may have to act on; whatever else there is, it sees in a second.
            is_news = view.health.state is not before or not view.in_subset or self.waiting > 0
        if report is not None and report.probe_port != connection.probe_port:
            connection.probe_port = report.probe_port
            self.background.soon(self.runtime.heard_load, view.backend, load)
        if is_news:
            self.background.soon(self.runtime.settled)
        if is_unused:
            connection.close_soon()
        return outcome, verdict

    def abandon(self, attempt: Attempt, connection: Connection) -> None:
        """End an attempt whose caller gave up."""
        self.settle(
            attempt, connection, grpc.StatusCode.CANCELLED, None, is_final=True, is_cancelled=True
        )

    # The runtime says what to do, on the loop's thread.

    def connect(self, backend: Backend) -> None:
        """Open a connection, in place of any other."""
        self.disconnect(backend)
        target = grpc_target(backend.address)
        if self._credentials is None:
            channel = grpc.insecure_channel(target, self._options, self._compression)
        else:
            channel = grpc.secure_channel(
                target, self._credentials, self._options, self._compression
            )
        connection = Connection(
            backend,
            channel,
            self,
            connect_seconds=self.runtime.config.connect_seconds,
            patience_seconds=self.runtime.config.patience_seconds,
            check_seconds=self._check_seconds,
        )
        with self.lock:
            self._unclosed.add(connection)
        self.connections[backend.address] = connection

    # Connections say what happened.

    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection of which nothing is left."""
        with self.lock:
            self._unclosed.discard(connection)


def _first(key: str, entries: Iterable[tuple[str, str | bytes]] | None) -> str | bytes | None:
    for name, value in entries or ():
        if name == key:
            return value
    return None
