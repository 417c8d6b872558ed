"""Be the parent of several workers: it binds, starts, watches, answers probes and decides to leave.

It serves no request and never imports the application.  Its own `BackendRuntime` has the state,
the boot, the port for probes and the notices; what it reports besides is the workers' sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import pickle
import random
import time
from collections.abc import Callable
from typing import Any, Final, final

from evenly.core.report import LoadReport
from evenly.errors import UsageError
from evenly.http.serve.listening import Listening
from evenly.http.serve.loading import StartError
from evenly.http.serve.uvicorn_server import ServeOptions, uvicorn_config
from evenly.http.serve.workers.board import Board, make_memory, open_memory
from evenly.http.serve.workers.process import STOP, STOP_AT_ONCE, WorkerProcess, describe_exit
from evenly.http.serve.workers.slots import Head, Slot
from evenly.http.serve.workers.unnamed import unnamed_file
from evenly.http.serve.workers.worker import FAILED_TO_START, Briefing
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import default_task

__all__ = ["EARLY_ENDS_MOST", "Parent", "restart_seconds"]

EARLY_ENDS_MOST: Final = 4
"""A worker that ended so often before all were warm will again: then the start fails."""

_LOGGER = logging.getLogger("evenly.http")
_POLL_SECONDS: Final = 0.05
_FRESH_SECONDS: Final = 1.0
_AT_ONCE_SECONDS: Final = 2.0
# For the end of the application's lifespan, after the grace: a worker that is stuck never comes.
_END_SECONDS: Final = 10.0
_LONG_LIFE_SECONDS: Final = 60.0
_FIRST_SECONDS: Final = 0.5
_MOST_SECONDS: Final = 30.0
_JITTER_RATIO: Final = 0.2


def restart_seconds(short_lives: int) -> float:
    """Return how long to wait before a worker is started again, which lived so briefly so often.

    The first time not at all; then 0.5 s, twice as long each time, at most 30 s.
    """
    if short_lives <= 1:
        return 0.0
    return float(min(_MOST_SECONDS, _FIRST_SECONDS * 2.0 ** min(short_lives - 2, 16)))


@final
class Parent:
    """Do with several workers what `evenly.runtime.lifecycle` asks for."""

    def __init__(
        self,
        options: ServeOptions,
        listening: Listening,
        workers: int,
        *,
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        # Refuses what is wrong before there are processes, and logs as they will.
        config = uvicorn_config(options.app, options.uvicorn, options.limits)
        self.runtime = BackendRuntime(options.config)
        self.runtime.combine = self._combine
        self._listening = listening
        self._on_listening = on_listening
        self._is_tls = config.is_ssl
        self._memory = make_memory(workers)
        self._board = Board(open_memory(self._memory, workers), workers, clock=time.monotonic)
        sockets = tuple(sock.fileno() for sock in listening.sockets)
        briefing = Briefing(_named(options), workers, self._memory, sockets, listening.name)
        pickled = _pickled(briefing)
        self._briefing = unnamed_file("briefing")
        os.write(self._briefing, pickled)
        self._inherited = (*sockets, self._memory, self._briefing)
        self._workers: list[WorkerProcess | None] = [None] * workers
        self._keepers: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] | None = None
        self._rng = random.Random()
        self._is_announced = False
        self._leaving_at: float | None = None
        self._drain_seconds = (self.runtime.config.task or default_task()).drain_seconds

    # The steps.

    @property
    def active(self) -> int:
        """Requests that are under way in all workers."""
        return self._board.total().active

    async def start(self) -> None:
        """Start the workers, and answer probes."""
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        self.runtime.start(loop)
        for host, port in self._listening.addresses():
            self.runtime.bind_probe(host, port)
        self._publish()
        for index in range(len(self._workers)):
            self._keepers.append(asyncio.ensure_future(self._keep(index)))

    async def warm_up(self) -> None:
        """Wait until one worker listens, and then until all are warm."""
        await self._until(lambda: any(slot and slot.is_listening for slot in self._slots()))
        if self._on_listening is not None:
            self._on_listening(self._listening.url(is_tls=self._is_tls))
        await self._until(lambda: all(slot and slot.is_ready for slot in self._slots()))

    def announce_healthy(self) -> None:
        """Ask clients to send."""
        self._is_announced = True
        self.runtime.announce_healthy()
        self._publish()

    async def stopped(self) -> None:
        """Wait: nobody else stops it."""
        assert self._failure is not None  # noqa: S101 -- it has been started
        await asyncio.shield(self._failure)

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere, and let the workers say so."""
        if self._leaving_at is None:
            self._leaving_at = time.monotonic()
        self.runtime.enter_lame_duck()
        self._publish()

    async def drained(self) -> None:
        """Return when no worker has anything left to do, all at the same time, or time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self.runtime.drained()
                while not self._is_drained():
                    await asyncio.sleep(_POLL_SECONDS)

    async def stop(self, grace: float | None) -> None:
        """Stop the workers; they know the grace."""
        self._listening.close()
        for worker in self._living():
            worker.order(STOP_AT_ONCE if grace is None else STOP)
        waiting = [asyncio.shield(worker.exited) for worker in self._living()]
        if not waiting:
            return
        seconds = _AT_ONCE_SECONDS if grace is None else grace + _END_SECONDS
        await asyncio.wait(waiting, timeout=seconds)
        for worker in self._living():
            _LOGGER.warning("process %d did not end in %g s, and is killed", worker.pid, seconds)
            worker.kill()
        await asyncio.wait(waiting)

    def close(self) -> None:
        """Leave nothing behind."""
        for keeper in self._keepers:
            keeper.cancel()
        for worker in self._living():
            worker.kill()
        if self._failure is not None and self._failure.done() and not self._failure.cancelled():
            self._failure.exception()
        self._listening.close()
        self.runtime.stop()
        for descriptor in (self._memory, self._briefing):
            os.close(descriptor)

    # The workers.

    async def _keep(self, index: int) -> None:
        """Start a worker, and another when it has died, until it is time to leave."""
        short_lives = early_ends = 0
        while not self._is_leaving():
            began_at = time.monotonic()
            why, status = await self._life_of(index)
            is_wanted = status == 0
            if self._is_leaving():
                return
            if not self._is_announced:
                # Who says why it cannot start will say it again; who was killed may not be.
                early_ends += 1
                if status > 0 or early_ends >= EARLY_ENDS_MOST:
                    self._fail(StartError(why))
                    return
            lived_seconds = time.monotonic() - began_at
            is_long = is_wanted or lived_seconds >= _LONG_LIFE_SECONDS
            short_lives = 0 if is_long else short_lives + 1
            jitter = self._rng.uniform(-_JITTER_RATIO, _JITTER_RATIO)
            seconds = restart_seconds(short_lives) * (1.0 + jitter)
            _LOGGER.log(
                logging.INFO if is_wanted else logging.WARNING,
                "worker %d has ended after %.1f s, and is started again in %.1f s: %s",
                index,
                lived_seconds,
                seconds,
                why,
            )
            await asyncio.sleep(seconds)

    async def _life_of(self, index: int) -> tuple[str, int]:
        """Run one worker to its end; return why it ended, and its exit status."""
        try:
            worker = WorkerProcess((index, self._briefing), self._inherited)
        except OSError as error:  # Too many processes, no memory, ...
            return f"it cannot be started: {error}", FAILED_TO_START
        self._workers[index] = worker
        try:
            status = await asyncio.shield(worker.exited)
        finally:
            if worker.exited.done():
                self._workers[index] = None
                self._board.clear_slot(index)
        words = worker.last_words()
        return words or f"process {worker.pid} ended {describe_exit(status)}", status

    def _is_leaving(self) -> bool:
        return self._leaving_at is not None

    def _fail(self, error: StartError) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _living(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker and not worker.exited.done()]

    async def _until(self, is_so: Callable[[], bool]) -> None:
        assert self._failure is not None  # noqa: S101 -- it has been started
        while not is_so():
            await asyncio.wait({self._failure}, timeout=_POLL_SECONDS)
            if self._failure.done():
                self._failure.result()

    # The memory.

    def _slots(self) -> list[Slot | None]:
        return [self._board.slot(index) for index in range(len(self._workers))]

    def _is_drained(self) -> bool:
        """Return whether all that live have said lately that they may exit."""
        since = time.monotonic() - _FRESH_SECONDS
        for index, worker in enumerate(self._workers):
            if worker is None or worker.exited.done():
                continue
            slot = self._board.slot(index)
            # One without a slot has not begun to listen.
            if slot is not None and not (slot.is_drained and slot.written_at >= since):
                return False
        return True

    def _publish(self) -> None:
        self.runtime.report()

    def _combine(self, own: LoadReport) -> LoadReport:
        self._board.write_head(Head(own, self._is_leaving()))
        return self._board.total().report(own)


def _named(options: ServeOptions) -> ServeOptions:
    """Return the options with the warm-up by name: a worker has to find it."""
    warm_up: Any = options.warm_up
    if warm_up is None or isinstance(warm_up, str):
        return options
    module = getattr(warm_up, "__module__", None)
    name = getattr(warm_up, "__qualname__", "<")
    if module in {None, "__main__"} or "<" in name:
        raise UsageError(
            f"workers need a warm_up that they can import, such as 'main:warm_up', not {warm_up!r}"
        )
    return dataclasses.replace(options, warm_up=f"{module}:{name}")


def _pickled(briefing: Briefing) -> bytes:
    try:
        return pickle.dumps(briefing)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"options for workers must be plain values: {error}") from error
