"""Tell whoever asked about a channel's connectivity, as `grpc.Channel.subscribe` promises.

`grpc.channel_ready_future` lives by it.  The state is looked at every 20 ms while anybody listens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import final

import grpc

from evenly.grpc.sync.background import Background

__all__ = ["Subscribers"]

_LOGGER = logging.getLogger("evenly.grpc")
_POLL_SECONDS = 0.02

Callback = Callable[[grpc.ChannelConnectivity], None]


@final
class Subscribers:
    """Hold the callbacks of one channel; any thread may add and remove them."""

    def __init__(self, state: Callable[[], grpc.ChannelConnectivity]) -> None:
        self._state = state
        # Reentrant: a callback that is let go of may take others with it, and remove them here.
        self._lock = threading.RLock()
        self._told: list[tuple[Callback, list[grpc.ChannelConnectivity]]] = []
        self._background: Background | None = None
        self._is_telling = False

    def add(self, callback: Callback, background: Background) -> None:
        """Tell `callback` the state, and again whenever it changes."""
        with self._lock:
            self._told.append((callback, []))
            is_first = self._background is None
            self._background = background
        if is_first:
            background.soon(self._look)

    def remove(self, callback: Callback) -> None:
        """Tell it no more."""
        with self._lock:
            self._told = [entry for entry in self._told if entry[0] != callback]

    def clear(self) -> None:
        """Tell nobody any more."""
        with self._lock:
            self._told = []

    def _look(self) -> None:
        """Look on the loop's thread, and tell in another: callbacks may take their time."""
        state = self._state()
        with self._lock:
            background = self._background
            if not self._told or background is None:
                self._background = None
                return
            is_news = any(told[-1:] != [state] for _, told in self._told)
            if is_news and not self._is_telling:
                self._is_telling = True
                threading.Thread(target=self._tell, name="evenly-tell", daemon=True).start()
        background.loop.call_later(_POLL_SECONDS, self._look)

    def _tell(self) -> None:
        while True:
            state = self._state()
            with self._lock:
                due = [entry for entry in self._told if entry[1][-1:] != [state]]
                if not due:
                    self._is_telling = False
                    return
            for callback, told in due:
                told[:] = [state]
                try:
                    callback(state)
                except Exception:
                    _LOGGER.exception("a callback about connectivity raised")
