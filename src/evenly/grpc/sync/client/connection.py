"""One gRPC channel to one backend, from the first try to connect until its last call has ended.

As in `evenly.grpc.client.connection`, the core decides when to connect, so a channel is used for
one connection.  gRPC tells of a channel's state in a thread of its own; what follows from it
happens on the background loop.  Any thread may send here, under the service's lock.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import grpc

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.grpc.common.connections import State
from evenly.grpc.common.health_client import CHECK, EVERYTHING, UNANSWERED, WATCH, is_serving
from evenly.grpc.common.orca_client import OrcaFollower
from evenly.grpc.common.translation import is_unsent
from evenly.grpc.sync.background import Background
from evenly.grpc.sync.client.orca_stream import OrcaStream
from evenly.grpc.sync.forking import CLOSING
from evenly.runtime.client import ClientRuntime

__all__ = ["Connection", "Owner", "Parked"]

# Whoever answers by UDP is not watched: a watch takes a thread for as long as it lasts.  The first
# check of a connection may come before the first answer.
_CHECKS_BEFORE_WATCH = 2
# gRPC's thread looks five times a second whether anybody is still subscribed.
_POLL_SECONDS = 0.25
# How often, and after how long, to look at a connection that was told to go away.
_GOAWAY_LOOKS = 30
_LOOK_SECONDS = 0.003


class Owner(Protocol):
    """Be told what becomes of a connection, on the loop's thread."""

    background: Background
    runtime: ClientRuntime

    @property
    def lock(self) -> AbstractContextManager[object]:
        """What is held while it is decided who sends where."""

    def connection_ended(self, connection: Connection, event: ConnectionEvent) -> None:
        """Learn that it was refused, or is lost."""

    def connection_opened(self, connection: Connection) -> None:
        """Learn that it stands."""

    def connection_closed(self, connection: Connection) -> None:
        """Learn that nothing is left of it; on any thread."""

    def heard_serving(self, connection: Connection, *, is_serving: bool) -> None:
        """Learn what the backend's health service says."""


class Parked(Protocol):
    """Be an attempt that waits for its connection."""

    def connected(self, connection: Connection) -> None:
        """Go on: it stands, or is gone."""

    def waited(self) -> float | None:
        """Go elsewhere, if that can be had; else return until when to wait on."""


@final
class Connection:
    """Hold one channel to one backend; made on the loop's thread."""

    def __init__(
        self,
        backend: Backend,
        channel: grpc.Channel,
        owner: Owner,
        *,
        connect_seconds: float,
        check_seconds: float,
    ) -> None:
        self.backend = backend
        self.channel = channel
        self.state = State.CONNECTING
        self.is_ready = False
        """Whether calls can be sent now."""
        # Weak, because some make a stub for each call.
        self.callables: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()
        """What calls a method here, by whoever made it."""
        self.active = 0
        """Calls that have not ended; changed under the lock."""
        self.probe_port: int | None = None
        """Which port its backend has announced here."""
        self._owner = owner
        self._check_seconds = check_seconds
        self._parked: list[Parked] = []
        self.checks = 0
        """How often its backend was asked whether it serves."""
        self._watch_call: Any = None
        self._orca: OrcaFollower | None = None
        self._closing_lock = threading.Lock()
        self._is_closed = False
        self._is_parents = False
        """Whether this is a forked child, and the connection its parent's."""
        self._left_at = -math.inf
        self._is_hearsay = False
        """Whether its calls were said to have met a GOAWAY, and it stood nevertheless."""
        loop = owner.background.loop
        self._timer: asyncio.TimerHandle = loop.call_later(connect_seconds, self._give_up)
        channel.subscribe(self._moved, try_to_connect=True)

    def __repr__(self) -> str:
        return f"<Connection {self.backend} {self.state.name} active={self.active}>"

    def park(self, parked: Parked, until: float) -> None:
        """Hold an attempt back until the connection stands or is gone, or patience ends."""
        self._parked.append(parked)
        if len(self._parked) == 1:
            self._owner.background.loop.call_at(until, self._reconsider)

    def retire(self) -> None:
        """Use it for nothing new; close it when its last call has ended."""
        if self.state is not State.GONE:
            self._leave()

    def check(self) -> None:
        """Ask the backend over this connection whether it serves."""
        if self.state is not State.READY:
            return
        call = self.channel.unary_unary(CHECK).future(EVERYTHING, timeout=self._check_seconds)
        call.add_done_callback(self._checked)
        self.checks += 1
        if self.checks == _CHECKS_BEFORE_WATCH:
            self._watch_call = self.channel.unary_stream(WATCH)(EVERYTHING)
            thread = threading.Thread(
                target=self._watch, args=(self._watch_call,), name="evenly-watch", daemon=True
            )
            thread.start()

    def wait_for_goaway(self, details: str | None, deadline_at: float | None) -> None:
        """Let the connection show that the backend asked it to go away, if gRPC says so of a call.

        Calls end some milliseconds before a thread of gRPC's says that their connection does.
        Where that was waited for once and did not come, a backend passes on what it heard from one
        of its own, and nobody waits again: it may be gRPC's thread that does, for many calls.
        """
        if self._is_hearsay or not is_unsent(details, self.backend.address):
            return
        until = math.inf if deadline_at is None else deadline_at
        for _ in range(_GOAWAY_LOOKS):
            if not self.is_ready or time.monotonic() >= until:
                return
            time.sleep(_LOOK_SECONDS)
        self._is_hearsay = True

    def close(self) -> None:
        """Close the channel and wait for that; calls that have not ended are cancelled.

        That takes some tenths of a second: a thread of gRPC's polls the channel until it finds
        nobody subscribed, and raises if that is closed.  So it is not done on the loop's thread,
        and nobody waits for it who has no call to see the end of.
        """
        with self._closing_lock:
            if not self._is_closed:
                self._is_closed = True
                time.sleep(max(0.0, self._left_at + _POLL_SECONDS - time.monotonic()))
                with CLOSING:
                    self.channel.close()
                self._owner.connection_closed(self)

    def close_soon(self) -> None:
        """Close the channel in a thread of its own."""
        threading.Thread(target=self.close, name="evenly-close", daemon=True).start()

    def leave_to_parent(self) -> None:
        """Use it for nothing any more, in a forked child."""
        self._is_parents = True
        self.is_ready = False

    # A thread of gRPC's.

    def _moved(self, connectivity: grpc.ChannelConnectivity) -> None:
        if self._is_parents:
            # gRPC goes on polling in the child, until it finds nobody who listens.
            self.channel.unsubscribe(self._moved)
            return
        if connectivity is not grpc.ChannelConnectivity.READY:
            # At once: until the loop hears of it, a call would fail that could have gone elsewhere.
            self.is_ready = False
        self._owner.background.soon(self._learn, connectivity)

    def _checked(self, call: Any) -> None:
        code = call.code()
        if code is grpc.StatusCode.OK:
            self._owner.background.soon(self._heard, call.result())
        elif code not in UNANSWERED:
            self._owner.background.soon(self._heard, b"")

    def _watch(self, call: Any) -> None:
        """Hear the backend's health service, where it has one."""
        try:
            for data in call:
                self._owner.background.soon(self._heard, data)
        except grpc.RpcError:
            return  # Not implemented, or the connection is going.

    # The loop's thread.

    def _learn(self, connectivity: grpc.ChannelConnectivity) -> None:
        if self.state is State.CONNECTING:
            if connectivity is grpc.ChannelConnectivity.READY:
                self._timer.cancel()
                self.state = State.READY
                self.is_ready = True
                self._owner.connection_opened(self)
                self._release()
                if self.is_ready:
                    self._orca = OrcaFollower(self.backend, self._owner.runtime, self._subscribe)
            elif connectivity in (
                grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                grpc.ChannelConnectivity.SHUTDOWN,
            ):
                self._end(ConnectionEvent.REFUSED)
        elif self.state is State.READY and connectivity is not grpc.ChannelConnectivity.READY:
            self._end(ConnectionEvent.LOST)

    def _subscribe(self, orca: OrcaFollower) -> Callable[[], object]:
        return OrcaStream(self.channel, self._owner.background, orca).cancel

    def _give_up(self) -> None:
        if self.state is State.CONNECTING:
            self._end(ConnectionEvent.REFUSED)

    def _end(self, event: ConnectionEvent) -> None:
        self.is_ready = False
        # First, so that what waited for it is not sent here again.
        self._owner.connection_ended(self, event)
        self._leave()

    def _leave(self) -> None:
        self.channel.unsubscribe(self._moved)
        self._left_at = time.monotonic()
        with self._owner.lock:
            self.state = State.GONE
            self.is_ready = False
            is_unused = self.active == 0
        self._timer.cancel()
        if self._watch_call is not None:
            self._watch_call.cancel()
        if self._orca is not None:
            self._orca.end()
        self._release()
        if is_unused:
            self.close_soon()

    def _release(self) -> None:
        parked, self._parked = self._parked, []
        for attempt in parked:
            attempt.connected(self)

    def _reconsider(self) -> None:
        """Let what waits go elsewhere, if that can be had: this one may never come to stand."""
        if self.state is State.CONNECTING:
            parked, self._parked = self._parked, []
            for attempt in parked:
                until = attempt.waited()
                if until is not None:
                    self.park(attempt, until)

    def _heard(self, data: bytes) -> None:
        said = is_serving(data)
        if said is not None and self.state is State.READY:
            self._owner.heard_serving(self, is_serving=said)
