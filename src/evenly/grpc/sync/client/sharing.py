"""Which services this process talks to: channels to the same target share one.

In a forked child nothing of the parent's is used: its threads are not there.  It is kept, though:
what gRPC does to let go of it may never end there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from evenly.grpc.sync.client.service import Service
from evenly.grpc.sync.forking import forked

__all__ = ["drop", "release", "share"]


@final
class _Shared:
    """Know the services of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.services: dict[object, Service] = {}
        self._inherited: list[Service] = []

    def forget(self) -> None:
        """Use nothing of the parent's in a forked child: its threads are not there."""
        self.lock = threading.Lock()  # Somebody may have held it.
        for service in self.services.values():
            service.leave_to_parent()
        self._inherited.extend(self.services.values())
        self.services = {}


_shared = _Shared()
forked(_shared.forget)


def share(key: object, make: Callable[[], Service]) -> Service:
    """Return the service that this process has under `key`, or make one; `release` it once."""
    with _shared.lock:
        known = _shared.services.get(key)
        if known is None:
            known = _shared.services[key] = make()
        known.users += 1
        return known


def release(key: object, service: Service) -> None:
    """Give up one use of a service; the last one stops it."""
    with _shared.lock:
        service.users -= 1
        if service.users or service.closed_because is not None:
            return
        if _shared.services.get(key) is service:
            del _shared.services[key]
    service.stop()


def drop(key: object, service: Service) -> None:
    """Give up the use of a channel that nobody closed, from whatever thread collects it."""
    service.background.soon(_release_soon, key, service)


def _release_soon(key: object, service: Service) -> None:
    # Not on the loop's thread, which it waits for.
    threading.Thread(target=release, args=(key, service), daemon=True).start()
