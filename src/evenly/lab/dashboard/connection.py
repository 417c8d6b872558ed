"""Bound what a connection may cost before it has shown the token.

uvicorn waits for the head of a request for as long as anyone likes.  Whoever can reach the port,
also without the link, could hold file descriptors of the fleet's supervisor that way.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, final

try:
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise ImportError(
        'evenly.lab.dashboard needs uvicorn: pip install "evenly[dashboard]"', name=error.name
    ) from error

__all__ = ["CONNECTIONS_MAX", "HEAD_SECONDS", "Connection"]

HEAD_SECONDS: Final = 10.0
"""How long a request's head may take, from the connection or the last answer on."""
CONNECTIONS_MAX: Final = 256
"""Connections that are open at a time; from half of it on, requests are answered with 503."""

# Not uvicorn's: its warnings ("Invalid HTTP request received.") would come to the terminal at the
# request of anyone.  What is our mistake is an error, and is still told.
_log: Final = logging.getLogger("evenly.lab.dashboard.requests")
_log.setLevel(logging.ERROR)


@final
class Connection(H11Protocol):
    """Be one connection, which is cut off when it asks for nothing in time."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*arguments, **keywords)
        self.logger = _log
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless there are too many who do."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; a byte now and then does not move the deadline."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()  # The application has it, which has bounds of its own.
        elif self._deadline is None:
            # Not `close`, which waits for a reader that does not read.
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
