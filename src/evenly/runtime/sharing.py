"""Which services the loops of this process talk to: users of the same target share one.

Two that did not would balance past one another.  It is the same whatever the transport.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import Generic, Protocol, TypeVar

__all__ = ["Registry", "Shared"]


class Shared(Protocol):
    """Be one service on one loop."""

    users: int
    """How many use it."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for backends and to connect."""

    async def stop(self) -> None:
        """Close everything."""

    def abandon(self) -> None:
        """Let go of what belongs to nobody: the loop was closed, and this was not stopped."""


S = TypeVar("S", bound=Shared)


class Registry(Generic[S]):
    """Know the services of one transport, by loop and by what they were made with."""

    def __init__(self) -> None:
        self._services: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, S]] = (
            weakref.WeakKeyDictionary()
        )
        # Loops run in threads of their own.  Those of one loop come one after the other, so that
        # what is said of it alone needs no lock.
        self._lock = threading.Lock()
        # A loop holds its tasks weakly.
        self._releasing: set[asyncio.Task[None]] = set()

    def share(self, loop: asyncio.AbstractEventLoop, key: object, make: Callable[[], S]) -> S:
        """Return the service that this loop has under `key`, or make and start one."""
        with self._lock:
            # A service holds its loop, and nobody may have closed it.
            closed = [known for known in self._services if known.is_closed()]
            left = [self._services.pop(other) for other in closed]
            services = self._services.setdefault(loop, {})
        for abandoned in [service for others in left for service in others.values()]:
            abandoned.abandon()
        service = services.get(key)
        if service is None:
            service = make()
            service.start(loop)
            services[key] = service  # Only now: one that could not start is nobody's.
        service.users += 1
        return service

    async def release(self, loop: asyncio.AbstractEventLoop, key: object, service: S) -> None:
        """Give up one use of a service; the last one stops it."""
        service.users -= 1
        if service.users == 0:
            with self._lock:
                services = self._services.get(loop, {})
            if services.get(key) is service:
                del services[key]
            await service.stop()

    def drop(self, loop: asyncio.AbstractEventLoop, key: object, service: S) -> None:
        """Give up a use that nobody ended, from whatever thread collects its user."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._release_soon, loop, key, service)

    def _release_soon(self, loop: asyncio.AbstractEventLoop, key: object, service: S) -> None:
        task = Context().run(loop.create_task, self.release(loop, key, service))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
