"""The connections to one service: what the runtime orders of them, and what becomes of them.

Whether calls are awaited or waited for in threads, this is the same; all of it happens on the
loop's thread.
"""

from __future__ import annotations

import enum
from typing import Generic, Protocol, TypeVar, final

import grpc

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.runtime.client import ClientRuntime

__all__ = ["AnyConnection", "Connections", "State"]


@final
class State(enum.Enum):
    """Say what may be done with a connection."""

    CONNECTING = enum.auto()
    READY = enum.auto()
    GONE = enum.auto()
    """Broken, refused or replaced: what was sent on it may still end."""


class AnyConnection(Protocol):
    """Be one channel to one backend."""

    backend: Backend
    state: State

    def retire(self) -> None:
        """Use it for nothing new."""

    def check(self) -> None:
        """Ask the backend over it whether it serves."""


C = TypeVar("C", bound=AnyConnection)


class Connections(Generic[C]):
    """Hold a connection to each backend of the subset."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self.runtime = runtime
        self.connections: dict[str, C] = {}

    def connection_for(self, attempt: Attempt) -> C | None:
        """Return the connection to send an attempt on, ready or not; `None` if there is none."""
        address = attempt.view.backend.address
        connection = self.connections.get(address)
        if connection is None:
            self.runtime.follow_up()  # It is opened on demand.
            connection = self.connections.get(address)
        return connection

    def is_ready(self) -> bool:
        """Return whether some connection stands; on any thread."""
        return any(known.state is State.READY for known in list(self.connections.values()))

    def wake_up(self) -> None:
        """Open a connection, if there is none because nobody needed one."""
        if not self.connections:
            self.runtime.connect_one()

    def connectivity(self) -> grpc.ChannelConnectivity:
        """Return the state of all in one of gRPC's words; on any thread."""
        if self.is_ready():
            return grpc.ChannelConnectivity.READY
        if self.connections or not self.runtime.is_discovered:
            return grpc.ChannelConnectivity.CONNECTING
        if self.runtime.is_resting():
            return grpc.ChannelConnectivity.IDLE
        return grpc.ChannelConnectivity.TRANSIENT_FAILURE

    # The runtime says what to do.

    def disconnect(self, backend: Backend) -> None:
        """Close the connection when its last call has ended."""
        connection = self.connections.pop(backend.address, None)
        if connection is not None:
            self._retire(connection)

    def check(self, backend: Backend) -> None:
        """Ask over the connection whether the backend serves."""
        connection = self.connections.get(backend.address)
        if connection is not None:
            connection.check()

    # Connections say what happened.

    def connection_opened(self, connection: C) -> None:
        """Tell the core that a connection stands."""
        self.runtime.connection_changed(connection.backend, ConnectionEvent.OPENED)

    def connection_ended(self, connection: C, event: ConnectionEvent) -> None:
        """Tell the core that a connection was refused or lost, unless it was replaced."""
        if self.connections.get(connection.backend.address) is connection:
            del self.connections[connection.backend.address]
            self._left(connection)
            self.runtime.connection_changed(connection.backend, event)

    def heard_serving(self, connection: C, *, is_serving: bool) -> None:
        """Tell the core what a backend's health service says."""
        self.runtime.heard_serving(connection.backend, is_serving=is_serving)

    def _retire(self, connection: C) -> None:
        self._left(connection)
        connection.retire()

    def _left(self, connection: C) -> None:
        """See a connection go that may have calls that have not ended."""
