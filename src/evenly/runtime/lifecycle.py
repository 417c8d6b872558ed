"""Take a backend from its start to its clean end: signals, warm-up, lame duck, drain.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State", the clean shutdown:
the scheduler sends SIGTERM; the task enters lame duck and asks its clients to send elsewhere;
requests that are under way, or come nevertheless, are served; as responses flow back, the active
ones fall to zero; the task exits.

Whatever the transport, the order is this; a transport says how it starts and how it stops.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias, final

from evenly.core import check
from evenly.core.clock import Clock

__all__ = [
    "SAME_SIGNAL_SECONDS",
    "SIGNALS",
    "Echoes",
    "Interruptions",
    "Life",
    "WarmUp",
    "check_grace",
    "is_first",
    "live",
    "log_second_signal",
    "restored_signals",
    "run_warm_up",
    "signals_to",
]

_LOGGER = logging.getLogger("evenly.runtime.lifecycle")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SAME_SIGNAL_SECONDS: Final = 1.0
"""A signal so soon after the first is the same one: GNU `timeout`, `make` in a terminal and some
supervisors signal a process and then its group, within milliseconds.  Who is impatient is slower.
"""
_CANCEL_SECONDS: Final = 1.0

WarmUp: TypeAlias = Callable[[], Awaitable[None] | None]
"""What is run before clients are asked to send: on the loop if it is asynchronous, otherwise in a
thread, so that the loop goes on serving."""

Interruptions: TypeAlias = asyncio.Queue[None]
"""One item for each signal: the first asks to leave, the second to be quick about it."""


class Life(Protocol):
    """Say what one transport does at each step."""

    @property
    def active(self) -> int:
        """Requests that are under way."""

    async def start(self) -> None:
        """Listen, as a lame duck, or begin to; a signal does not interrupt this."""

    async def warm_up(self) -> None:
        """Get ready; cancelled at a signal."""

    def announce_healthy(self) -> None:
        """Ask clients to send."""

    async def stopped(self) -> None:
        """Return when somebody else has stopped the server; cancelled at a signal."""

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere, for good; a second time does nothing."""

    async def drained(self) -> None:
        """Return when nobody sends any more, or time is up; cancelled at a signal."""

    async def stop(self, grace: float | None) -> None:
        """Stop, and give what is left so many seconds; `None` is at once.

        Called with `None` while an earlier call waits, it makes that one return.
        """

    def close(self) -> None:
        """Leave nothing behind, after `stop`."""


def check_grace(grace_seconds: float) -> None:
    """Raise `ConfigError` unless this can be a grace."""
    check.number("grace_seconds", grace_seconds, 0.0, 86_400.0)


async def live(life: Life, interruptions: Interruptions, *, grace_seconds: float) -> None:
    """Start, serve until the first interruption, drain and stop.

    At the second interruption, or at one before it is warm, it stops at once.  What a step raises
    is raised when the server has been stopped.
    """
    grace: float | None = None  # at once
    try:
        await life.start()
        if await is_first(life.warm_up(), interruptions):
            life.announce_healthy()
            _LOGGER.info("ready: clients are asked to send")
            if await is_first(life.stopped(), interruptions):
                return
            life.enter_lame_duck()
            _LOGGER.info("lame duck: clients are asked to send elsewhere, and served until they do")
            if await is_first(life.drained(), interruptions):
                _LOGGER.info("drained: what is left has %g s", grace_seconds)
                grace = grace_seconds
            else:
                log_second_signal(life.active)
    finally:
        await _stop(life, interruptions, grace)


async def _stop(life: Life, interruptions: Interruptions, grace: float | None) -> None:
    try:
        life.enter_lame_duck()
        stopping = asyncio.ensure_future(life.stop(grace))
        # Not cancelled at a signal: the second call shortens the first.
        if not await is_first(asyncio.shield(stopping), interruptions):
            if grace is not None:
                log_second_signal(life.active)
            await life.stop(None)
        await stopping
    finally:
        life.close()


def log_second_signal(active: int) -> None:
    """Say what a second signal does to the requests that are under way."""
    are = "request is" if active == 1 else "requests are"
    _LOGGER.warning("second signal: stopping at once, %d %s cut off", active, are)


async def is_first(wanted: Awaitable[object], interruptions: Interruptions) -> bool:
    """Wait for `wanted` or an interruption and cancel the other; raise what `wanted` raises.

    An interruption that comes while `wanted` ends is left for the next step.
    """
    wish = asyncio.ensure_future(wanted)
    interruption = asyncio.ensure_future(interruptions.get())
    is_interrupted = False
    try:
        await asyncio.wait({wish, interruption}, return_when=asyncio.FIRST_COMPLETED)
        is_interrupted = not wish.done()
        if is_interrupted:
            return False
        wish.result()
        return True
    finally:
        wish.cancel()
        interruption.cancel()
        # No longer than so: a warm-up may swallow its cancellation.
        await asyncio.wait({wish, interruption}, timeout=_CANCEL_SECONDS)
        # It may have come in the same turn, or while we waited here.
        if not is_interrupted and interruption.done() and not interruption.cancelled():
            interruptions.put_nowait(None)


async def run_warm_up(warm_up: WarmUp | None) -> None:
    """Run it to its end; cancelled, leave a plain function to its thread."""
    if warm_up is None:
        return
    if inspect.iscoroutinefunction(warm_up):
        await warm_up()
        return
    answer = await _in_a_thread(warm_up)
    if inspect.isawaitable(answer):  # A lambda around a coroutine.
        await answer


async def _in_a_thread(function: Callable[[], object]) -> object:
    # Of its own, and a daemon: an executor's would keep the process alive after a signal.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def settle(answer: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(answer)
        else:
            done.set_exception(error)

    def call() -> None:
        answer: object = None
        error: BaseException | None = None
        try:
            answer = function()
        except BaseException as raised:  # noqa: BLE001 -- it is raised where somebody waits
            error = raised
        # After a signal nobody waits, and the loop may be closed.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=call, name="evenly-warm-up", daemon=True).start()
    return await done


@final
class Echoes:
    """Tell a second signal from the first one that comes twice, by `SAME_SIGNAL_SECONDS`."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._first_at: float | None = None

    def is_echo(self) -> bool:
        """Take note of a signal; return whether it is to be ignored."""
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
            return False
        return now - self._first_at < SAME_SIGNAL_SECONDS


@contextmanager
def signals_to(interruptions: Interruptions, *, clock: Clock = time.monotonic) -> Iterator[None]:
    """Put signals into a queue, without echoes, and give back the handlers that there were."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may handle signals: somebody else stops this one.
        return
    loop = asyncio.get_running_loop()
    echoes = Echoes(clock=clock)

    def heard() -> None:
        if not echoes.is_echo():
            interruptions.put_nowait(None)

    with restored_signals():
        for number in SIGNALS:
            loop.add_signal_handler(number, heard)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


@contextmanager
def restored_signals() -> Iterator[None]:
    """Give back at the end the handlers that there were; on the main thread."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # `None` is a handler that was not installed from Python, and cannot be given back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
