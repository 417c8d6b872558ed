"""Start, hurt and stop backend processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_START_SECONDS = 60.0


# Of 200,000 ports that were let go at once, the kernel gave 19 a second time right away.
_kept: list[socket.socket] = []


def free_port() -> int:
    """Return a port that is nobody else's while this process lives; servers restart on it.

    It is bound, so that the kernel gives it to nobody, and does not listen: whoever says
    SO_REUSEADDR, as every server does, can listen there.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    port: int = kept.getsockname()[1]
    return port


class BackendProcess:
    """Be one backend: a process at a port, and another at the same port after a restart."""

    def __init__(
        self, *, host: str = "127.0.0.1", prefix: Sequence[str] = (), **options: object
    ) -> None:
        self.port = free_port()
        self.address = f"{host}:{self.port}"
        self._prefix = prefix
        """What its command is run by, `ip netns exec` say."""
        self._options = {"host": host, **options}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = await asyncio.create_subprocess_exec(
            *self._prefix,
            sys.executable,
            "-m",
            "tests.suites.transports.backend_main",
            json.dumps({"port": self.port, **self._options}),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            line = await self._process.stdout.readline()
        assert line == b"ready\n", f"backend {self.address} said {line!r}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait until it is gone; return its exit status."""
        assert self._process is not None
        async with asyncio.timeout(_START_SECONDS):
            return await self._process.wait()

    async def restart(self) -> None:
        """Deploy: ask it to leave, wait, and start its successor."""
        self.signal(signal.SIGTERM)
        assert await self.wait() == 0
        await self.start()

    async def kill(self) -> None:
        """End it without asking, if it lives."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Backends:
    """Hold several backends for the time of an `async with`."""

    def __init__(self, count: int, **options: Any) -> None:
        self.all = [BackendProcess(**options) for _ in range(count)]

    async def __aenter__(self) -> Backends:
        try:
            await asyncio.gather(*(backend.start() for backend in self.all))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(backend.kill() for backend in self.all))

    @property
    def addresses(self) -> list[str]:
        return [backend.address for backend in self.all]
