"""Set what strangers' connections may cost a server; `ServerConnection` keeps to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from evenly.core import check

__all__ = ["ConnectionLimits"]

_MOST_BYTES: Final = 1 << 30
_MOST: Final = 1_000_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Set what one connection, and all of them together, may cost."""

    head_max_bytes: int = 65_536
    """Request line and headers; more is answered with 431.  nginx takes 32 KiB, h11 64."""
    headers_max: int = 256
    """Headers of one request; more are answered with 431."""
    head_seconds: float = 10.0
    """How long a head may take, from the connection or its first byte on; then 408."""
    stall_seconds: float = 60.0
    """How long a client may send nothing of a body that the application waits for, or read nothing
    of an answer; then the connection is closed.  nginx has the same for both."""
    pipelined_max: int = 64
    """Requests that wait for the answer to one before them; beyond, the connection is closed."""
    connections_max: int | None = None
    """Connections that are open at a time; `None`: as many as there are descriptors."""
    spare_descriptors: int = 64
    """Descriptors that are kept free for the application, at most a quarter of the limit."""

    def __post_init__(self) -> None:
        check.count("head_max_bytes", self.head_max_bytes, 1_024, _MOST_BYTES)
        check.count("headers_max", self.headers_max, 1, _MOST)
        check.number("head_seconds", self.head_seconds, 0.001, 86_400.0)
        check.number("stall_seconds", self.stall_seconds, 0.001, 86_400.0)
        check.count("pipelined_max", self.pipelined_max, 0, _MOST)
        if self.connections_max is not None:
            check.count("connections_max", self.connections_max, 1, _MOST)
        check.count("spare_descriptors", self.spare_descriptors, 0, _MOST)
