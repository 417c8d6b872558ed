"""Hold a port for a process that comes and goes.

While a backend is away its port would be free, and the system gives free ports to whoever connects
somewhere: a client that tries to reach the backend could even connect to itself.  So the supervisor
keeps each port bound and never listens.  Linux lets others listen there who say SO_REUSEADDR, as
servers do; those who connect are refused meanwhile, as they should be.
"""

from __future__ import annotations

import socket
from typing import final

from evenly.lab.dashboard.hosts import in_url

__all__ = ["HeldPort"]


@final
class HeldPort:
    """Hold a free port of a host until it is closed."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]
        self.address = f"{in_url(host)}:{self.number}"

    def close(self) -> None:
        """Let it go."""
        self._socket.close()
