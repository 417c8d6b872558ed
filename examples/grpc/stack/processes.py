"""Start the stack's layers as processes on this machine, read what they log, and stop them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, final

ROOT: Final = Path(__file__).parents[3]
_QUIET_SECONDS: Final = 0.3
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0


@final
class Stack:
    """Hold one frontend, one A, one B and two DB frontends for the time of an `async with`."""

    def __init__(self, *, throttle: str = "responsive", is_plain: bool = False) -> None:
        self._throttle = throttle
        self._is_plain = is_plain
        self._directory = tempfile.TemporaryDirectory()
        self._processes: list[tuple[str, asyncio.subprocess.Process]] = []
        self._readers: list[asyncio.Task[None]] = []
        self.frontend = ""
        """Where the frontend listens."""
        self.lines: list[str] = []
        """What all layers have logged."""
        self.arrivals: Counter[str] = Counter()
        """How many requests have reached each layer, refused ones included."""
        self.exit_statuses: dict[str, int] = {}
        """Of each layer's processes the worst, when they have been stopped."""

    async def __aenter__(self) -> Stack:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self._stop(layer, process) for layer, process in self._processes))
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._directory.cleanup()

    def set_disks(self, *utilizations: float) -> None:
        """Set how busy the disks of the DB frontends are."""
        for number, utilization in enumerate(utilizations):
            new = self._disk(number).with_suffix(".new")
            new.write_text(str(utilization))
            new.replace(self._disk(number))  # at once: nobody reads half of it

    async def logged(self) -> None:
        """Wait until everything that was logged so far has been read."""
        seen = -1
        while seen != len(self.lines):
            seen = len(self.lines)
            await asyncio.sleep(_QUIET_SECONDS)

    def _disk(self, number: int) -> Path:
        return Path(self._directory.name) / f"disk-{number}"

    async def _start(self) -> None:
        if self._is_plain:
            below = await self._start_layer("db-frontend")
            for layer in ("b", "a", "frontend"):
                below = await self._start_layer(layer, "--below", f"ipv4:{below}")
        else:
            self.set_disks(0.0, 0.0)
            addresses = await asyncio.gather(
                *(
                    self._start_layer("db-frontend", "--disk", str(self._disk(number)))
                    for number in range(2)
                )
            )
            below = ",".join(addresses)
            for layer in ("b", "a", "frontend"):
                below = await self._start_layer(
                    layer, "--below", f"static:{below}", "--throttle", self._throttle
                )
        self.frontend = below

    async def _start_layer(self, layer: str, *options: str) -> str:
        """Start a process; return where it listens, which it says first."""
        program = "plain" if self._is_plain else "layer"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"examples.grpc.stack.{program}",
            "--layer",
            layer,
            *options,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes.append((layer, process))
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"{layer} did not start: see above")
        self._readers.append(asyncio.create_task(self._read(layer, process.stdout)))
        return line.decode().split()[-1]

    async def _read(self, layer: str, log: asyncio.StreamReader) -> None:
        async for line in log:
            text = line.decode().rstrip()
            self.lines.append(text)
            what = text.split(maxsplit=2)[-1]
            is_refused = layer == "db-frontend" and what.startswith("refused")
            if is_refused or what.startswith(("Show", "Buy")):
                self.arrivals[layer] += 1

    async def _stop(self, layer: str, process: asyncio.subprocess.Process) -> None:
        """Ask a process to leave, as a deploy does: SIGTERM."""
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        status = abs(process.returncode or 0)
        self.exit_statuses[layer] = max(status, self.exit_statuses.get(layer, 0))
