"""Serve the dashboard with uvicorn, inside the event loop that is running.

    async with Dashboard(source) as dashboard:
        print(dashboard.url)

It handles no signals: at the end of the block it closes its streams and its socket.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import secrets
import socket
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, final

try:
    import uvicorn
except ImportError as error:
    raise ImportError(
        'evenly.lab.dashboard needs uvicorn: pip install "evenly[dashboard]"', name=error.name
    ) from error

from evenly.core import check
from evenly.errors import ConfigError
from evenly.lab.dashboard.app import new_app
from evenly.lab.dashboard.connection import CONNECTIONS_MAX, Connection
from evenly.lab.dashboard.guard import TARGETS, Guard
from evenly.lab.dashboard.history import History
from evenly.lab.dashboard.hosts import hosts_of, in_url
from evenly.lab.dashboard.source import Source

if TYPE_CHECKING:  # `evenly.lab.dashboard.app` says which extra it is of.
    from starlette.types import ASGIApp

__all__ = ["Dashboard"]

LOOPBACK: Final = "127.0.0.1"
_HEARTBEAT_SECONDS: Final = 10.0
_TOKEN_BYTES: Final = 24
# For streams to say that they end; one whose reader does not read cannot.
_GRACE_SECONDS: Final = 0.5
# A browser opens a new connection where it has lost one: it costs next to nothing.
_KEEP_ALIVE_SECONDS: Final = 5

_log: Final = logging.getLogger(__name__)


@final
class Dashboard:
    """Show a source to whoever has the link; an async context manager, used once.

    `port` 0 takes a free one.  It listens on loopback unless `host` says otherwise, and speaks
    plain HTTP: elsewhere the token can be read by whoever carries it.
    """

    def __init__(
        self,
        source: Source,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        check.count("port", port, 0, 65_535)
        check.positive("heartbeat_seconds", heartbeat_seconds)
        if not host:
            raise ConfigError(f"host must be a name or an address, not {host!r}")
        self.history = History()
        self._source = source
        self._host = host.removeprefix("[").removesuffix("]")
        self._port = port
        self._heartbeat_seconds = heartbeat_seconds
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._address = ""
        self._server: _Server | None = None
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        # Without the token: this goes to logs.
        return f"<Dashboard {in_url(self._host)}:{self._port} {self.history!r}>"

    @property
    def url(self) -> str:
        """The link, with the token: whoever has it can act on the fleet."""
        return f"{self._root}/#token={self._token}"

    @property
    def targets_url(self) -> str:
        """Where Prometheus and `evenly top` find all metrics."""
        return f"{self._root}{TARGETS}"

    @property
    def _root(self) -> str:
        host = self._host
        if ipaddress.ip_address(self._address).is_unspecified:
            host = "localhost"  # All addresses are no address to go to.
        return f"http://{in_url(host)}:{self._port}"

    async def __aenter__(self) -> Self:
        sock = await _listen(self._host, self._port)
        try:
            self._address, self._port = sock.getsockname()[:2]
            app = new_app(self._source, self.history, heartbeat_seconds=self._heartbeat_seconds)
            hosts = hosts_of(self._host, self._address, self._port)
            self._server = _Server(Guard(app, hosts=hosts, token=self._token), sock)
            await self._server.start()
        except BaseException:
            sock.close()
            raise
        self._following = asyncio.ensure_future(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._following is not None  # noqa: S101 -- it was entered
        assert self._server is not None  # noqa: S101 -- it was entered
        self._following.cancel()
        self.history.close()
        try:
            await self._server.stop()
        finally:
            await asyncio.wait({self._following})

    async def _follow(self) -> None:
        """Take the frames as they are made, however many or few look at them."""
        try:
            async for frame in self._source.frames():
                try:
                    self.history.publish(frame)
                except (ValueError, TypeError) as error:
                    _log.error("left out a frame that is not JSON: %s", error)
        except Exception:  # noqa: BLE001 -- whatever a source raises
            _log.exception("no more frames")
        # Streams stay open, so that pages need not ask again and again; the controls still work.
        self.history.end()


@final
class _Server:
    """Run uvicorn's parts one by one.

    Its own `serve` takes over the signals of the process, and its `shutdown` waits for readers.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        self._sock = sock
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Connection,  # By h11, which is always there and bounds the size of headers.
            ws="none",
            lifespan="off",
            log_config=None,  # The program that embeds us has its own.
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX // 2,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)

    async def start(self) -> None:
        """Accept connections."""
        await self._server.startup([self._sock])
        # It keeps the date of the answers.
        self._ticking = asyncio.ensure_future(self._server.main_loop())

    async def stop(self) -> None:
        """Close the listener, let answers end for a moment, and cut off the rest."""
        state = self._server.server_state
        for server in self._server.servers:
            server.close()
        try:
            await _ended(state.tasks)
        finally:
            for connection in tuple(state.connections):
                # Not `close`, which waits for a reader that does not read.
                transport: Any = connection.transport
                transport.abort()
            self._sock.close()
            self._ticking.cancel()
        await _ended(state.tasks)  # Streams see that their reader has gone.
        for task in tuple(state.tasks):  # A control may hang.
            task.cancel()
        await _ended(state.tasks | {self._ticking})
        for server in self._server.servers:
            await server.wait_closed()


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.sleep(0)  # What was aborted is told in the loop's next turn.
    if tasks:
        await asyncio.wait(tuple(tasks), timeout=_GRACE_SECONDS)


async def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise `ConfigError` with the address if there can be none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        # The protocol is named, because asyncio sends small writes at once for what is surely TCP.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen()  # Now, or another that has bound the port too would win later.
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(_cannot(host, port, error)) from error
    return sock


def _cannot(host: str, port: int, error: Exception) -> str:
    text = getattr(error, "strerror", None) or error
    advice = ""
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        advice = "; choose another port, or 0 for a free one"
    return f"the dashboard cannot listen on {in_url(host)}:{port}: {text}{advice}"
