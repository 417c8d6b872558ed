"""Run a threaded server from its start to its clean end: signals, warm-up, lame duck, drain.

The same five steps as in `evenly.grpc.serve` (SRE book, chapter 20, "A Robust Approach to Unhealthy
Tasks: Lame Duck State"), from the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, final

from evenly.errors import UsageError
from evenly.grpc.sync.server.server import Server
from evenly.runtime.lifecycle import (
    SIGNALS,
    Echoes,
    check_grace,
    log_second_signal,
    restored_signals,
)

__all__ = ["serve"]

# Where another thread gets a signal, Python handles it when the main thread does something next.
_SLICE_SECONDS: Final = 0.05


@final
class _Event(enum.Enum):
    SIGNAL = enum.auto()
    DRAINED = enum.auto()
    STOPPED = enum.auto()


class _Interrupted(BaseException):
    """Break off the warm-up, as a KeyboardInterrupt would."""


@final
class _Signals:
    """Put signals into a queue; during the warm-up, raise."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self.should_raise = False
        self._echoes = Echoes(clock=time.monotonic)

    def next(self) -> _Event:
        """Wait for something to happen."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=_SLICE_SECONDS)

    def caught(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- Python's
        """Handle one, unless it is an echo of the first."""
        if self._echoes.is_echo():
            return
        if self.should_raise:
            self.should_raise = False
            raise _Interrupted
        self.events.put(_Event.SIGNAL)


def serve(
    server: Server,
    *,
    warm_up: Callable[[], None] | None = None,
    grace_seconds: float = 5.0,
) -> None:
    """Start `server`, serve until SIGTERM or SIGINT, drain and stop.

    It listens at once as a lame duck, runs `warm_up`, and then asks clients to send.  At the first
    signal it becomes a lame duck again, serves until nobody sends any more (or `drain_seconds` of
    its config have passed), and gives what is left `grace_seconds`.  At a second signal, more than
    a second later, or at one during the warm-up, it stops at once.  If `warm_up` raises, the server
    is stopped first.

    Outside of the main thread there are no signals: somebody else calls `server.stop`.
    """
    check_grace(grace_seconds)
    if not isinstance(server, Server):
        raise UsageError("serve() takes what evenly.grpc.sync.server() returns")
    signals = _Signals()
    with _caught_by(signals):
        grace: float | None = None  # at once
        try:
            _watch(server, signals)
            server.start_as_lame_duck()
            if _is_warm(warm_up, signals):
                server.announce_healthy()
                if signals.next() is _Event.SIGNAL and _drains(server, signals):
                    grace = grace_seconds
        finally:
            _stop(server, grace, signals)


def _is_warm(warm_up: Callable[[], None] | None, signals: _Signals) -> bool:
    """Warm up, and return whether that was not interrupted."""
    if warm_up is None:
        return True
    try:
        signals.should_raise = True
        warm_up()
    except _Interrupted:
        return False
    finally:
        signals.should_raise = False
    return True


def _drains(server: Server, signals: _Signals) -> bool:
    """Become a lame duck, and return whether it was drained before anything else happened."""
    server.enter_lame_duck()
    drained = asyncio.run_coroutine_threadsafe(server.runtime.drained(), server.background.loop)
    drained.add_done_callback(lambda _: signals.events.put(_Event.DRAINED))
    try:
        event = signals.next()
        if event is _Event.SIGNAL:
            log_second_signal(server.runtime.active)
        return event is _Event.DRAINED
    finally:
        drained.cancel()


def _watch(server: Server, signals: _Signals) -> None:
    """Say when somebody else has stopped the server."""

    def wait() -> None:
        server.wait_for_termination()
        signals.events.put(_Event.STOPPED)

    threading.Thread(target=wait, name="evenly-serve", daemon=True).start()


def _stop(server: Server, grace: float | None, signals: _Signals) -> None:
    stopped = server.stop(grace)
    while not stopped.is_set():
        if signals.next() is _Event.SIGNAL:
            if grace is not None:
                log_second_signal(server.runtime.active)
            grace = None
            server.stop(grace)


@contextmanager
def _caught_by(signals: _Signals) -> Iterator[None]:
    """Catch signals, and give back the handlers that there were."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with restored_signals():
        for number in SIGNALS:
            signal.signal(number, signals.caught)
        yield
