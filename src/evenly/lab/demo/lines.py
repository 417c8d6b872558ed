"""Talk in lines of JSON: the supervisor to a child's standard input, the child on its output.

A child whose input ends has lost its supervisor, and exits: no process outlives the demo, however
that ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, final

__all__ = ["REPORT_SECONDS", "Lines", "settings"]

REPORT_SECONDS: Final = 0.25

Command = dict[str, Any]
_PR_SET_PDEATHSIG: Final = 1


def settings() -> dict[str, Any]:
    """Return what a child was started with: one JSON object, its only argument."""
    if len(sys.argv) != 2:
        raise SystemExit("evenly demo starts this; try `evenly demo`")
    _die_with_parent()
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


@final
class Lines:
    """Be a child's end: read commands, and write what is reported, at regular intervals."""

    def __init__(
        self, obey: Callable[[Command], None], report: Callable[[], dict[str, Any]]
    ) -> None:
        self._obey = obey
        self._report = report
        self._output = sys.stdout
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        # Whatever else prints must not get between the lines.
        sys.stdout = sys.stderr

    async def start(self) -> None:
        """Read from now on."""
        reader = asyncio.StreamReader(limit=1 << 20)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._reading = asyncio.create_task(self._read(reader))

    def begin_reports(self) -> None:
        """Report from now on."""
        self._tick()

    def stop(self) -> None:
        """Report once more, and then nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._say()

    def write(self, line: dict[str, Any]) -> None:
        """Write one line; without a supervisor there is nothing left to do."""
        try:
            self._output.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._output.flush()
        except OSError:
            _leave()

    def _tick(self) -> None:
        # At multiples of the interval, so that frames of all children cover the same time.
        number = math.floor(self._loop.time() / REPORT_SECONDS + 0.1) + 1
        self._timer = self._loop.call_at(number * REPORT_SECONDS, self._tick)
        self._say()

    def _say(self) -> None:
        self.write({**self._report(), "at": time.monotonic(), "cpu_seconds": time.process_time()})

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._obey(json.loads(line))
        except Exception:  # noqa: BLE001 -- whatever it is, a child that obeys no more is lost
            traceback.print_exc()
        _leave()


def _die_with_parent() -> None:
    """Have the kernel kill this process with its supervisor: one that is stopped reads nothing."""
    supervisor = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # It has died meanwhile.
            _leave()


def _leave() -> None:
    """Exit without more ado: handlers and streams may take their time, and nobody waits."""
    os._exit(0)
