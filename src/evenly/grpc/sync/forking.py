"""Let a process fork while channels are open: what must stand still then, and be left alone after.

gRPC makes itself ready for a fork only if no thread is inside it, and skips that otherwise; the
child may crash then.  It looks after threads of its own.  Ours are the background loop's, which
waits here meanwhile, and those that close connections, which do so one at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, final

from evenly.grpc.sync import background

__all__ = ["CLOSING", "forked"]

# What takes longer, a busy loop or a close, does not keep a process from forking.
_PAUSE_SECONDS: Final = 1.0


@final
class Closing:
    """Be held while a connection is closed; nobody closes one while the process forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait for whoever closes one now."""
        self._is_held = self._lock.acquire(timeout=_PAUSE_SECONDS)

    def after_fork(self) -> None:
        """Go on, in the process that has forked."""
        if self._is_held:
            self._is_held = False
            self._lock.release()

    def forget(self) -> None:
        """Start afresh in the child: who held it is not there."""
        self._lock = threading.Lock()
        self._is_held = False


CLOSING: Final = Closing()
_children: list[Callable[[], None]] = []


def forked(function: Callable[[], None]) -> None:
    """Call `function` in each child of this process, before anything else runs there."""
    _children.append(function)


def _before() -> None:
    CLOSING.before_fork()
    background.pause(_PAUSE_SECONDS)


def _in_parent() -> None:
    background.resume()
    CLOSING.after_fork()


def _in_child() -> None:
    CLOSING.forget()
    background.forget()
    for function in _children:
        function()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
