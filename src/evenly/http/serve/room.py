"""Tell whether there is room for one more connection, and log it once when there is none.

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
import time
from collections.abc import Callable
from typing import Any, Final, final

from evenly.core.clock import Clock
from evenly.http.serve.connection_limits import ConnectionLimits

__all__ = ["Door", "Room", "descriptor_limit"]

_log: Final = logging.getLogger("evenly.http")
# What is refused within so long of the last refusal is the same trouble, and logged already.
_SAME_TROUBLE_SECONDS: Final = 10.0
# With a small limit not all of it is kept free.
_MOST_SPARE_RATIO: Final = 0.25
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
# Turned away in one go; then others have their turn of the loop.
_MOST_TURNED_AWAY: Final = 64


def descriptor_limit() -> int:
    """Return how many descriptors this process may have; it can change while it runs."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415 -- there is none on Windows

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@final
class Room:
    """Be the limits of one server, and know when it last refused somebody for them."""

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        descriptor_limit: Callable[[], int] = descriptor_limit,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limits = limits
        self._descriptor_limit = descriptor_limit
        self._clock = clock
        self._refused_at: float | None = None

    def admits(self, connections: int, descriptor: int) -> bool:
        """Return whether a new connection, which is counted among `connections`, may stay."""
        most = self.limits.connections_max
        if most is not None and connections > most:
            self._refuse("%d connections are open, and no more may be", most)
            return False
        return self.has_descriptors(descriptor)

    def has_descriptors(self, descriptor: int) -> bool:
        """Return whether enough descriptors are free, now that somebody has got this one."""
        limit = self._descriptor_limit()
        spare = min(self.limits.spare_descriptors, int(limit * _MOST_SPARE_RATIO))
        if descriptor < limit - spare:
            return True
        self._refuse("%d descriptors may be open, and all but the last %d are", limit, spare)
        return False

    def exhausted(self, error: OSError) -> None:
        """Learn that there is no descriptor at all."""
        self._refuse("%s", error.strerror)

    def look(self) -> None:
        """Take a descriptor and give it back: libuv, below uvloop, tells nobody of the last."""
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self.exhausted(error)
            return
        os.close(descriptor)
        self.has_descriptors(descriptor)

    def _refuse(self, why: str, *values: object) -> None:
        now, before = self._clock(), self._refused_at
        self._refused_at = now
        if before is None or now - before > _SAME_TROUBLE_SECONDS:
            _log.warning(f"new connections are refused for now: {why}", *values)


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
        if self.room is None:
            return super().accept()
        for _ in range(_MOST_TURNED_AWAY):
            self._keep_a_key()
            try:
                accepted, address = super().accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED or self._key is None:
                    raise
                self.room.exhausted(error)
                self._turn_away()
                continue
            if self.room.has_descriptors(accepted.fileno()):
                return accepted, address
            accepted.close()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def close(self) -> None:
        """Close, with the key."""
        self._use_the_key()
        super().close()

    def _keep_a_key(self) -> None:
        """Hold a descriptor that is good for turning somebody away when there is no other."""
        if self._key is None:
            with contextlib.suppress(OSError):
                self._key = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _use_the_key(self) -> None:
        key, self._key = self._key, None
        if key is not None:
            os.close(key)

    def _turn_away(self) -> None:
        self._use_the_key()
        super().accept()[0].close()
