"""Serve and ask over HTTP, with evenly on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final
from urllib.parse import urlsplit

import evenly.http
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import Observer
from evenly.http.server.asgi import Receive, Scope, Send
from evenly.lab.demo.talk import Answer, Broken, Ready
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

__all__ = ["HttpCaller", "serve"]

_PATH = "/ask"


async def serve(
    answer: Answer,
    *,
    host: str,
    port: int,
    config: BackendConfig,
    observer: Observer,
    ready: Ready,
) -> None:
    """Serve until SIGTERM; `ready` is told the port and what drives the backend."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await answer()
            status = 200
        except Broken:
            status = 500
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    guard = evenly.http.Middleware(app, config=config, observer=observer)
    await evenly.http.serve(
        guard,
        host=host,
        port=port,
        on_listening=lambda url: ready(urlsplit(url).port or 0, guard.runtime),
        grace_seconds=2.0,
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


@final
class HttpCaller:
    """Ask one service, over one session."""

    def __init__(self, addresses: Sequence[str], config: ClientConfig, observer: Observer) -> None:
        target = f"static:{','.join(addresses)}"
        self._session = evenly.http.Session(target, config=config, observer=observer)

    async def start(self) -> None:
        """Begin to look for backends, and to connect."""
        await self._session.__aenter__()

    async def ask(self, timeout_seconds: float) -> None:
        """Ask once; raise a `RejectedError` if that was refused, anything else if it failed."""
        response = await self._session.get(_PATH, timeout_seconds=timeout_seconds)
        response.raise_for_status()

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what the client task knows."""
        return self._session.snapshot()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
