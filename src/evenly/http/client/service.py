"""One service as this loop sees it: the decisions about it, and a pool of connections per backend.

Clients of the same target share it, so that two of them do not balance past one another.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from contextvars import Context
from typing import Final, final

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Request
from evenly.discovery.authority import authority_of
from evenly.discovery.target import Discovery
from evenly.errors import ConfigError
from evenly.http.client.outgoing import Outgoing, Prepared
from evenly.http1.connection import Lost, NotSent
from evenly.http1.head import check_visible
from evenly.http1.pool import Pool, PoolEvent
from evenly.http1.reply import Reply, TooLong
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from evenly.runtime.sharing import Registry
from evenly.wire import load_header

__all__ = ["LOAD", "Link", "Service", "check_host", "drop", "release", "share"]

LOAD: Final = load_header.KEY.encode()
# Who does not say `Keep-Alive: timeout=` may close idle connections after two seconds; some do.
_IDLE_SECONDS: Final = 1.5
_NOT_SERVING: Final = 503
_CHECK_REQUEST: Final = Request()
# Of the answer to a health check; more is not worth its connection.
_CHECK_MAX_BYTES: Final = 65_536
_EVENTS: Final = {
    PoolEvent.OPENED: ConnectionEvent.OPENED,
    PoolEvent.REFUSED: ConnectionEvent.REFUSED,
    PoolEvent.LOST: ConnectionEvent.LOST,
}


@final
class Link:
    """Be the connections to one backend, from the order to connect until they are lost."""

    __slots__ = ("backend", "host", "is_open", "pool")

    def __init__(self, backend: Backend, pool: Pool, host: str) -> None:
        self.backend = backend
        self.pool = pool
        self.host = host
        """What to name as host, where the user names none."""
        self.is_open = False

    def __repr__(self) -> str:
        return f"<Link {self.backend} {'open' if self.is_open else 'not open'}>"


@final
class Service:
    """Be one service on one event loop."""

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        ssl: tls.SSLContext | None = None,
        host: str | None = None,
        health_path: str = "/healthz",
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.name = target if isinstance(target, str) else type(target).__name__
        self.runtime = ClientRuntime(target, config, observer=observer, part=host)
        self.loop: asyncio.AbstractEventLoop
        self.users = 0
        if host is None and isinstance(target, str):
            host = authority_of(target)
        self._host = None if host is None else _in_brackets(check_host(host))
        self._ssl = ssl
        self._links: dict[str, Link] = {}
        self._leaving: list[Pool] = []
        self._checks: set[asyncio.Task[None]] = set()
        self._check = Outgoing("GET", health_path, Prepared(()))
        self._check_seconds = config.task.membership.health.check_seconds

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for backends and to connect."""
        self.loop = loop
        self.runtime.start(loop, self)

    async def stop(self) -> None:
        """Close every connection; what is under way on them is lost."""
        self.runtime.stop()
        for check in self._checks:
            check.cancel()
        pools = [*(link.pool for link in self._links.values()), *self._leaving]
        self._links = {}
        self._leaving = []
        for pool in pools:
            pool.close()
        for pool in pools:
            await pool.closed()
        if self._checks:
            await asyncio.wait(self._checks)
        await self.runtime.stopped()

    def abandon(self) -> None:
        """Let go of what a loop leaves that was closed before this was stopped."""
        self.runtime.abandon()

    def link_for(self, attempt: Attempt) -> Link | None:
        """Return the connections to send an attempt on, or `None` if there are none."""
        address = attempt.view.backend.address
        link = self._links.get(address)
        if link is None:
            self.runtime.follow_up()  # It is opened on demand.
            link = self._links.get(address)
        return link

    # The runtime says what to do.

    def connect(self, backend: Backend) -> None:
        """Open connections, in place of any others."""
        replaced = self._links.get(backend.address)
        name = _name_of(backend.address) if self._host is None else self._host
        link: Link
        pool = Pool(
            self.loop,
            backend.address,
            ssl=self._ssl,
            server_hostname=None if self._ssl is None else _without_port(name),
            connect_seconds=self.runtime.config.connect_seconds,
            idle_seconds=_IDLE_SECONDS,
            on_event=lambda _, event: self._happened(link, event),
        )
        link = Link(backend, pool, name)
        self._links[backend.address] = link
        if replaced is not None:
            self._retire(replaced)
        pool.open()

    def disconnect(self, backend: Backend) -> None:
        """Close the connections when what is under way on them has ended."""
        link = self._links.pop(backend.address, None)
        if link is not None:
            self._retire(link)

    def check(self, backend: Backend) -> None:
        """Ask the backend over a connection whether it serves."""
        link = self._links.get(backend.address)
        if link is not None and link.is_open:
            # In an empty context: the one that is current may belong to a request.
            task = Context().run(self.loop.create_task, self._ask(link))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    # Pools say what happened.

    def _happened(self, link: Link, event: PoolEvent) -> None:
        backend = link.backend
        if self._links.get(backend.address) is not link:
            return  # It was replaced, and is not spoken of.
        if event is PoolEvent.OPENED:
            if link.is_open:
                return
            link.is_open = True
        else:
            del self._links[backend.address]
            self._retire(link)
        self.runtime.connection_changed(backend, _EVENTS[event])

    def _retire(self, link: Link) -> None:
        """Use it for nothing new, and remember it for `stop`."""
        link.is_open = False
        self._leaving = [pool for pool in self._leaving if pool.active or pool.connecting]
        self._leaving.append(link.pool)
        link.pool.retire()

    async def _ask(self, link: Link) -> None:
        head = self._check.head(_CHECK_REQUEST, 1, 0.0, link.host)
        try:
            async with asyncio.timeout(self._check_seconds):
                connection = link.pool.try_acquire() or await link.pool.acquire()
                response = await connection.request("GET", head)
                self._heard(link, response)
                try:
                    # So that the connection can be used again.
                    await response.read(_CHECK_MAX_BYTES)
                finally:
                    response.close()
        except (TimeoutError, NotSent, Lost, TooLong):
            return  # Silence says enough, and the pool the rest.

    def _heard(self, link: Link, response: Reply) -> None:
        load = response.get(LOAD)
        if load is not None:
            self.runtime.heard_load(link.backend, load)
        if self._links.get(link.backend.address) is link:
            is_serving = response.status != _NOT_SERVING
            self.runtime.heard_serving(link.backend, is_serving=is_serving)


def check_host(host: str) -> str:
    """Return it, if it names somebody whom a certificate could be made out to."""
    check_visible("host", host)
    # Of an empty name TLS would check nothing.
    if not _without_port(host):
        raise ConfigError(f"host must be a name or an address, not {host!r:.100}")
    return host


def _without_port(name: str) -> str:
    """Return the host of `host:port`, an IPv6 address without its brackets."""
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name if _is_bare_ipv6(name) else name.partition(":")[0]


def _in_brackets(name: str) -> str:
    """Return a host as the header `Host` has it."""
    return f"[{name}]" if _is_bare_ipv6(name) else name


def _is_bare_ipv6(name: str) -> bool:
    return name.count(":") > 1 and not name.startswith("[")


def _name_of(address: str) -> str:
    """Return how a backend is named that has an address and nothing else."""
    return "localhost" if address.startswith("unix:") else address


_services: Registry[Service] = Registry()
share = _services.share
release = _services.release
drop = _services.drop
