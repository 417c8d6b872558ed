"""The calling side: what a user calls, and what the runtime tells about connections."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self, final

from evenly.context import outgoing_request
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.exchange import Exchange
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from examples.lines.call import Call, ConnectionLost, Failed
from examples.lines.link import Link

__all__ = ["Client", "ConnectionLost", "Failed"]


@final
class Client:
    """Send requests to the backends of a service.

    async with Client("dns:///greeter.prod:7000") as client:
        answer = await client.call({"greet": "world"}, timeout_seconds=1.0)
    """

    def __init__(
        self,
        target: str | Discovery,
        *,
        config: ClientConfig | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        config = ClientConfig() if config is None else config
        self.name = target if isinstance(target, str) else type(target).__name__
        self.runtime = ClientRuntime(target, config, observer=observer)
        self.links: dict[str, Link] = {}
        self._all: set[Link] = set()
        self._numbers = 0

    async def __aenter__(self) -> Self:
        self.runtime.start(asyncio.get_running_loop(), self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End what waits for a backend, and break the connections."""
        self.runtime.stop()
        self.links.clear()
        tasks = [link.task for link in self._all]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.runtime.stopped()

    async def call(
        self,
        do: object,
        *,
        timeout_seconds: float | None = None,
        idempotent: bool = False,
        wait_for_ready: bool = False,
    ) -> object:
        """Send a request and return its answer.

        Raises an `evenly.RejectedError` where it was refused, here or by a backend; `Failed`,
        `ConnectionLost` or `TimeoutError`.
        """
        now = asyncio.get_running_loop().time()
        request = outgoing_request(now, timeout_seconds, idempotent=idempotent)
        exchange = Exchange(self.runtime.requests, request, wait_for_ready)
        return await Call(self, exchange, do).run()

    def new_number(self) -> int:
        """Return what a request is called on its connection."""
        self._numbers += 1
        return self._numbers

    # The runtime says what to do about connections: a `Connector`.

    def connect(self, backend: Backend) -> None:
        """Open a connection, in place of any other."""
        self.disconnect(backend)
        self.links[backend.address] = link = Link(self, backend)
        self._all.add(link)

    def disconnect(self, backend: Backend) -> None:
        """Close the connection when what is under way on it has ended."""
        link = self.links.pop(backend.address, None)
        if link is not None:
            link.retire()

    def check(self, backend: Backend) -> None:
        """Ask over the connection how the backend is: it does not answer by UDP."""
        link = self.links.get(backend.address)
        if link is not None:
            link.say({"check": True})

    # Links say what happened; of one that was replaced or closed nobody speaks.

    def link_opened(self, link: Link) -> None:
        """Tell the runtime that requests can be sent."""
        if self.links.get(link.backend.address) is link:
            self.runtime.connection_changed(link.backend, ConnectionEvent.OPENED)

    def link_ended(self, link: Link, event: ConnectionEvent) -> None:
        """Tell the runtime that it was refused or lost."""
        self._all.discard(link)
        if self.links.get(link.backend.address) is link:
            del self.links[link.backend.address]
            self.runtime.connection_changed(link.backend, event)
