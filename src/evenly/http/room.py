"""Tell whether there is room for one more connection, and log once when there is none.

A process that has used up its descriptors accepts nothing, opens no file and reaches no database,
for as long as those who hold them like.  The kernel hands out the lowest number that is free.  So a
new connection whose number is among the last few of the limit says exactly what matters: all below
are taken, by whomever.  Such a connection is closed at once, and the last few stay free for the
application.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Callable, Sized
from typing import Any, Final, final

from evenly.http.connection_limits import ConnectionLimits

__all__ = ["Door", "Room", "descriptor_limit", "room_within"]

_log: Final = logging.getLogger("evenly.http")
# There is room again when a tenth of the connections have gone; at each one that goes, somebody who
# connects again and again could fill the log.
_ROOM_RATIO: Final = 0.9
# With a small limit not all of it is kept free.
_MOST_SPARE_RATIO: Final = 0.25
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})


def descriptor_limit() -> int:
    """Return how many descriptors this process may have; it can change while it runs."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415 -- there is none on Windows

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@final
class Room:
    """Count who was refused, for one server."""

    def __init__(
        self,
        *,
        connections_max: int | None,
        spare_descriptors: int,
        limit: Callable[[], int] = descriptor_limit,
    ) -> None:
        self._connections_max = connections_max
        self._spare_descriptors = spare_descriptors
        self._limit = limit
        self._connections: Sized = ()
        self._most = 0
        self._refused = 0

    def admits(self, connections: Sized, descriptor: int) -> bool:
        """Return whether a new connection, which is among `connections`, may stay."""
        self._connections = connections
        if self._connections_max is not None and len(connections) > self._connections_max:
            self._refuse("%d connections are open, and no more may be", self._connections_max)
            return False
        if not self.has_descriptors(descriptor):
            return False
        if self._refused:
            self._most = max(self._most, len(connections))
        return True

    def has_descriptors(self, descriptor: int) -> bool:
        """Return whether enough descriptors are free, now that a new connection has this one."""
        limit = self._limit()
        spare = min(self._spare_descriptors, int(limit * _MOST_SPARE_RATIO))
        if descriptor < limit - spare:
            return True
        self._refuse("%d descriptors may be open, and all but %d are", limit, spare)
        return False

    def exhausted(self, error: OSError) -> None:
        """Learn that no connection can be accepted at all."""
        self._refuse("none can be accepted: %s", error.strerror)

    def left(self) -> None:
        """Learn that a connection has ended."""
        if self._refused and len(self._connections) <= self._most * _ROOM_RATIO:
            _log.warning("connections are accepted again; %d were refused", self._refused)
            self._refused = self._most = 0

    def _refuse(self, why: str, *values: object) -> None:
        self._most = max(self._most, len(self._connections))
        self._refused += 1
        if self._refused == 1:
            _log.warning(f"connections are refused: {why}", *values)


def room_within(limits: ConnectionLimits) -> Room:
    """Return the room of one server."""
    return Room(connections_max=limits.connections_max, spare_descriptors=limits.spare_descriptors)


@final
class Door(socket.socket):
    """A listening socket that closes at once what there is no room for.

    asyncio accepts all that wait in one turn of the loop, before it tells anybody of the first, and
    accepts nothing for a second when it has no descriptor left.  So this looks as they come in.
    uvloop does not call `accept`: libuv refuses by itself, the way that `_turn_away` does.
    """

    room: Room | None = None
    _key: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that there is room for."""
        while True:
            try:
                accepted, address = super().accept()
            except OSError as error:
                if self.room is None or error.errno not in _EXHAUSTED or self._key is None:
                    raise
                self.room.exhausted(error)
                self._turn_away()
                continue
            if self.room is None or self.room.has_descriptors(accepted.fileno()):
                return accepted, address
            accepted.close()

    def keep_a_key(self) -> None:
        """Hold a descriptor that is good for turning somebody away when there is no other."""
        with contextlib.suppress(OSError):
            self._key = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close, with the key."""
        if self._key is not None:
            os.close(self._key)
            self._key = None
        super().close()

    def _turn_away(self) -> None:
        assert self._key is not None  # noqa: S101 -- who calls it has looked
        os.close(self._key)
        self._key = None
        try:
            super().accept()[0].close()
        finally:
            self.keep_a_key()
