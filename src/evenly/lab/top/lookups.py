"""Look up names in threads, none of which can hold up another."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, final

__all__ = ["LOOKUPS_MAX", "Lookups"]

T = TypeVar("T")

LOOKUPS_MAX = 600
"""Names that are looked up at once: those of all targets, and some that hang from before."""


@final
class Lookups(ThreadPoolExecutor):
    """Look up each name in a thread of its own, for which nobody waits.

    A resolver that is away holds a thread for many seconds.  A loop's own executor has few of them,
    so that six bad names would block all good ones, and waits for them at the end.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # Never used: it starts its threads in `submit`.
        self._lock = threading.Lock()
        self._under_way: dict[object, Future[Any]] = {}

    @property
    def under_way(self) -> int:
        """How many threads there are."""
        return len(self._under_way)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401
        """Run it in a thread, or return the answer of one that is at it already."""
        key = (fn, args)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # So that who gives up does not take it from others.
        with self._lock:
            before = self._under_way.get(key)
            if before is not None:
                return before
            if len(self._under_way) >= LOOKUPS_MAX:
                text = f"more than {LOOKUPS_MAX} names are being looked up"
                future.set_exception(OSError(errno.EAGAIN, text))
                return future
            self._under_way[key] = future

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 -- it is raised where it was asked for
                self._forget(key)
                future.set_exception(error)
            else:
                self._forget(key)
                future.set_result(result)

        try:
            threading.Thread(target=run, name="evenly-top-lookup", daemon=True).start()
        except RuntimeError:  # The system gives us no more of them.
            self._forget(key)
            raise
        return future

    def _forget(self, key: object) -> None:
        with self._lock:
            del self._under_way[key]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Leave the threads to end by themselves."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
