"""One service as the threads of this process see it: decisions, and a connection to each backend.

Channels to the same target share it.  The core is not thread-safe, so there is one lock around it;
a request takes it twice, for some microseconds, to be begun and to be settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, final

import grpc

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.exchange import Ended, Exchange, Step
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason
from evenly.discovery.target import Discovery
from evenly.grpc.common.connections import Connections, State
from evenly.grpc.common.options import Options, channel_options
from evenly.grpc.common.translation import grpc_target
from evenly.grpc.sync import background
from evenly.grpc.sync.client.connection import Connection
from evenly.grpc.sync.client.ending import Trailers, first, outcome_by
from evenly.grpc.sync.client.errors import CLOSED, Unsent
from evenly.grpc.sync.client.turn import Placed, Result, Turn
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from evenly.wire import load_header, orca

__all__ = ["Service"]

# By their own names, because an enum's members take long to look up.
_CODE_OK: Final = grpc.StatusCode.OK
_OK: Final = Outcome.OK
_NOT_SENT: Final = Outcome.NOT_SENT
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
        self.under_way: dict[Exchange, Turn | Connection] = {}
        """Where each request is that has been begun and has not ended; changed under the lock."""
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
            turns = [place for place in self.under_way.values() if isinstance(place, Turn)]
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
        self, exchange: Exchange, on_done: Callable[[Result], None] | None = None
    ) -> Result | Turn:
        """Begin a request: find a connection for it, or a `Turn` where that takes time.

        `on_done` is what the turn calls; without it, somebody waits for it.  Whoever gets no
        further than this, such as for a KeyboardInterrupt, has to `abandon` the request.
        """
        if self.closed_because is not None:
            raise ValueError(self.closed_because)
        with self.lock:
            step = exchange.begin()
            probes = self.runtime.task.take_probes()
            found = self._follow(exchange, step, on_done)
        if probes:
            self.background.soon(self.runtime.probe, probes)
        return found

    def settle(
        self,
        exchange: Exchange,
        placed: Placed,
        code: grpc.StatusCode,
        trailers: Trailers,
        details: str | None = None,
        *,
        is_final: bool = False,
        is_cancelled: bool = False,
        on_done: Callable[[Result], None] | None = None,
    ) -> tuple[Outcome, Result | Turn]:
        """End an attempt with what gRPC says of it; return how, and what becomes of the request."""
        attempt, connection = placed
        load = first(load_header.KEY, trailers)
        report = None if load is None else load_header.parse_load(load)
        outcome = _OK
        if code is not _CODE_OK:
            outcome = outcome_by(
                placed,
                code,
                trailers,
                details,
                is_reported=report is not None,
                is_cancelled=is_cancelled or self.closed_because is not None,
            )
        view = attempt.view
        said = None
        if load is None and trailers and self.runtime.task.wants_orca(view):
            said = orca.parse_metadata(first(orca.HTTP_KEY, trailers))
        with self.lock:
            before = view.health.state
            if report is not None:
                self.runtime.task.record_report(view.backend, report)
            elif outcome is _OK:
                self.runtime.task.record_repeat(view.backend)
            if said is not None:
                self.runtime.task.record_orca(view.backend, said)
            is_unused = self._take_off(exchange, connection)
            found = self._next(exchange, outcome, on_done, is_final=is_final)
            # What the runtime may have to act on; whatever else there is, it sees in a second.
            is_news = (
                view.health.state is not before
                or not view.in_subset
                or self.runtime.requests.parked > 0
            )
        if report is not None and report.probe_port != connection.probe_port:
            connection.probe_port = report.probe_port
            self.background.soon(self.runtime.heard_load, view.backend, load)
        if is_news:
            self.background.soon(self.runtime.follow_up)
        if is_unused:
            connection.close_soon()
        return outcome, found

    def abandon(self, exchange: Exchange) -> None:
        """End a request whose caller gave up, wherever it is; if it is over, nothing happens."""
        is_unused = False
        with self.lock:
            place = self.under_way.get(exchange)
            if isinstance(place, Turn):
                del self.under_way[exchange]
            elif place is not None:
                is_unused = self._take_off(exchange, place)
            exchange.cancel()
        if isinstance(place, Turn):
            self.background.soon(place.clean)
        elif place is not None:
            self.background.soon(self.runtime.follow_up)
            if is_unused:
                place.close_soon()

    # Under the lock.

    def place(self, exchange: Exchange, attempt: Attempt, connection: Connection) -> Placed:
        """Count an attempt in on a connection that stands."""
        self.under_way[exchange] = connection
        connection.active += 1
        return attempt, connection

    def result_of(self, ended: Ended, exchange: Exchange) -> Unsent | None:
        """Return what to say of a request that is not sent, or not sent again."""
        rejection = ended.rejection
        if rejection is None:
            return None
        return Unsent.refused(rejection, exchange.request, self.name)

    def _follow(
        self, exchange: Exchange, step: Step, on_done: Callable[[Result], None] | None
    ) -> Result | Turn:
        """Do what the core says, as far as any thread can."""
        if isinstance(step, Attempt):
            connection = self.connections.get(step.view.backend.address)
            if connection is not None and connection.is_ready:
                return self.place(exchange, step, connection)
        elif isinstance(step, Ended):
            rejection = step.rejection
            if rejection is not None and rejection.reason is Reason.NO_BACKEND:
                self.background.soon(self.runtime.follow_up)  # It may have one tried.
            return self.result_of(step, exchange)
        if self.closed_because is not None:
            exchange.cancel()
            return CLOSED
        turn = self.under_way[exchange] = Turn(self, exchange, on_done)
        turn.begin(step)
        return turn

    def _next(
        self,
        exchange: Exchange,
        outcome: Outcome,
        on_done: Callable[[Result], None] | None,
        *,
        is_final: bool,
    ) -> Result | Turn:
        """Tell the core how an attempt ended, and do what it says."""
        if outcome is _NOT_SENT:
            return self._follow(exchange, exchange.not_sent(is_final=is_final), on_done)
        step = exchange.ended(outcome, is_final=is_final)
        return None if isinstance(step, Ended) else self._follow(exchange, step, on_done)

    def _take_off(self, exchange: Exchange, connection: Connection) -> bool:
        """Count an attempt out on its connection; return whether nobody uses that any more."""
        del self.under_way[exchange]
        connection.active -= 1
        return connection.active == 0 and connection.state is State.GONE

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
