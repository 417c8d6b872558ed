"""Who calls a façade: on an event loop that is the loop's thread and no other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from evenly.runtime.backend import BackendRuntime


def threads_that_call(runtime: BackendRuntime, *verbs: str) -> set[int]:
    """Note from now on which threads call these verbs of the façade."""
    threads: set[int] = set()

    def listening(inner: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            threads.add(threading.get_ident())
            return inner(*args, **named)

        return call

    for verb in verbs:
        setattr(runtime.task, verb, listening(getattr(runtime.task, verb)))
    return threads
