"""Tell Prometheus where the metrics of all processes are, on a port of its own.

    GET /targets   Prometheus' HTTP service discovery: each process with its role and its name
    GET /metrics   what only the supervisor knows, in Prometheus' text format

Loopback, and no name but its own (`evenly.dashboard.hosts`); nothing here changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, final

from evenly.dashboard.hosts import Hosts, hosts_of, in_url
from evenly.errors import ConfigError, UsageError

__all__ = ["GAUGES", "Targets"]

GAUGES: Final[Mapping[str, str]] = {
    "capacity": "Requests per second that all backends together can serve.",
    "capacity_now": "The same of those backends that are healthy now, and as slow as they are.",
    "load": "What clients are told to ask for, in units of the capacity.",
    "offered": "The same in requests per second.",
    "is_protected": "1 while throttles, shedding, quotas and the retry budget are on.",
    "is_wild": "1 while one customer runs wild.",
    "wasted": "Share of the live capacity that idles because the busiest backend is full.",
    "demo_cores": "Processors that the whole demo uses.",
}
"""The metrics by their names, without `evenly_demo_`, and what they mean."""

_MOST_HEAD_BYTES: Final = 1 << 13
_HEAD_SECONDS: Final = 5.0


@final
class Targets:
    """Serve the targets and the gauges, which are asked for at each request."""

    def __init__(
        self,
        targets: Callable[[], Sequence[Mapping[str, Any]]],
        gauges: Callable[[], Mapping[str, float]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._pages: Mapping[str, Callable[[], tuple[str, str]]] = {
            "/targets": lambda: ("application/json", json.dumps(targets())),
            "/metrics": lambda: (_TEXT, _text(gauges())),
        }
        self._host = host
        self._port = port
        self._hosts: Hosts | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """Host and port; the port is 0 before it has started."""
        return f"{in_url(self._host)}:{self._port}"

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Listen, or raise `ConfigError` if somebody else does."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._port, limit=_MOST_HEAD_BYTES
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigError(f"metrics_port must be free, not {self._port}: {why}") from error
        bound, self._port = self._server.sockets[0].getsockname()[:2]
        self._hosts = hosts_of(self._host, bound, self._port)

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            # One request per connection: it is asked every few seconds.
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.decode("latin-1")))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # Whoever does not ask in time, at this length or at all gets no answer.
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: str) -> bytes:
        if self._hosts is None:
            raise UsageError("answer before start()")
        request, *fields = head.split("\r\n")
        hosts = [
            value.strip()
            for name, _, value in (field.partition(":") for field in fields)
            if name.strip().lower() == "host"
        ]
        words = request.split(" ")
        if len(words) != 3:
            return _response(HTTPStatus.BAD_REQUEST, "text/plain", "this is no HTTP request\n")
        if len(hosts) != 1 or not self._hosts.include(hosts[0]):
            text = "the Host header is not the address of this server\n"
            return _response(HTTPStatus.FORBIDDEN, "text/plain", text)
        if words[0] != "GET":
            text = f"the method must be GET, not {words[0][:20]}\n"
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", text, "Allow: GET\r\n")
        page = self._pages.get(words[1].partition("?")[0])
        if page is None:
            text = f"there is {' and '.join(self._pages)}, and nothing else\n"
            return _response(HTTPStatus.NOT_FOUND, "text/plain", text)
        return _response(HTTPStatus.OK, *page())


_TEXT: Final = "text/plain; version=0.0.4"


def _text(gauges: Mapping[str, float]) -> str:
    return "".join(
        f"# HELP evenly_demo_{name} {meaning}\n"
        f"# TYPE evenly_demo_{name} gauge\n"
        f"evenly_demo_{name} {float(gauges[name])!r}\n"
        for name, meaning in GAUGES.items()
        if name in gauges
    )


def _response(status: HTTPStatus, kind: str, text: str, more: str = "") -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Cache-Control: no-store\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
