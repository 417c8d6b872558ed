"""Answer the page's requests: its files, what is shown, the frames, and the controls.

    GET  /               the page                   GET  /static/…      what it is made of
    GET  /api/describe   JSON, once per page        GET  /api/frames    server-sent events
    POST /api/control    {"do": name, …arguments}
    GET  /targets        Prometheus' HTTP service discovery: each process with its role and its name
    GET  /metrics        what only the source knows, in Prometheus' text format

`evenly.lab.dashboard.guard` stands before all of it.  What went wrong is `{"error": text}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, final

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp
except ImportError as error:
    raise ImportError(
        'evenly.lab.dashboard needs starlette: pip install "evenly[dashboard]"', name=error.name
    ) from error

from evenly.errors import ConfigError
from evenly.lab.dashboard.guard import CONTROL, METRICS, STATIC, TARGETS
from evenly.lab.dashboard.history import History, encode
from evenly.lab.dashboard.source import Source
from evenly.lab.dashboard.stream import FrameStream

__all__ = ["BODY_MAX_BYTES", "BODY_SECONDS", "new_app"]

BODY_MAX_BYTES: Final = 4096
BODY_SECONDS: Final = 5.0
_FILES: Final = Path(__file__).parent / "static"
_JSON: Final = "application/json"
_METRICS_TYPE: Final = "text/plain; version=0.0.4"

_log: Final = logging.getLogger(__name__)


def new_app(source: Source, history: History, *, heartbeat_seconds: float) -> ASGIApp:
    """Return the dashboard's ASGI application, without its guard."""
    routes = _Routes(source, history, heartbeat_seconds)
    return Starlette(
        routes=[
            Route("/", routes.page),
            Mount(STATIC, StaticFiles(directory=_FILES, check_dir=False)),
            Route("/api/describe", routes.describe),
            Route("/api/frames", routes.frames),
            Route(CONTROL, routes.control, methods=["POST"]),
            Route(TARGETS, routes.targets),
            Route(METRICS, routes.metrics),
        ],
        exception_handlers={HTTPException: _refused},
    )


@final
class _Routes:
    def __init__(self, source: Source, history: History, heartbeat_seconds: float) -> None:
        self._source = source
        self._history = history
        self._heartbeat_seconds = heartbeat_seconds

    async def page(self, request: Request) -> Response:  # noqa: ARG002 -- starlette's signature
        return FileResponse(_FILES / "index.html")

    async def describe(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        try:
            return _json(200, self._source.describe())
        except Exception:  # noqa: BLE001 -- whatever a source raises: the page must hear of it
            _log.exception("the fleet could not be described")
            return _error(500, "the fleet could not be described: see the log")

    async def targets(self, request: Request) -> Response:
        # The guard has seen that it is ours.
        return _json(200, self._source.targets(request.headers["host"]))

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        return Response(self._source.metrics(), media_type=_METRICS_TYPE)

    async def frames(self, request: Request) -> ASGIApp:  # noqa: ARG002 -- the same
        return FrameStream(self._history, heartbeat_seconds=self._heartbeat_seconds)

    async def control(self, request: Request) -> Response:
        name, arguments = await _order(request)
        try:
            await self._source.control(name, arguments)
        except ConfigError as error:
            return _error(422, str(error))
        except asyncio.CancelledError:  # Only a server that stops does this.
            return _error(503, "the dashboard is closing")
        except Exception:  # noqa: BLE001 -- the same
            _log.exception("control %.100r failed", name)
            return _error(500, "the control failed: see the log")
        return _json(200, {})


async def _order(request: Request) -> tuple[str, dict[str, object]]:
    """Return the name and the arguments that a page sent; raise `HTTPException` for any else."""
    kind = request.headers.get("content-type", "")
    # Forms of other sites can send text/plain, and JSON in it, without being asked.
    if kind.partition(";")[0].strip().lower() != _JSON:
        raise HTTPException(415, f"the content-type must be {_JSON}, not {kind[:100]!r}")
    try:
        found = json.loads(await _body(request), parse_constant=_no_constant)
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(name := found.pop("do", None), str):
        raise HTTPException(400, 'the body must be an object with a string "do"')
    return name, found


async def _body(request: Request) -> bytes:
    body = bytearray()
    # Its Content-Length may lie or be missing, so what comes is counted.
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_MAX_BYTES:
                    raise HTTPException(413, f"the body must be at most {BODY_MAX_BYTES} bytes")
    except TimeoutError:
        text = f"the body must come within {BODY_SECONDS:g} s"
        raise HTTPException(408, text, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None
    return bytes(body)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 -- the same
    assert isinstance(error, HTTPException)  # noqa: S101 -- it is registered for these
    return _error(error.status_code, error.detail, error.headers)


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json(status, {"error": text}, headers)


def _json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    # Not starlette's: that fails over half a surrogate pair, which JSON can carry to us.
    return Response(encode(value), status, headers, media_type=_JSON)
