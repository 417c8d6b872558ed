"""What `evenly.http.Middleware` adds to a request on uvicorn: CPU of the server's process.

One application, bare and with the middleware, in a process each.  A round is some requests to one
and then to the other, so that a noisy moment hits both; and there are several pairs of processes
one after the other, because the same code in two of them differs by up to 3 µs, by where its
objects happen to lie.

The clients are as light as can be: they look at the end of a response only.  They have a CPU of
their own, where there are two: on the server's they would empty its caches, as no client on another
machine does.  They send the headers that `evenly.http.Session` does, a deadline among them, as
those that pay for this do; others get one header more (`endpoint-load-metrics`), and have a row of
their own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from bench.cpu import cpu_seconds
from evenly.core.backend_task import BackendTaskConfig
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig

__all__ = ["Comparison", "backend", "measure", "show"]

CASES = ((1, "evenly/1"), (32, "evenly/1"), (128, "evenly/1"), (32, "curl/8.5.0"))
"""Concurrency and user agent."""
_OTHER_HEADERS = {"evenly/1": "evenly-deadline-ms: 29999", "curl/8.5.0": "Accept: */*"}
REQUESTS = 3000
PAIRS = 3
# What we promise: the middleware adds at most 10 µs of CPU to a request on uvicorn.
BOUND_MICROSECONDS = 10.0
_BODY = b"x" * 99 + b"."
_END = _BODY[-1]


@dataclass(frozen=True, slots=True)
class _Round:
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Say what the middleware costs at one concurrency; times are per request."""

    concurrency: int
    agent: str
    added_microseconds: float
    bare_microseconds: float
    evenly_microseconds: float
    bare_per_second: float
    evenly_per_second: float

    @property
    def is_missed(self) -> bool:
        return self.added_microseconds > BOUND_MICROSECONDS

    def as_json(self) -> dict[str, object]:
        return {
            "what": f"ASGI middleware, concurrency {self.concurrency}, {self.agent}",
            "added_microseconds": round(self.added_microseconds, 1),
            "bare_microseconds": round(self.bare_microseconds, 1),
            "evenly_microseconds": round(self.evenly_microseconds, 1),
            "bare_per_second": round(self.bare_per_second),
            "evenly_per_second": round(self.evenly_per_second),
            "bound": BOUND_MICROSECONDS,
        }


def measure(rounds: int) -> list[Comparison]:
    """Compare in each case, as medians over the rounds."""
    taken: list[list[list[_Round]]] = [[] for _ in CASES]
    for _ in range(PAIRS):
        with backend("bare") as bare, backend("evenly") as ours, _apart_from((bare[0], ours[0])):
            measured = asyncio.run(_measure(max(3, rounds // PAIRS), (bare, ours)))
        for case, more in zip(taken, measured, strict=True):
            case.extend(more)
    return [_compare(*case, pairs) for case, pairs in zip(CASES, taken, strict=True)]


def show(comparisons: list[Comparison]) -> None:
    """Print a table."""
    print("\nevenly.http.Middleware on uvicorn: CPU of the server per request, medians")
    print(f"{'concurrency':>11}  {'client':>10}  {'added µs':>8}  {'bound':>5}", end="  ")
    print(f"{'CPU µs':>13}  {'requests/s':>14}")
    for row in comparisons:
        mark = "  MISSED" if row.is_missed else ""
        print(
            f"{row.concurrency:11}  {row.agent:>10}  {row.added_microseconds:8.1f}"
            f"  {BOUND_MICROSECONDS:5.0f}"
            f"  {row.bare_microseconds:5.1f} →{row.evenly_microseconds:6.1f}"
            f"  {row.bare_per_second:6.0f} →{row.evenly_per_second:6.0f}{mark}"
        )


@contextmanager
def _apart_from(pids: tuple[int, ...]) -> Iterator[None]:
    """Leave a CPU to these processes, and run on another."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) > 1:
        theirs, ours = sorted(cpus)[:2]
        for pid in pids:
            os.sched_setaffinity(pid, {theirs})
        os.sched_setaffinity(0, {ours})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cpus)


class _Client(asyncio.BufferedProtocol):
    """Send one request after the other on one connection, until none is left.

    It has a buffer of its own: `asyncio.Protocol` takes 256 KiB from the heap for each response,
    which costs some processes two page faults and others none, by how their heap happens to lie.
    A slow client lets the server sleep longer, and whoever has slept works slower.
    """

    def __init__(self, request: bytes, numbers: Iterator[int]) -> None:
        self._request = request
        self._numbers = numbers
        self._buffer = bytearray(4096)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, length: int) -> None:
        if self._buffer[length - 1] == _END:  # Only the body ends so.
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"closed: {error}"))

    def _next(self) -> None:
        if next(self._numbers, None) is None:
            if not self.done.done():
                self.done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(self._request)


async def _measure(rounds: int, sides: tuple[tuple[int, int], ...]) -> list[list[list[_Round]]]:
    for _ in range(3):
        for side in sides:
            await _round(side, 32, "evenly/1")
    return [
        [[await _round(side, concurrency, agent) for side in sides] for _ in range(rounds)]
        for concurrency, agent in CASES
    ]


async def _round(side: tuple[int, int], concurrency: int, agent: str) -> _Round:
    pid, port = side
    request = (
        f"GET /things/7 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nuser-agent: {agent}\r\n"
        f"{_OTHER_HEADERS[agent]}\r\n\r\n"
    ).encode()
    numbers = iter(range(REQUESTS))
    loop = asyncio.get_running_loop()
    cpu_before = cpu_seconds(pid)
    before = time.perf_counter()
    made = await asyncio.gather(
        *(
            loop.create_connection(lambda: _Client(request, numbers), "127.0.0.1", port)
            for _ in range(concurrency)
        )
    )
    await asyncio.gather(*(client.done for _, client in made))
    return _Round(time.perf_counter() - before, cpu_seconds(pid) - cpu_before)


def _compare(concurrency: int, agent: str, pairs: list[list[_Round]]) -> Comparison:
    def per_request(side: int) -> float:
        return statistics.median(pair[side].cpu_seconds for pair in pairs) / REQUESTS * 1e6

    def per_second(side: int) -> float:
        return REQUESTS / statistics.median(pair[side].seconds for pair in pairs)

    added = statistics.median(pair[1].cpu_seconds - pair[0].cpu_seconds for pair in pairs)
    return Comparison(
        concurrency=concurrency,
        agent=agent,
        added_microseconds=added / REQUESTS * 1e6,
        bare_microseconds=per_request(0),
        evenly_microseconds=per_request(1),
        bare_per_second=per_second(0),
        evenly_per_second=per_second(1),
    )


@contextmanager
def backend(kind: str) -> Iterator[tuple[int, int]]:
    """Start a backend; its process id and port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        descriptor = listener.fileno()
        port = listener.getsockname()[1]
        process = subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", "bench.http_middleware", kind, str(descriptor)],
            pass_fds=(descriptor,),
        )
    try:
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


async def _app(scope: Any, _receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"100")],
        }
    )
    await send({"type": "http.response.body", "body": _BODY})


def _serve(kind: str, descriptor: int) -> None:
    # The server is saturated here, and would refuse some; what is compared is serving.
    config = BackendConfig(task=BackendTaskConfig(limits_queue=False))
    app: Any = Middleware(_app, config=config) if kind == "evenly" else _app
    options = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(options).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _serve(sys.argv[1], int(sys.argv[2]))
    else:
        show(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
