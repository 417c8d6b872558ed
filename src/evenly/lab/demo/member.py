"""Keep one place in the fleet filled: a process that ends is followed by another.

The place has its name and its address for as long as the demo runs; processes come and go.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from evenly.errors import ConfigError
from evenly.lab.demo.child import Child, ChildError, Line
from evenly.lab.demo.frames import SLOW_FACTOR, Standing

__all__ = ["Member", "Pace"]

_log = logging.getLogger(__name__)

_READY: Final = ("listening", "ready")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Say how long things take, or may; tests are in a hurry."""

    again_seconds: float = 3.0
    """How long after its end a process is started again that was not asked to end."""
    start_seconds: float = 30.0
    """Python and gRPC are imported within a second, unless a dozen do so at once on a busy
    machine."""
    terminate_seconds: float = 15.0
    """More than a backend takes to drain; one that is stopped would never end."""
    settle_seconds: float = 0.5
    """Between two restarts, so that clients find the new process before the next one leaves."""


@final
class Member:
    """Start a process, again and again, and do things to it.

    `settings` is asked before each start, because they change; `on_line` is told of each report and
    `on_event` of what somebody who watches should know.
    """

    def __init__(
        self,
        name: str,
        program: Sequence[str],
        settings: Callable[[], Mapping[str, object]],
        *,
        address: str = "",
        pace: Pace,
        starting: asyncio.Semaphore,
        on_line: Callable[[str, int, Line], None],
        on_event: Callable[[str], None],
    ) -> None:
        self.name = name
        self.address = address
        self.is_slow = False
        self.is_failing = False
        self.lives = 0
        """How many processes have been started."""
        self.ends = 0
        """How many of them have ended, whatever for."""
        self._program = program
        self._settings = settings
        self._pace = pace
        self._starting = starting
        self._on_line = on_line
        self._on_event = on_event
        self._child: Child | None = None
        self._is_stopped = False
        self._is_leaving = False
        """Whether the process was told to end, politely or not."""
        self._is_ending = False
        """Whether it was asked to, so that the next one need not wait."""
        self._metrics_port: int | None = None
        self._ready = asyncio.Event()
        self._healthy = asyncio.Event()
        self._ended = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the first process and return when it is ready, or raise `ChildError`."""
        self._first = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(self._first), name=f"keep {self.name}")
        await self._first

    def kill(self) -> None:
        """End the process at once, now and without waiting: it cannot know."""
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Leave no process, and start none any more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._first is not None and self._first.done() and not self._first.cancelled():
            self._first.exception()  # Whoever waited for it may have gone.

    # What is done to it.

    def command(self, command: Mapping[str, object]) -> None:
        """Tell the process, if there is one; the next one learns it from its settings.

        These are made just before it is started, and what changes from then on is told to it.
        """
        if self._child is not None:
            self._child.command(command)

    def slow(self, *, is_on: bool) -> None:
        """Make it slower, or as fast as it was; the next process is the same machine."""
        self.is_slow = is_on
        self.command({"do": "slow", "factor": SLOW_FACTOR if is_on else 1.0})

    def fail(self, *, is_on: bool) -> None:
        """Make it fail everything at once, or work again; the next process is the same code."""
        self.is_failing = is_on
        self.command({"do": "fail", "is_on": is_on})

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process; refuse if there is none now, or to end one that ends."""
        is_running = self._child is not None and self._child.is_running
        if number == signal.SIGTERM and self._is_leaving and is_running:
            # A second one would end it at once, and drop the requests that it still works on.
            raise ConfigError(
                f"backend must be one that stays, not {self.name!r}: it is leaving already"
            )
        if self._child is None or not self._child.send_signal(number):
            raise ConfigError(
                f"backend must be one that runs, not {self.name!r}: it is about to start again"
            )
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._is_stopped = number == signal.SIGSTOP
        elif not self._is_leaving:
            self._is_leaving = True
            self._healthy.clear()
            if number == signal.SIGTERM:
                self._is_ending = True
                self._deadline = asyncio.get_running_loop().call_later(
                    self._pace.terminate_seconds, self._insist
                )

    def cont(self) -> None:
        """Let it go on, if it was stopped."""
        if self._is_stopped:
            self.signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Ask the process to end; return when the next one is healthy."""
        while True:
            await self._healthy.wait()
            self._ended.clear()
            try:
                self.signal(signal.SIGTERM)
            except ConfigError:
                # It ends or has ended in this moment: the one to restart is the next.
                self._healthy.clear()
            else:
                break
        await self._ended.wait()
        await self._healthy.wait()

    # What there is to know.

    @property
    def metrics_port(self) -> int | None:
        """Where its process shows its metrics, or the last one did: who looks sees it is away."""
        return self._metrics_port

    def standing(self, host: str) -> Standing:
        """Return what no line of it can tell."""
        child = self._child
        is_running = child is not None and child.is_running
        port = self._metrics_port if is_running else None
        return Standing(
            is_running=is_running,
            is_stopped=self._is_stopped,
            pid=None if child is None else child.pid,
            address=self.address,
            metrics=None if port is None else f"http://{host}:{port}/metrics",
            faults=("slow",) * self.is_slow + ("fail",) * self.is_failing,
        )

    # Its processes.

    async def _keep(self, first: asyncio.Future[None]) -> None:
        while True:
            try:
                await self._live(first)
            except ChildError as error:
                if not first.done():
                    first.set_exception(error)
                    return
                if not self._is_leaving:  # Nobody asked for it.
                    _log.warning("%s", error)
                await self._pause(str(error))

    async def _live(self, first: asyncio.Future[None]) -> None:
        """Run one process from its start to its end, and announce that."""
        self._is_stopped = self._is_leaving = self._is_ending = False
        async with self._starting:
            # Not before it is its turn: what is set may change until then.
            child = self._new_child()
            try:
                await child.start()
                await self._until_ready(child)
            except BaseException:
                await self._end(child)
                raise
        try:
            if self.lives:
                self._on_event(f"{self.name} is back (process {child.pid})")
            self.lives += 1
            if not first.done():
                first.set_result(None)
            code = await child.wait()
        finally:
            self.ends += 1
            await self._end(child)
        await self._announce(child, code)

    def _new_child(self) -> Child:
        child: Child

        def hear(line: Line) -> None:
            self._hear(child, line)

        child = self._child = Child(self.name, self._program, self._settings(), on_line=hear)
        return child

    async def _announce(self, child: Child, code: int) -> None:
        """Say how it ended, and wait, unless it was asked to and did so."""
        why = f"{self.name} has ended ({_ending(code)})"
        # Who was killed has said nothing about that.
        is_crash = code > 0 or (code < 0 and not self._is_leaving)
        if is_crash:
            why += _words(child)
            _log.warning("%s", why)
        if not self._is_ending:
            await self._pause(why)
        elif is_crash:
            self._on_event(why)

    async def _pause(self, why: str) -> None:
        seconds = self._pace.again_seconds
        self._on_event(f"{why}; again in {seconds:g} s")
        await asyncio.sleep(seconds)

    async def _end(self, child: Child) -> None:
        self._ready.clear()
        self._healthy.clear()
        self._ended.set()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        await child.close()

    async def _until_ready(self, child: Child) -> None:
        seconds = self._pace.start_seconds
        waiting = [
            asyncio.ensure_future(self._ready.wait()),
            asyncio.ensure_future(child.wait()),
        ]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if self._ready.is_set():
            return
        if child.is_running:
            raise ChildError(f"{self.name} was not ready after {seconds:g} s")
        how = _ending(child.exit_code)
        raise ChildError(f"{self.name} did not start ({how}){_words(child)}")

    def _hear(self, child: Child, line: dict[str, Any]) -> None:
        if child.pid is None:
            return
        if line.get("is") in _READY:
            self._metrics_port = line.get("metrics_port")
            self._ready.set()
            # What is wrong with it is wrong with the next process, too.
            if self.is_slow:
                self.slow(is_on=True)
            if self.is_failing:
                self.fail(is_on=True)
            return
        if self._is_leaving or line.get("state", "healthy") != "healthy":
            self._healthy.clear()
        else:
            self._healthy.set()
        self._on_line(self.name, child.pid, line)

    def _insist(self) -> None:
        seconds = self._pace.terminate_seconds
        self._on_event(f"{self.name} has not ended within {seconds:g} s: it is killed")
        self.kill()


def _words(child: Child) -> str:
    """Return the last line that it wrote to its standard error: of a traceback, the error."""
    return f": {child.last_words[-1]}" if child.last_words else ""


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"{signal.Signals(-code).name}, −{-code}"
    return f"exit code {code}"
