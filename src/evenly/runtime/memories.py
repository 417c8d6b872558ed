"""What client tasks of this process have learnt of overload, kept from one loop to the next.

A script that calls `asyncio.run` once per request has a new client task each time.  Were its
throttle and its retry budget new as well, each request would have the retries that a client task
may make before it has sent anything, and none would ever be throttled.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final, final

from evenly.core.client_task import ClientTaskMemory

__all__ = ["MEMORIES", "Memories"]

# Targets may be invented; the memory left first is forgotten first.
_MAX_MEMORIES: Final = 64


@final
class Memories:
    """Keep what client tasks leave, for the next one of the same key.

    Whoever takes a memory has it alone, since a façade belongs to one thread: of two client tasks
    that live at the same time the second gets none, and leaves a second one.
    """

    def __init__(self, max_memories: int = _MAX_MEMORIES) -> None:
        self._lock = threading.Lock()
        self._left: deque[tuple[object, ClientTaskMemory]] = deque(maxlen=max_memories)

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, key: object, memory: ClientTaskMemory) -> None:
        """Keep a memory; whoever leaves it does not use it any more."""
        with self._lock:
            self._left.append((key, memory))

    def take(self, key: object) -> ClientTaskMemory | None:
        """Return what was left last under this key, to whoever asks first."""
        with self._lock:
            for position in reversed(range(len(self._left))):
                known, memory = self._left[position]
                if known == key:
                    del self._left[position]
                    return memory
        return None

    def forget(self) -> None:
        """Start afresh, as in a forked child: it shares no luck with its parent."""
        self._lock = threading.Lock()  # Somebody may have held it.
        self._left.clear()


MEMORIES: Final = Memories()
os.register_at_fork(after_in_child=MEMORIES.forget)
