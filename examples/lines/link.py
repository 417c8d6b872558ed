"""One connection of a client: opened when told to, shared by all its requests to one backend."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, final

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.discovery import address as addresses
from examples.lines.wire import LINE_MAX_BYTES, Message, receive, send

if TYPE_CHECKING:
    from examples.lines.client import Client

__all__ = ["Link"]


@final
class Link:
    """One connection to one backend, from the order to connect until it is gone."""

    def __init__(self, client: Client, backend: Backend) -> None:
        self.backend = backend
        self.is_open = False
        self.settled = asyncio.Event()
        """Set when it is known whether it can be had."""
        self._client = client
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[Message | None]] = {}
        self._is_retired = False
        # In an empty context: the one that is current may belong to a request.
        self.task = asyncio.get_running_loop().create_task(self._live(), context=Context())

    async def ask(self, number: int, message: Message) -> Message | None:
        """Send a request and return its answer, or `None` if the connection broke."""
        coming: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = coming
        self.say({"id": number, **message})
        try:
            return await coming
        except asyncio.CancelledError:
            self.say({"cancel": number})
            raise
        finally:
            self._answers.pop(number, None)
            if self._is_retired and not self._answers:
                self.task.cancel()

    def say(self, message: Message) -> None:
        """Send what has no answer of its own."""
        if self.is_open and self._writer is not None:
            send(self._writer, message)

    def retire(self) -> None:
        """Take nothing new, and close when what is under way has ended."""
        self._is_retired = True
        if not self._answers:
            self.task.cancel()

    async def _live(self) -> None:
        event = ConnectionEvent.REFUSED
        try:
            async with asyncio.timeout(self._client.runtime.config.connect_seconds):
                reader = await self._open()
            event = ConnectionEvent.LOST
            while (message := await receive(reader)) is not None:
                self._heard(message)
        except (OSError, EOFError):
            pass  # A TimeoutError is an OSError.
        finally:
            self.is_open = False
            self.settled.set()
            if self._writer is not None:
                self._writer.transport.abort()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_result(None)
            self._client.link_ended(self, event)

    async def _open(self) -> asyncio.StreamReader:
        """Connect and wait for the greeting: a kernel accepts for a process that is stopped."""
        host, port = addresses.split(self.backend.address, "address")
        reader, self._writer = await asyncio.open_connection(host, port, limit=LINE_MAX_BYTES)
        greeting = await receive(reader)
        if greeting is None:
            raise EOFError
        self._client.runtime.heard_load(self.backend, greeting.get("load"))
        self.is_open = True
        self.settled.set()
        self._client.link_opened(self)
        return reader

    def _heard(self, message: Message) -> None:
        self._client.runtime.heard_load(self.backend, message.get("load"))
        number = message.get("id")
        answer = self._answers.get(number) if type(number) is int else None
        if answer is None:
            self._client.runtime.follow_up()  # It was said unasked, or to somebody who has left.
        elif not answer.done():
            answer.set_result(message)
