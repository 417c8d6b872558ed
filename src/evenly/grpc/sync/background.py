"""One event loop in a thread of its own, for whatever threads of this process have no time for.

Discovery, timers, probes by UDP and the state of connections are looked after here, for all
channels and servers together; a request that finds its connection never comes here.  The thread
starts with its first user and ends with its last.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import ParamSpec, TypeVar, final

__all__ = ["Background", "forget", "hold", "pause", "release", "resume"]

P = ParamSpec("P")
R = TypeVar("R")

# What is left to do on the way out takes milliseconds, but a name may be being looked up.
_END_SECONDS = 5.0
_EXIT_SECONDS = 1.0


@final
class Background:
    """Run an event loop in a daemon thread until `end`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="evenly", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[..., object], *arguments: object) -> bool:
        """Call `function` on the loop's thread; return False if that has ended."""
        try:
            # In an empty context: the one that is current may belong to a request.
            self.loop.call_soon_threadsafe(function, *arguments, context=Context())
        except RuntimeError:
            return False
        return True

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the loop's thread, and return what it returns.

        Where that has ended, because the process is going, call it here: nobody else does.
        """
        if self.is_here or self.loop.is_closed():
            return function(*args, **kwargs)
        future: Future[R] = Future()

        def call() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 -- it is raised where it was asked for
                future.set_exception(error)

        if not self.soon(call):
            call()
        return future.result()

    def stand_still(self, seconds: float, until: threading.Event) -> None:
        """Let the loop's thread do nothing until `until`; wait so long for that to begin."""
        is_still = threading.Event()

        def stand() -> None:
            is_still.set()
            until.wait()

        if not self.is_here and self.soon(stand):
            is_still.wait(seconds)

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Stop the loop, and wait for its thread to be gone; not longer than this."""
        self.soon(self.loop.stop)
        if not self.is_here:
            self._thread.join(seconds)

    def _run(self) -> None:
        loop = self.loop
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(_leave(loop))
            loop.close()


async def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Leave nothing behind in a loop that is about to be closed."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


@final
class _Shared:
    """Know the one that runs, and how many need it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start afresh, in a forked child too: its thread is not there, its lock may be held."""
        self.may_go_on = threading.Event()
        self.lock = threading.Lock()
        self.current: Background | None = None
        self.users = 0


_shared = _Shared()


def hold() -> Background:
    """Return the one that runs, or start it; `release` it once."""
    with _shared.lock:
        if _shared.current is None:
            _shared.current = Background()
        _shared.users += 1
        return _shared.current


def release() -> None:
    """Need it no more; the last one ends it."""
    with _shared.lock:
        _shared.users -= 1
        if _shared.users:
            return
        background, _shared.current = _shared.current, None
    if background is not None:
        background.end()


def pause(seconds: float) -> None:
    """Let the one that runs stand still until `resume`: the process is about to fork."""
    running = _shared.current
    if running is not None:
        running.stand_still(seconds, _shared.may_go_on)


def resume() -> None:
    """Let it go on."""
    _shared.may_go_on.set()
    _shared.may_go_on = threading.Event()


def forget() -> None:
    """Start afresh in a forked child."""
    _shared.forget()


def _exit() -> None:
    # A thread that runs while the interpreter goes down finds everything half gone.
    with contextlib.suppress(RuntimeError):
        if _shared.current is not None:
            _shared.current.end(_EXIT_SECONDS)


atexit.register(_exit)
