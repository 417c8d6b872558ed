"""One service as this process sees it: the decisions about it, and a connection to each backend.

Channels to the same target share it, so that two of them do not balance past one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import final

import grpc
import grpc.aio

from evenly.core.balancing.backend import Backend
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.grpc.client.apart import apart
from evenly.grpc.client.connection import Connection
from evenly.grpc.client.refusal import Nowhere
from evenly.grpc.common.connections import Connections
from evenly.grpc.common.options import Options, channel_options
from evenly.grpc.common.translation import grpc_target
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from evenly.runtime.sharing import Registry

__all__ = ["Service", "drop", "release", "share"]


@final
class Service(Connections[Connection]):
    """Be one service on one event loop."""

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
        interceptors: Sequence[grpc.aio.ClientInterceptor] | None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.name = target if isinstance(target, str) else type(target).__name__
        super().__init__(ClientRuntime(target, config, observer=observer, part=options))
        self._credentials = credentials
        self._compression = compression
        self._interceptors = apart(interceptors)
        self._options = channel_options(target, options)
        self._check_seconds = config.task.membership.health.check_seconds
        self._leaving: list[Connection] = []
        self.users = 0
        """Open channels that use it."""
        self._open(
            "ipv4:127.0.0.1:1"
        )  # Options that gRPC refuses are refused now; it never connects.

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look for backends and to connect."""
        self.runtime.start(loop, self)

    @cached_property
    def nowhere(self) -> Nowhere:
        """Where a call goes that is refused here, past the interceptors."""
        return Nowhere(self._interceptors or ())

    async def stop(self) -> None:
        """Close every connection; calls that have not ended are cancelled."""
        self.runtime.stop()
        connections = [*self.connections.values(), *self._leaving]
        self.connections = {}
        for connection in connections:
            connection.retire()
        for connection in connections:
            await connection.channel.close()
            await connection.closed()
        await self.runtime.stopped()

    def abandon(self) -> None:
        """Let go of what a loop leaves that was closed before this was stopped."""
        self.runtime.abandon()

    # The runtime says what to do.

    def connect(self, backend: Backend) -> None:
        """Open a connection, in place of any other."""
        replaced = self.connections.get(backend.address)
        self.connections[backend.address] = Connection(
            backend,
            self._open(grpc_target(backend.address)),
            self,
            connect_seconds=self.runtime.config.connect_seconds,
            check_seconds=self._check_seconds,
            loop=self.runtime.loop,
        )
        if replaced is not None:
            self._retire(replaced)

    def _open(self, target: str) -> grpc.aio.Channel:
        arguments = (self._options, self._compression, self._interceptors)
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, *arguments)
        return grpc.aio.secure_channel(target, self._credentials, *arguments)

    def _left(self, connection: Connection) -> None:
        """Remember it for `stop`."""
        self._leaving = [other for other in self._leaving if not other.is_closed]
        self._leaving.append(connection)


_services: Registry[Service] = Registry()
share = _services.share
release = _services.release
drop = _services.drop
