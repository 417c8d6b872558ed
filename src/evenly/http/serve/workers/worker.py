"""Be one worker: serve on the parent's sockets, and report for all.

A worker that is started while its backend warms up accepts at once, as a lame duck does.  One that
takes the place of a dead one warms up before it accepts: the backend is healthy, and clients send.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, final

from evenly.core.report import LoadReport
from evenly.http.serve.listening import Listening
from evenly.http.serve.loading import StartError
from evenly.http.serve.room import Door
from evenly.http.serve.serve import loop_factory
from evenly.http.serve.uvicorn_server import ServeOptions, UvicornServer
from evenly.http.serve.workers.board import Board, Desk, open_memory
from evenly.http.serve.workers.process import STOP_AT_ONCE
from evenly.runtime.lifecycle import SIGNALS, Interruptions, live

__all__ = ["FAILED_TO_START", "Briefing", "main"]

FAILED_TO_START: Final = 3  # uvicorn's own
_INTERVAL_SECONDS: Final = 0.05
_BUSY_INTERVAL_SECONDS: Final = 0.02
_JITTER_RATIO: Final = 0.1
_ORPHAN_SECONDS: Final = 5.0


class Briefing(NamedTuple):
    """Be what a parent tells all its workers at their start."""

    options: ServeOptions
    workers: int
    memory: int
    sockets: tuple[int, ...]
    name: str


def main() -> None:
    """Run a worker whose index and descriptors are in the arguments; end the process."""
    for number in SIGNALS:
        # Not SIG_IGN, which processes that the application starts would inherit.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    index, briefing, control = (int(text) for text in sys.argv[1:])
    sys.argv[1:] = []
    sys.exit(_run(index, _read(briefing), socket.socket(fileno=control)))


def _read(descriptor: int) -> Briefing:
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        # At a place, because all workers have one file with one position.
        found: Briefing = pickle.loads(os.pread(file.fileno(), size, 0))  # noqa: S301 -- ours
        return found


def _run(index: int, briefing: Briefing, control: socket.socket) -> int:
    sockets = [Door(fileno=descriptor) for descriptor in briefing.sockets]
    for sock in (control, *sockets):
        sock.set_inheritable(False)  # Processes that the application starts need none of them.
    os.set_inheritable(briefing.memory, False)
    orders = _Orders(control, grace_seconds=briefing.options.grace_seconds)
    orders.start()
    memory = open_memory(briefing.memory, briefing.workers)
    os.close(briefing.memory)
    board = Board(memory, briefing.workers, clock=time.monotonic)

    async def serve() -> None:
        interruptions: Interruptions = asyncio.Queue()
        orders.deliver_to(interruptions)
        life = _Worker(briefing.options, Listening(sockets, briefing.name, None), board, index)
        orders.on_end = life.orphaned
        # The parent says for all what happens to them; after uvicorn has set up logging.
        logging.getLogger("evenly.runtime.lifecycle").setLevel(logging.ERROR)
        await live(life, interruptions, grace_seconds=briefing.options.grace_seconds)

    try:
        loop = str(briefing.options.uvicorn.get("loop", "auto"))
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(serve())
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- the parent says it, once for all
        text = str(error) if isinstance(error, StartError) else f"{type(error).__name__}: {error}"
        control.send(text.encode()[:10_000])
        return FAILED_TO_START
    return 0


def _nothing() -> None:
    pass


@final
class _Orders(threading.Thread):
    """Read what the parent orders, also while the loop is blocked or not there yet."""

    def __init__(self, control: socket.socket, *, grace_seconds: float) -> None:
        super().__init__(name="evenly-orders", daemon=True)
        self._control = control
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interruptions: Interruptions | None = None
        self.on_end: Callable[[], None] = _nothing

    def deliver_to(self, interruptions: Interruptions) -> None:
        """Put an item into the queue for each order, from the running loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._interruptions = interruptions

    def run(self) -> None:
        """Read until the end, which is the parent's."""
        while order := self._read():
            # At once is what the second interruption means.
            self._interrupt(2 if order == STOP_AT_ONCE else 1)
        # The address must be free for whoever takes the parent's place.
        self.on_end()
        self._interrupt(1)
        time.sleep(self._grace_seconds + _ORPHAN_SECONDS)
        os._exit(1)

    def _read(self) -> bytes:
        try:
            return self._control.recv(1)
        except OSError:
            return b""

    def _interrupt(self, times: int) -> None:
        with self._lock:
            loop, interruptions = self._loop, self._interruptions
        if loop is None or interruptions is None:
            os._exit(0)  # It has not begun.
        try:
            for _ in range(times):
                loop.call_soon_threadsafe(interruptions.put_nowait, None)
        except RuntimeError:  # The loop is closed: it is ending anyway.
            pass


@final
class _Worker(UvicornServer):
    """Serve in a worker: the parent has the probes, and decides when it is time to leave."""

    def __init__(
        self, options: ServeOptions, listening: Listening, board: Board, index: int
    ) -> None:
        head = board.head()
        is_needed = head is not None and not head.backend.lame_duck
        super().__init__(options, listening, is_warm_first=is_needed)
        self._rng = random.Random()
        self._timer: asyncio.TimerHandle | None = None
        self._desk = Desk(
            board,
            index,
            pid=os.getpid(),
            is_drained=self.runtime.task.is_drained,
            clock=time.monotonic,
        )
        self._is_idle = False
        self.runtime.combine = self._combine

    async def start(self) -> None:
        """Begin, and say so."""
        await super().start()
        self._look()

    def announce_healthy(self) -> None:
        """Say that this worker is warm; the parent says when the backend is healthy."""
        self._desk.is_ready = True
        self._follow()

    async def drained(self) -> None:
        """Return: the parent has waited for all."""

    def orphaned(self) -> None:
        """Say for the dead parent that the backend is leaving; from any thread."""
        self._desk.is_orphan = True

    def close(self) -> None:
        """Leave nothing behind."""
        self._is_idle = False  # A late report must not begin it anew.
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _bind_probes(self) -> None:
        """Leave probes to the parent."""

    def _listens(self, url: str) -> None:  # noqa: ARG002 -- the parent says it
        self._desk.is_listening = True
        self._follow()

    async def _warmed_up(self) -> None:
        await super()._warmed_up()
        self._follow()  # Before it accepts, if it takes the place of another.

    def _combine(self, own: LoadReport) -> LoadReport:
        # A response reports the request that it ends as active: soon that is no longer true.
        if self._is_idle and own.active:
            self._schedule(is_idle=False)
        return self._desk.combine(own)

    def _look(self) -> None:
        self._schedule(is_idle=not self.runtime.active)
        self._follow()

    def _schedule(self, *, is_idle: bool) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._is_idle = is_idle
        # While it serves, others want to know sooner: a fact lives for 0.1 s.
        seconds = _INTERVAL_SECONDS if is_idle else _BUSY_INTERVAL_SECONDS
        seconds *= 1.0 + self._rng.uniform(-_JITTER_RATIO, _JITTER_RATIO)
        # In an empty context: the one that is current may belong to a request.
        self._timer = loop.call_later(seconds, self._look, context=contextvars.Context())

    def _follow(self) -> None:
        """Be in the state in which the parent is, and write the slot."""
        head = self._desk.look_again()
        if head is not None and head.is_leaving:
            self.runtime.enter_lame_duck()
        elif head is not None and not head.backend.lame_duck:
            self.runtime.announce_healthy()
        self.runtime.report()
