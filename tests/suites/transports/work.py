"""What every backend process does, whatever it speaks."""

from __future__ import annotations

import asyncio
import sys
import time


def burn(cpu_seconds: float) -> None:
    """Use so much CPU, as a handler that computes does."""
    until = time.thread_time() + cpu_seconds
    while time.thread_time() < until:
        sum(range(200))


class ToldToFail(Exception):
    """Say that the backend was told to fail every request."""


class Work:
    """Wait, compute, or fail at once."""

    def __init__(
        self, *, cpu_seconds: float, wait_seconds: float, block_seconds: float = 0.0
    ) -> None:
        self.is_failing = False
        self._is_blocking = False
        self._block_seconds = block_seconds
        self._cpu_seconds = cpu_seconds
        self._wait_seconds = wait_seconds

    async def do(self) -> None:
        """Do what one request asks for."""
        if self.is_failing:
            raise ToldToFail("told to fail")
        if self._is_blocking:
            self._is_blocking = False
            time.sleep(self._block_seconds)  # That is the fault.
        if self._wait_seconds:
            await asyncio.sleep(self._wait_seconds)
        if self._cpu_seconds:
            burn(self._cpu_seconds)

    def block(self) -> None:
        """Have the next request block the event loop."""
        self._is_blocking = True

    def fail(self) -> None:
        """Fail every request from now on."""
        self.is_failing = True


async def say_ready() -> None:
    """Tell the test that this backend serves."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
