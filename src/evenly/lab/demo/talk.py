"""Name what the two transports have in common, and choose one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import Observer
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

__all__ = ["Answer", "Broken", "Caller", "Ready", "caller", "serve"]

Answer = Callable[[], Awaitable[None]]
"""Does the work of one request, or raises `Broken`."""
Ready = Callable[[int, BackendRuntime], None]


class Broken(Exception):
    """Fail one request, as a backend without its database would."""


class Caller(Protocol):
    """Ask a service."""

    async def start(self) -> None:
        """Begin to look for backends, and to connect."""

    async def ask(self, timeout_seconds: float) -> None:
        """Ask once; raise a `RejectedError` if that was refused, anything else if it failed."""

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what the client task knows."""
        ...

    async def close(self) -> None:
        """Close the connections."""


def caller(
    transport: str, addresses: Sequence[str], config: ClientConfig, observer: Observer
) -> Caller:
    """Return a client for these backends."""
    # Only the one that is used: either takes a while to import, in a dozen processes.
    if transport == "http":
        from evenly.lab.demo.over_http import HttpCaller  # noqa: PLC0415

        return HttpCaller(addresses, config, observer)
    from evenly.lab.demo.over_grpc import GrpcCaller  # noqa: PLC0415

    return GrpcCaller(addresses, config, observer)


async def serve(
    transport: str,
    answer: Answer,
    *,
    host: str,
    port: int,
    config: BackendConfig,
    observer: Observer,
    ready: Ready,
) -> None:
    """Serve until SIGTERM."""
    if transport == "http":
        from evenly.lab.demo.over_http import serve as chosen  # noqa: PLC0415
    else:
        from evenly.lab.demo.over_grpc import serve as chosen  # noqa: PLC0415
    await chosen(answer, host=host, port=port, config=config, observer=observer, ready=ready)
