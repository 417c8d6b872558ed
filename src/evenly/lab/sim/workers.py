"""Run functions in processes of their own that never outlive what waits for them.

Whoever asks keeps its own order and progress; here is how the processes begin and end.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar, final

from evenly.signals.cpu import effective_cores

__all__ = ["Workers", "process_count", "workers"]

P = ParamSpec("P")
T = TypeVar("T")


def process_count(processes: int | None) -> int:
    """Return how many processes to start: as many as asked for, or one per CPU."""
    return processes or math.ceil(effective_cores())


@contextmanager
def workers(processes: int, *, begin: Callable[[], object] | None = None) -> Iterator[Workers]:
    """Give something to submit functions to; `begin` is called first in every process.

    At the end what was submitted is waited for.  If anything is raised, Ctrl-C included, nobody
    waits for results any more, and the processes end at once, whatever they are doing.
    """
    # Not forked: a fork copies the locks that other threads hold, and Python 3.12 warns of it.
    context = multiprocessing.get_context("spawn")
    lifeline, held_end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_be_worker, initargs=(lifeline, begin)
    )
    try:
        yield Workers(pool)
    except BaseException:
        held_end.close()
        raise
    finally:
        pool.shutdown()
        held_end.close()
        lifeline.close()


@final
class Workers:
    """Take functions with their arguments, to be called in another process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return what the result will be in; a process may start for it."""
        # Ctrl-C goes to every process of the terminal, and each worker would print its traceback.
        # They inherit what is blocked here, so that they never listen to it, from the very start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_worker(lifeline: Connection, begin: Callable[[], object] | None) -> None:
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    if begin is not None:
        begin()


def _end_with(lifeline: Connection) -> None:
    """End this process as soon as the other end closes: by intent, or because its process died."""
    lifeline.poll(None)
    os._exit(1)
