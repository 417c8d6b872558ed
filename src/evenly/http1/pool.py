"""Keep-alive connections to one address.

Whoever needs a connection gets the newest idle one, or the next that becomes free or comes to
stand, whichever is first: a connection that is being opened belongs to nobody before it stands.
The newest first, so that the others get old enough to be closed when fewer are needed.
"""

from __future__ import annotations

import asyncio
import enum
import math
import select
import ssl as tls
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, cast, final

from evenly.discovery import address as addresses
from evenly.errors import ConfigError
from evenly.http1.connection import Connection, NotSent

__all__ = ["Pool", "PoolEvent"]

# Idle for longer than this, a connection is looked at before it is used: the loop may be behind.
# Looking costs a system call, and busy connections idle for less.
_LOOK_AFTER_SECONDS: Final = 0.001
# Expired connections are never used; when they are closed matters less, so a timer may gather them.
_SWEEP_SECONDS: Final = 0.1
_NEVER: Final = math.inf
# How long a polite end of TLS may take the other side.
_TLS_SHUTDOWN_SECONDS: Final = 1.0


@final
class PoolEvent(enum.Enum):
    """Say what happened to the connections of a pool as a whole."""

    OPENED = enum.auto()
    """The first one stands."""
    REFUSED = enum.auto()
    """One could not be opened, and none stands."""
    LOST = enum.auto()
    """The last one broke, and another could not be opened."""


@final
class Pool:
    """Hold the connections to one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        *,
        ssl: tls.SSLContext | None = None,
        server_hostname: str | None = None,
        connect_seconds: float,
        idle_seconds: float = 1.5,
        on_event: Callable[[Pool, PoolEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = addresses.parse(address, "address")
        if ssl is not None and server_hostname is None and self.address.startswith("unix:"):
            raise ConfigError("server_hostname must be given for TLS over a Unix socket")
        if ssl is not None and server_hostname == "":
            # ssl would check the certificate for no name at all.
            raise ConfigError("server_hostname must not be empty")
        self.is_closed = False
        """Whether it was retired or closed, and hands out no more connections."""
        self._loop = loop
        self._ssl = ssl
        self._server_hostname = server_hostname
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._on_event = on_event
        # Not the loop's own: uvloop's stands still while a callback runs.
        self._clock = clock
        # Dictionaries, because they forget anyone in O(1) and keep an order.
        self._idle: dict[Connection, None] = {}
        self._busy: dict[Connection, None] = {}
        self._waiters: OrderedDict[asyncio.Future[Connection], None] = OrderedDict()
        self._connects: dict[asyncio.Task[None], None] = {}
        self._closing: dict[Connection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_at = _NEVER
        self._is_up = False
        """Whether a connection stood, and none was refused since the last was gone."""
        self._is_broken = False
        """Whether the last connection broke."""
        self._is_asked = False
        """Whether `open` waits for its answer."""
        self._is_told = False
        """Whether those that are being opened have been reported as refused."""
        self._ends: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        closed = " closed" if self.is_closed else ""
        return f"<Pool {self.address} active={self.active} idle={self.idle}{closed}>"

    @property
    def active(self) -> int:
        """How many connections are in use."""
        return len(self._busy)

    @property
    def idle(self) -> int:
        """How many connections could be used now."""
        return len(self._idle)

    @property
    def connecting(self) -> int:
        """How many connections are being opened."""
        return len(self._connects)

    def try_acquire(self) -> Connection | None:
        """Return the newest idle connection, or `None`."""
        idle = self._idle
        if not idle:
            return None
        now = self._clock()
        while idle:
            connection, _ = idle.popitem()
            idle_for = now - connection.idle_since
            if idle_for < connection.idle_seconds and (
                idle_for < _LOOK_AFTER_SECONDS or not _has_news(connection)
            ):
                self._busy[connection] = None
                return connection
            self._drop(connection)
        return None

    async def acquire(self) -> Connection:
        """Return a connection for one request: an idle one, or the next to be free or to stand.

        Raise `NotSent` if none can be had.
        """
        connection = self.try_acquire()
        if connection is not None:
            return connection
        if self.is_closed:
            raise NotSent(f"the pool of {self.address} is closed")
        waiter: asyncio.Future[Connection] = self._loop.create_future()
        self._waiters[waiter] = None
        if len(self._connects) < len(self._waiters):
            self._connect()
        try:
            return await waiter
        except BaseException:
            self._waiters.pop(waiter, None)
            # Cancelled at the moment at which it was served: the connection is the next one's.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())
            raise

    def release(self, connection: Connection) -> None:
        """Take a connection back: it goes to the first who waits, or is kept."""
        if connection not in self._busy:
            return
        if self.is_closed or not connection.is_idle:
            del self._busy[connection]
            self._drop(connection)
        elif not self._hand_over(connection):
            del self._busy[connection]
            self._keep(connection)

    def open(self) -> None:
        """Open a connection now, and tell by an event whether it came to stand."""
        if not self.is_closed:
            self._is_asked = True
            self._connect()

    def retire(self) -> None:
        """Hand out no more: close the idle ones now, the others when their requests are done."""
        self.is_closed = True
        self._stop_sweeping()
        for task in self._connects:
            task.cancel()
        for connection in list(self._idle):
            del self._idle[connection]
            self._drop(connection)
        waiters, self._waiters = self._waiters, OrderedDict()
        for waiter in waiters:
            _refuse(waiter, f"the pool of {self.address} was closed")
        self._check_end()

    def close(self) -> None:
        """Close every connection now; requests under way are lost."""
        self.retire()
        for connection in list(self._busy):
            connection.close()

    async def closed(self) -> None:
        """Wait, after `retire` or `close`, until nothing is left: no socket and no task."""
        while not self._is_over():
            if self._ends is None:
                self._ends = self._loop.create_future()
            await asyncio.shield(self._ends)

    # What connections tell.

    def dropped(self, connection: Connection, *, is_broken: bool) -> None:
        """Learn that a connection takes no more requests."""
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)
        if connection.transport is not None:
            self._closing[connection] = None
        if is_broken and not self.is_closed and not self._idle and not self._busy:
            # Perhaps only this one broke: another tells whether the server is there.
            self._is_broken = True
            if not self._connects:
                self._connect()

    def gone(self, connection: Connection) -> None:
        """Learn that a connection's socket is closed."""
        self._closing.pop(connection, None)
        self._check_end()

    def _connect(self) -> None:
        if not self._connects:
            self._is_told = False
        # In an empty context: the one that is current may belong to a request.
        task = Context().run(self._loop.create_task, self._open_one())
        if not task.done():  # An eager one may be.
            self._connects[task] = None
            task.add_done_callback(self._connect_ended)

    async def _open_one(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            async with asyncio.timeout(self._connect_seconds):
                connection = await self._open_transport()
        except Exception as error:  # noqa: BLE001 -- whatever it is, somebody waits to hear it
            self._connects.pop(task, None)
            self._refused(error)
            return
        # Now and not when the task is done: who comes in between must not count on it.
        self._connects.pop(task, None)
        if self.is_closed:
            connection.close()
        elif connection.is_idle:
            self._opened(connection)
        else:
            self._refused(ConnectionResetError("it was closed as soon as it stood"))

    async def _open_transport(self) -> Connection:
        options: dict[str, Any] = {}
        if self._ssl is not None:
            options = {
                "ssl": self._ssl,
                "server_hostname": self._server_hostname,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS,
            }
        if self.address.startswith("unix:"):
            path = self.address.removeprefix("unix:")
            _, connection = await self._loop.create_unix_connection(self._make, path, **options)
        else:
            host, port = addresses.split(self.address, "address")
            _, connection = await self._loop.create_connection(self._make, host, port, **options)
        return connection

    def _make(self) -> Connection:
        return Connection(self._loop, self, self._idle_seconds)

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        if task in self._connects:  # Cancelled, by us or by who ends the loop.
            del self._connects[task]
            self._refused(ConnectionAbortedError("it was given up"))
        self._check_end()

    def _opened(self, connection: Connection) -> None:
        self._is_broken = self._is_told = False
        if not self._hand_over(connection):
            self._keep(connection)
        if self._is_asked or not self._is_up:
            self._is_asked = False
            self._is_up = True
            self._on_event(self, PoolEvent.OPENED)

    def _refused(self, error: Exception) -> None:
        if self.is_closed:
            return
        why = str(error) or type(error).__name__
        # Those who still have a connection under way for them go on waiting.
        while len(self._waiters) > len(self._connects):
            waiter, _ = self._waiters.popitem(last=False)
            _refuse(waiter, f"cannot connect to {self.address}: {why}", error)
        if self._is_asked or not (self._idle or self._busy or self._is_told):
            event = PoolEvent.LOST if self._is_broken and self._is_up else PoolEvent.REFUSED
            self._is_told = True
            self._is_up = self._is_broken = self._is_asked = False
            self._on_event(self, event)

    def _hand_over(self, connection: Connection) -> bool:
        """Give a connection to the first who waits; return whether somebody does."""
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                self._busy[connection] = None
                waiter.set_result(connection)
                return True
        return False

    def _keep(self, connection: Connection) -> None:
        now = connection.idle_since = self._clock()
        self._idle[connection] = None
        expires_at = now + connection.idle_seconds
        if expires_at < self._sweep_at - _SWEEP_SECONDS:
            self._sweep_next(expires_at, connection.idle_seconds)

    def _drop(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        connection.close()

    def _sweep_next(self, at: float, delay_seconds: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_at = at
        self._sweeper = self._loop.call_later(delay_seconds, self._sweep, context=Context())

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        self._stop_sweeping()
        now = self._clock()
        next_at = _NEVER
        for connection in list(self._idle):
            expires_at = connection.idle_since + connection.idle_seconds
            if expires_at <= now:
                del self._idle[connection]
                self._drop(connection)
            elif expires_at < next_at:
                next_at = expires_at
        if next_at < _NEVER:
            self._sweep_next(next_at, max(next_at - now, _SWEEP_SECONDS))

    def _stop_sweeping(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._sweep_at = _NEVER

    def _is_over(self) -> bool:
        return not (self._connects or self._idle or self._busy or self._closing)

    def _check_end(self) -> None:
        if self._ends is not None and self._is_over():
            ends, self._ends = self._ends, None
            ends.set_result(None)


def _refuse(waiter: asyncio.Future[Connection], why: str, cause: Exception | None = None) -> None:
    if not waiter.done():
        refusal = NotSent(why)
        refusal.__cause__ = cause
        waiter.set_exception(refusal)


def _has_news(connection: Connection) -> bool:
    """Return whether something arrived on an idle connection that the loop has not read yet."""
    transport = connection.transport
    if transport is None or transport.is_closing():
        return True
    news = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
    if transport.get_extra_info("sslcontext") is None:
        news |= select.POLLIN  # TLS has messages of its own.
    look = select.poll()
    look.register(transport.get_extra_info("socket").fileno(), news)
    return bool(look.poll(0))
