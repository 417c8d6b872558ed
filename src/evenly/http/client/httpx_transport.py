"""A transport for `httpx.AsyncClient`: every request goes to the backend that evenly picks.

    client = httpx.AsyncClient(transport=evenly.http.Transport("dns:///search.prod:8080"))

The URL's host is what backends are told, and what their certificates have to be for; where the
request goes is the target's matter.
"""

from __future__ import annotations

import ssl as tls
from collections.abc import AsyncIterator, Mapping
from functools import cache
from types import TracebackType
from typing import Any, Final, NoReturn, final

try:
    import httpx
except ImportError as error:
    raise ImportError("evenly.http.Transport needs httpx: pip install httpx") from error

from evenly.context import outgoing_request
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.errors import UsageError
from evenly.http.client.base import HEALTH_PATH, Client
from evenly.http.client.errors import Phase
from evenly.http.client.fetch import Fetch
from evenly.http.client.httpx_errors import TransportErrors
from evenly.http.client.outgoing import PIECE_BYTES, Outgoing, Pieces, Prepared, Upload
from evenly.http.client.service import Service
from evenly.http.client.timed import PhaseSeconds
from evenly.runtime.client_config import ClientConfig

__all__ = ["Transport"]

_ERRORS: Final = TransportErrors()
_ONLY_ASYNC: Final = "evenly.http.Transport is for httpx.AsyncClient, not for httpx.Client"


@final
class Transport(httpx.AsyncBaseTransport):
    """Send httpx's requests to the backends of a service.

    `target` is `dns:///name:port`, `static:host:port,host:port`, `file:/path`, or a `Discovery` of
    your own.  Connections are made with TLS where `ssl` is given or the URL says `https`.  httpx's
    time-outs hold, and an inherited deadline beside them.  A response says in its `extensions`
    which backend it came from (`evenly_backend`) and how often the request was sent
    (`evenly_attempts`).  Of a POST that may be done twice, say so in the request's:
    `extensions={"evenly_idempotent": True}`.
    """

    def __init__(
        self,
        target: str | Discovery,
        *,
        config: ClientConfig | None = None,
        ssl: tls.SSLContext | None = None,
        health_path: str = HEALTH_PATH,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._client = Client(
            target, config=config, ssl=ssl, observer=observer, health_path=health_path
        )
        self._ssl = ssl
        self._service: Service | None = None

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go; the connections are closed if nobody else uses them."""
        await self._client.close()

    @property
    def service(self) -> Service:
        """What the latest request was sent to: transports to the same target share it."""
        return self._client.service() if self._service is None else self._service

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        return self.service.runtime.task.snapshot()

    def __enter__(self) -> NoReturn:
        """Refuse `with httpx.Client(transport=…)`, which enters its transport."""
        raise UsageError(_ONLY_ASYNC)

    def handle_request(self, request: httpx.Request) -> NoReturn:  # noqa: ARG002 -- httpx's
        """Refuse a request of `httpx.Client`."""
        raise UsageError(_ONLY_ASYNC)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response with a body that is yet to be read."""
        url = request.url
        client = self._client
        if self._ssl is not None:
            service = client.service(host=url.raw_host.decode("ascii"))
        elif url.scheme == "https":
            service = client.service(_default_context(), url.raw_host.decode("ascii"))
        else:
            service = client.service()
        self._service = service
        extensions = request.extensions
        idempotent = extensions.get("evenly_idempotent")
        if idempotent is None:
            idempotent = client.is_idempotent(request.method, url.path)
        fetch = Fetch(
            service,
            Outgoing(
                request.method,
                url.raw_path.decode("ascii"),
                Prepared(request.headers.raw),
                _body(request),
            ),
            outgoing_request(service.loop.time(), None, idempotent=bool(idempotent)),
            _ERRORS,
            _seconds(extensions.get("timeout")),
        )
        fetch.keeper = client
        raw = await fetch.run(is_buffered=False)
        content = fetch.content
        return httpx.Response(
            raw.status,
            headers=raw.headers,
            stream=_Body(fetch) if content is None else httpx.ByteStream(content),
            extensions={
                "http_version": f"HTTP/{raw.http_version}".encode("ascii"),
                "reason_phrase": raw.reason.encode("latin-1"),
                "evenly_backend": fetch.backend,
                "evenly_attempts": fetch.attempts,
            },
        )


@final
class _Body(httpx.AsyncByteStream):
    """Be the body of a response; closed, or dropped, it gives its attempt up."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def __del__(self) -> None:
        if not self._fetch.is_over:
            self._fetch.abandon()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        next_chunk = self._fetch.next_chunk
        while chunk := await next_chunk():
            yield chunk

    async def aclose(self) -> None:
        """Give up what has not arrived."""
        self._fetch.close()


def _body(request: httpx.Request) -> bytes | Upload | Pieces:
    try:
        content = request.content
    except httpx.RequestNotRead:
        stream = request.stream
    else:
        return content if len(content) <= PIECE_BYTES else Pieces(content)
    if not isinstance(stream, httpx.AsyncByteStream):
        raise RuntimeError("an AsyncClient sends no body that is made by a plain iterator")
    return Upload(stream)


def _seconds(timeout: Mapping[str, Any] | None) -> PhaseSeconds | None:
    if not timeout:
        return None
    return {
        Phase.BACKEND: timeout.get("pool"),
        Phase.CONNECT: timeout.get("connect"),
        Phase.WRITE: timeout.get("write"),
        Phase.READ: timeout.get("read"),
    }


@cache
def _default_context() -> tls.SSLContext:
    context = tls.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
