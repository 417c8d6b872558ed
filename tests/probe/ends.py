"""Both ends of a probe, and strangers: what the tests of this folder share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenly.core.balancing.backend import Backend
from evenly.core.report import LoadReport
from evenly.probe.prober import Prober
from evenly.probe.responder import ProbeResponder
from evenly.wire.datagram import parse_question

KEY = b"sixteen bytes..."
OTHER_KEY = b"sixteen others.."
V4 = "127.0.0.1"
REPORT = LoadReport(boot=7, sequence=1, runnable=2.5, active=3)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Let the loop turn, so that what has arrived on loopback has been read."""
    for _ in range(count):
        await asyncio.sleep(0)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Heard:
    """Be the client task: keep the reports and whether each answers a probe."""

    def __init__(self) -> None:
        self.reports: list[tuple[Backend, LoadReport, bool]] = []

    def __call__(self, backend: Backend, report: LoadReport, is_probe: bool) -> None:
        self.reports.append((backend, report, is_probe))

    def kinds(self) -> list[bool]:
        return [is_probe for _, _, is_probe in self.reports]


class State:
    """Be the backend task: give the report, and count how often it was built."""

    def __init__(self) -> None:
        self.report = REPORT
        self.built = 0

    def __call__(self) -> LoadReport:
        self.built += 1
        return self.report

    def become_lame_duck(self) -> None:
        self.report = LoadReport(boot=7, sequence=2, lame_duck=True)


@contextmanager
def stranger(host: str = V4) -> Iterator[socket.socket]:
    """Open a plain UDP socket that is neither end."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind((host, 0))
        yield sock


def report_icmp_errors(sock: socket.socket) -> None:
    """Let a socket raise what ICMP says, as some systems do by themselves and Linux on demand."""
    sock.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR, for which Python has no name


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def received(sock: socket.socket) -> list[bytes]:
    """Return what waits in a stranger's socket."""
    datagrams: list[bytes] = []
    while True:
        try:
            datagrams.append(sock.recv(65536))
        except BlockingIOError:
            return datagrams


async def arrived(sock: socket.socket, count: int) -> list[bytes]:
    """Return `count` datagrams that reach a stranger's socket, and what came beyond them."""
    datagrams: list[bytes] = []

    def are_here() -> bool:
        datagrams.extend(received(sock))
        return len(datagrams) >= count

    await until(are_here)
    await turns()
    are_here()
    return datagrams


async def next_datagram(sock: socket.socket) -> tuple[bytes, tuple[Any, ...]]:
    """Return the next datagram that reaches a stranger's socket, and where it came from."""
    async with asyncio.timeout(20):
        while True:
            try:
                return sock.recvfrom(65536)
            except BlockingIOError:
                await asyncio.sleep(0)


@contextmanager
def responding(responder: ProbeResponder, host: str = V4) -> Iterator[Backend]:
    """Run a responder on a free port in the running loop."""
    port = responder.bind(host, 0)
    responder.start(asyncio.get_running_loop())
    try:
        yield Backend(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    finally:
        responder.stop()


@contextmanager
def probing(prober: Prober) -> Iterator[Prober]:
    """Run a prober in the running loop."""
    prober.start(asyncio.get_running_loop())
    try:
        yield prober
    finally:
        prober.stop()


@contextmanager
def running(responder: ProbeResponder, host: str = V4) -> Iterator[tuple[str, int]]:
    """Run a responder and give its socket address."""
    port = responder.bind(host, 0)
    responder.start(asyncio.get_running_loop())
    try:
        yield host, port
    finally:
        responder.stop()


def nonce_of(data: bytes, key: bytes | None = None) -> int:
    """Return the nonce of a question."""
    nonce = parse_question(data, key)
    assert nonce is not None
    return nonce
