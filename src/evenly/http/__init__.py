"""HTTP: a client that balances, and a middleware that refuses what it cannot do.

    client = httpx.AsyncClient(transport=evenly.http.Transport("dns:///search.prod:8080"))
    session = evenly.http.Session("dns:///search.prod:8080")        # leaner, without httpx

    app = evenly.http.Middleware(app)                               # any ASGI application
    await evenly.http.serve(app, port=8080)                         # SIGTERM: lame duck, drain

In a shell, with several processes: `evenly serve module:app --workers 4`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenly.http.client.errors import (
    BodyTooLong,
    ConnectionLost,
    HttpError,
    NoBackendHttpError,
    OverloadedHttpError,
    QuotaExceededHttpError,
    RejectedHttpError,
    StatusError,
    ThrottledHttpError,
    Timeout,
)
from evenly.http.client.response import Headers, Response, StreamedResponse
from evenly.http.client.session import Session
from evenly.http.serve.connection_limits import ConnectionLimits
from evenly.http.serve.loading import StartError
from evenly.http.serve.serve import run, serve
from evenly.http.server.middleware import Middleware
from evenly.probe.config import ProbeConfig
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

if TYPE_CHECKING:
    from evenly.http.client.httpx_transport import Transport

__all__ = [
    "BackendConfig",
    "BodyTooLong",
    "ClientConfig",
    "ConnectionLimits",
    "ConnectionLost",
    "Headers",
    "HttpError",
    "Middleware",
    "NoBackendHttpError",
    "OverloadedHttpError",
    "ProbeConfig",
    "QuotaExceededHttpError",
    "RejectedHttpError",
    "Response",
    "Session",
    "StartError",
    "StatusError",
    "StreamedResponse",
    "ThrottledHttpError",
    "Timeout",
    "Transport",
    "run",
    "serve",
]


def __getattr__(name: str) -> object:
    # httpx is brought by those who use it, and takes a tenth of a second to import.
    if name == "Transport":
        from evenly.http.client.httpx_transport import Transport  # noqa: PLC0415

        return Transport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
