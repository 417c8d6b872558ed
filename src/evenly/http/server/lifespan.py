"""Start and stop with the application's lifespan, whether it has one or not.

ASGI says that an application without a lifespan raises when it gets the scope.  Many a one does not
look at the scope at all, and raises later; servers go on then, and so do we.  Whenever it raises or
returns before its end, the rest of the protocol is followed here, so that there is a shutdown to
stop at.
"""

from __future__ import annotations

import logging
from typing import Protocol, final

from evenly.http.server.asgi import App, Message, Receive, Scope, Send

__all__ = ["Lifespan"]

_LOGGER = logging.getLogger("evenly.http")


class Living(Protocol):
    """Be started and stopped with an application; `Middleware` is."""

    app: App
    starts_as_lame_duck: bool
    needs_lifespan: bool

    def start(self) -> None:
        """Begin, on the running loop."""

    def announce_healthy(self) -> bool:
        """Ask clients to send."""

    def stop(self) -> None:
        """Leave nothing behind."""


@final
class Lifespan:
    """Be one lifespan: from the server's start to its end."""

    def __init__(self, living: Living, receive: Receive, send: Send) -> None:
        self._living = living
        self._receive = receive
        self._send = send
        self._has_received = False
        self._is_started = False
        self._is_ending = False
        self._is_stopped = False

    async def run(self, scope: Scope) -> None:
        """Let the application live, and live on for one that does not."""
        try:
            try:
                await self._living.app(scope, self.receive, self.send)
            except Exception as error:
                if self._is_ending or (self._living.needs_lifespan and not self._is_started):
                    raise
                self._log(error)
            if not self._is_ending:
                await self._live_alone()
        finally:
            self._stop()

    async def receive(self) -> Message:
        """Receive for the application."""
        message = await self._receive()
        self._has_received = True
        if message["type"] == "lifespan.startup":
            self._living.start()
        elif message["type"] == "lifespan.shutdown":
            self._is_ending = True
        return message

    async def send(self, message: Message) -> None:
        """Send for the application."""
        kind = message["type"]
        if kind == "lifespan.startup.complete":
            self._is_started = True
            if not self._living.starts_as_lame_duck:
                self._living.announce_healthy()
        elif kind == "lifespan.startup.failed":
            self._is_ending = True
        elif kind in {"lifespan.shutdown.complete", "lifespan.shutdown.failed"}:
            # Before the server hears of it: it may not let us run any more.
            self._stop()
        await self._send(message)

    async def _live_alone(self) -> None:
        if not self._has_received:
            await self.receive()
        if not self._is_started:
            await self.send({"type": "lifespan.startup.complete"})
        while not self._is_ending:
            await self.receive()
        await self.send({"type": "lifespan.shutdown.complete"})

    def _log(self, error: Exception) -> None:
        if self._is_started:
            _LOGGER.error("the application's lifespan broke off, and it is served on: %r", error)
        elif self._has_received:
            _LOGGER.warning(
                "the application raised in its lifespan, and is taken for one without: %r", error
            )
        else:
            _LOGGER.info("the application has no lifespan: %r", error)

    def _stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._living.stop()
