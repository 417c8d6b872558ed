"""What a `Session` and a `Transport` have in common: the services that they share with others."""

from __future__ import annotations

import asyncio
import ssl as tls
from typing import final

from evenly.core.observer import Observer
from evenly.discovery.target import Discovery
from evenly.errors import ConfigError, UsageError
from evenly.http.client.service import Service, drop, release, share
from evenly.http1.head import check_visible
from evenly.runtime.client import check_client
from evenly.runtime.client_config import ClientConfig

__all__ = ["HEALTH_PATH", "IDEMPOTENT", "Client"]

HEALTH_PATH = "/healthz"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""RFC 9110, section 9.2.2."""


@final
class Client:
    """Use a service, on the loop that runs at the first request."""

    def __init__(
        self,
        target: str | Discovery,
        *,
        config: ClientConfig | None,
        ssl: tls.SSLContext | None,
        observer: Observer,
        health_path: str,
    ) -> None:
        self.config = ClientConfig() if config is None else config
        check_client(target, self.config)
        if not health_path.startswith("/"):
            raise ConfigError(f"health_path must begin with /, not {health_path!r:.100}")
        check_visible("health_path", health_path)
        self._target = target
        self._ssl = ssl
        self._observer = observer
        self._health_path = health_path
        self._services: dict[tuple[tls.SSLContext | None, str | None], Service] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def __del__(self) -> None:
        # Nobody closed it.
        loop = getattr(self, "_loop", None)
        if loop is not None and not self._is_closed:
            for (ssl, host), service in self._services.items():
                drop(loop, self._key(ssl, host), service)

    def service(self, ssl: tls.SSLContext | None = None, host: str | None = None) -> Service:
        """Return the service to send to; with TLS, backends have to be who `host` says."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._begin(loop)
        # By identity and not by the key: a config takes long to hash.
        service = self._services.get((ssl, host))
        return self._share(loop, ssl, host) if service is None else service

    def _share(
        self, loop: asyncio.AbstractEventLoop, ssl: tls.SSLContext | None, host: str | None
    ) -> Service:
        if self._is_closed:
            raise UsageError("this HTTP client is closed")
        used = self._ssl if ssl is None else ssl
        service = share(loop, self._key(ssl, host), lambda: self._make(used, host))
        self._services[ssl, host] = service
        return service

    def _key(self, ssl: tls.SSLContext | None, host: str | None) -> object:
        used = self._ssl if ssl is None else ssl
        return (
            self._target if isinstance(self._target, str) else id(self._target),
            self.config,
            None if used is None else id(used),
            host,
            self._health_path,
            id(self._observer),
        )

    async def close(self) -> None:
        """Let go.  With the last user of a service its connections are closed."""
        if self._is_closed:
            return
        loop = self._loop
        if not (loop is None or loop is asyncio.get_running_loop() or loop.is_closed()):
            raise UsageError("this HTTP client belongs to another event loop: close it there")
        self._is_closed = True
        services, self._services = self._services, {}
        if loop is None or loop.is_closed():
            return  # What is left of a closed loop is let go by who shares next.
        for (ssl, host), service in services.items():
            await release(loop, self._key(ssl, host), service)

    def is_idempotent(self, method: str, path: str) -> bool:
        """Return whether doing it twice does no harm: by its method, or as declared."""
        return method in IDEMPOTENT or (
            bool(self.config.idempotent_methods) and self.config.is_idempotent(f"{method} {path}")
        )

    def _make(self, ssl: tls.SSLContext | None, host: str | None) -> Service:
        return Service(
            self._target,
            self.config,
            ssl=ssl,
            host=host,
            health_path=self._health_path,
            observer=self._observer,
        )

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is None:
            self._loop = loop
            return
        state = "is closed" if self._loop.is_closed() else "is not the one that runs"
        raise UsageError(f"this HTTP client belongs to an event loop that {state}: make another")
