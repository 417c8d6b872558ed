"""Bound what a connection may cost before it has shown the token.

Whoever can reach the port, also without the link, could hold file descriptors of the fleet's
supervisor.  `evenly.http.server_connection` keeps the bounds; these are the page's.
"""

from __future__ import annotations

import logging
from typing import Any, Final, final

try:
    from evenly.http.connection_limits import ConnectionLimits
    from evenly.http.room import Room
    from evenly.http.server_connection import ServerConnection
except ImportError as error:
    raise ImportError(
        'evenly.dashboard needs uvicorn and httptools: pip install "evenly[dashboard]"',
        name=error.name,
    ) from error

__all__ = ["CONNECTIONS_MAX", "Connection"]

CONNECTIONS_MAX: Final = 256
"""Connections that are open at a time; from half of it on, requests are answered with 503."""

# Not uvicorn's: its warnings ("Invalid HTTP request received.") would come to the terminal at the
# request of anyone.  What is our mistake is an error, and is still told.
_log: Final = logging.getLogger("evenly.dashboard.requests")
_log.setLevel(logging.ERROR)


@final
class Connection(ServerConnection):
    """One connection, which is cut off when it asks for nothing in time."""

    room = Room(ConnectionLimits(connections_max=CONNECTIONS_MAX))

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*arguments, **keywords)
        self.logger = _log
