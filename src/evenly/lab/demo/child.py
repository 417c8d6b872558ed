"""Run one child process: commands go in as lines of JSON, and what it says comes out as such.

A child has a session of its own, so that a Ctrl-C in the terminal reaches the supervisor only,
which then ends its children in its own order.  A child whose input ends exits by itself; but one
that is stopped (SIGSTOP) sees no end of anything.  So `close` continues it and kills it, and always
waits for its end: nothing is left behind, not even a zombie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from evenly.errors import EvenlyError, UsageError

__all__ = ["MOST_LINE_BYTES", "Child", "ChildError", "LineSplitter", "python_module"]

MOST_LINE_BYTES: Final = 1 << 18
"""A longer line is ignored.  The longest that a child of ours writes has some thousand bytes."""

_READ_BYTES: Final = 1 << 16
_LAST_WORDS: Final = 5
# What a process wrote before its end is read within no time; only somebody who inherited its pipes
# could keep them open.
_EOF_SECONDS: Final = 1.0

Line = dict[str, Any]


class ChildError(EvenlyError):
    """Report that a child process did not start or did not do what it was asked for."""


def python_module(module: str) -> tuple[str, ...]:
    """Return the command that runs a module with this Python."""
    # -P: the folder in which somebody tries the demo may have a file of any name.
    return (sys.executable, "-P", "-m", module)


@final
class LineSplitter:
    """Cut a stream of bytes into lines; drop those that are too long, however they arrive."""

    def __init__(self, most_bytes: int = MOST_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._is_skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their ends."""
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            line, is_skipped = self._rest + part, self._is_skipping
            self._rest, self._is_skipping = b"", False
            if is_skipped or len(line) > self._most_bytes:
                self.dropped += 1
            else:
                lines.append(line)
        self._keep(rest)
        return lines

    def _keep(self, rest: bytes) -> None:
        if self._is_skipping:
            return
        self._rest += rest
        if len(self._rest) > self._most_bytes:
            self._rest, self._is_skipping = b"", True


@final
class Child:
    """Run a program, talk to it in lines of JSON, and see it end.

    `on_line` gets each line that is an object; anything else is logged and ignored.
    """

    def __init__(
        self,
        name: str,
        program: Sequence[str],
        settings: Mapping[str, object],
        *,
        on_line: Callable[[Line], None] | None = None,
    ) -> None:
        self.name = name
        self.latest: Line | None = None
        """The last line it has written."""
        self.last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        """The last lines of its standard error: why it did not start, for one."""
        self._command = [*program, json.dumps(settings)]
        self._on_line = on_line
        self._log = logging.getLogger(f"{__name__}.{name}")
        self._process: asyncio.subprocess.Process | None = None
        self._early: list[bytes] = []
        """Commands to a process that does not exist yet."""
        self._reading: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the process; whoever is cancelled in here leaves none behind."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )
        try:
            # Not cancelled half-way: the process may exist before asyncio says so.
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                self._process = await starting
            await self.close()
            raise
        except OSError as error:
            raise ChildError(f"{self.name} could not be started: {error}") from error
        output, errors = self._process.stdout, self._process.stderr
        if output is None or errors is None or self._process.stdin is None:
            raise UsageError("all three pipes were asked for")
        self._process.stdin.writelines(self._early)
        self._early.clear()
        self._reading = [
            asyncio.create_task(self._read(output, self._hear), name=f"{self.name} lines"),
            asyncio.create_task(self._read(errors, self._hear_error), name=f"{self.name} errors"),
        ]

    @property
    def pid(self) -> int | None:
        """Its process id, also after its end; `None` before it has started."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended: −9 for a SIGKILL; `None` while it runs."""
        return None if self._process is None else self._process.returncode

    @property
    def is_running(self) -> bool:
        """Whether it has started and not ended."""
        return self._process is not None and self._process.returncode is None

    def command(self, command: Mapping[str, object]) -> None:
        """Send one command, now or when there is a process; one that has ended hears nothing."""
        line = json.dumps(command).encode() + b"\n"
        if self._process is None:
            self._early.append(line)
            return
        stdin = self._process.stdin
        if stdin is not None and self.is_running and not stdin.is_closing():
            stdin.write(line)

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal; return whether there was a process to send it to."""
        if self._process is None or self._process.returncode is not None:
            return False
        try:
            # Not Process.send_signal, which looks whether it has ended and so may take its exit
            # code away from who waits for it (gh-87744).
            os.kill(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def wait(self) -> int:
        """Return its exit code when it has ended and all that it has written has been read."""
        if self._process is None:
            raise UsageError(f"{self.name} has not been started")
        code = await self._process.wait()
        if self._reading:
            await asyncio.wait(self._reading, timeout=_EOF_SECONDS)
        return code

    async def close(self) -> None:
        """End it now, whatever its state, and wait until it is gone."""
        if self._process is None:
            return
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGKILL)
        await self.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _read(self, stream: asyncio.StreamReader, hear: Callable[[bytes], None]) -> None:
        splitter = LineSplitter()
        while data := await stream.read(_READ_BYTES):
            dropped = splitter.dropped
            for line in splitter.feed(data):
                hear(line)
            if splitter.dropped > dropped:
                self._log.warning("%s wrote a line that is too long", self.name)

    def _hear(self, data: bytes) -> None:
        try:
            line = json.loads(data)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            self._log.warning("%s wrote what is no JSON object: %.200r", self.name, data)
            return
        self.latest = line
        if self._on_line is not None:
            self._on_line(line)

    def _hear_error(self, data: bytes) -> None:
        text = data.decode(errors="replace").strip()
        if text:
            self.last_words.append(text)
            self._log.info("%s: %s", self.name, text)
