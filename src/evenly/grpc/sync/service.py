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
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import Observer
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.discovery.target import Discovery, from_target
from evenly.grpc.connection import State
from evenly.grpc.outcome import outcome_of
from evenly.grpc.service import Options, channel_options
from evenly.grpc.sync import background
from evenly.grpc.sync.connection import Connection
from evenly.grpc.sync.errors import CLOSED, Unsent
from evenly.grpc.sync.turn import Placed, Turn
from evenly.grpc.target import grpc_target, is_unsent
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from evenly.wire import load_header
from evenly.wire.metadata import REJECT_KEY

__all__ = ["Service"]

_CLOSED = "Cannot invoke RPC on closed channel!"
_WITHOUT_BACKEND = (Reason.NO_BACKEND, Reason.AT_LIMIT)


@final
class Service:
    """Hold the connections to one service, and find the one for each attempt."""

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
        discovery = from_target(target) if isinstance(target, str) else target
        self.runtime = ClientRuntime(discovery, config, observer=observer, lock=self.lock)
        self.background = background.hold()
        self.connections: dict[str, Connection] = {}
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
        """Close every connection; calls that have not ended are cancelled."""
        with self.lock:
            self.closed_because = _CLOSED
            turns = list(self.turns)
        for turn in turns:
            turn.close()
        self.background.run(self._retire)
        for connection in list(self._unclosed):
            connection.close()
        background.release()

    def _retire(self) -> None:
        self.runtime.stop()
        for backend in [connection.backend for connection in self.connections.values()]:
            self.disconnect(backend)

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        with self.lock:
            return self.runtime.task.snapshot()

    def is_ready(self) -> bool:
        """Return whether some connection stands."""
        return any(connection.is_ready for connection in list(self.connections.values()))

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
            self.background.soon(self._probe, probes)
        if placed is not None:
            return placed
        if isinstance(answer, Rejection):
            if previous is not None or not is_patient or answer.reason not in _WITHOUT_BACKEND:
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
        with self.lock:
            self.turns.add(turn)
            is_closed = self.closed_because is not None
        if is_closed:
            turn.close()
        else:
            self.background.soon(turn.start, answer)
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
            is_reporting=attempt.view.report is not None,
            is_cancelled=is_cancelled or self.closed_because is not None,
        )
        if outcome is Outcome.LOST:
            outcome = _lost(attempt, connection, details)
        view = attempt.view
        with self.lock:
            before = view.health.state
            if report is not None:
                self.runtime.task.record_report(view.backend, report)
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

    def connection_for(self, attempt: Attempt) -> Connection | None:
        """Return the connection to send an attempt on, ready or not; `None` if there is none."""
        address = attempt.view.backend.address
        if address not in self.connections:
            self.runtime.settled()  # It is opened on demand.
        return self.connections.get(address)

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
            check_seconds=self._check_seconds,
        )
        self._unclosed.add(connection)
        self.connections[backend.address] = connection

    def disconnect(self, backend: Backend) -> None:
        """Close the connection when its last call has ended."""
        connection = self.connections.pop(backend.address, None)
        if connection is not None:
            connection.retire()

    def check(self, backend: Backend) -> None:
        """Ask over the connection whether the backend serves."""
        connection = self.connections.get(backend.address)
        if connection is not None:
            connection.check()

    def _probe(self, backends: Sequence[Backend]) -> None:
        if self.runtime.config.probe.is_on:
            for backend in backends:
                self.runtime.prober.probe(backend)

    # Connections say what happened.

    def connection_opened(self, connection: Connection) -> None:
        """Tell the core that a connection stands."""
        self.runtime.connection_changed(connection.backend, ConnectionEvent.OPENED)

    def connection_ended(self, connection: Connection, event: ConnectionEvent) -> None:
        """Tell the core that a connection was refused or lost, unless it was replaced."""
        if self.connections.get(connection.backend.address) is connection:
            del self.connections[connection.backend.address]
            self.runtime.connection_changed(connection.backend, event)

    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection of which nothing is left."""
        self._unclosed.discard(connection)

    def heard_serving(self, connection: Connection, *, is_serving: bool) -> None:
        """Tell the core what a backend's health service says."""
        self.runtime.heard_serving(connection.backend, is_serving=is_serving)


def _first(key: str, entries: Iterable[tuple[str, str | bytes]] | None) -> str | bytes | None:
    for name, value in entries or ():
        if name == key:
            return value
    return None


def _lost(attempt: Attempt, connection: Connection, details: str | None) -> Outcome:
    """Return what became of a call whose backend said nothing."""
    deadline_at = attempt.request.deadline_at
    if deadline_at is not None and time.monotonic() >= deadline_at:
        return Outcome.TIMEOUT  # The backend's clock was faster: it says CANCELLED then.
    if is_unsent(details, connection.backend.address) and not connection.is_ready:
        return Outcome.NOT_SENT
    return Outcome.LOST
