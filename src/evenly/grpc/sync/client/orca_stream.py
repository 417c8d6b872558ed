"""Read what a backend says of its load out of band, in a thread.

gRPC's threaded streams can only be waited for, so each that is read takes a thread.  One is started
only for a stream that is still open after a moment: where it is not offered, it ends at once.
"""

from __future__ import annotations

import threading
from typing import Final, final

import grpc

from evenly.grpc.common.orca_client import ORCA_STREAM, OrcaFollower
from evenly.grpc.sync.background import Background

__all__ = ["OrcaStream"]

# Several round trips.
_REFUSAL_SECONDS: Final = 0.5


@final
class OrcaStream:
    """Be one such stream; made and cancelled on the loop's thread."""

    def __init__(
        self, channel: grpc.Channel, background: Background, follower: OrcaFollower
    ) -> None:
        self._background = background
        self._follower = follower
        self._is_over = threading.Event()
        self._call = channel.unary_stream(ORCA_STREAM)(follower.message)
        self._timer = background.loop.call_later(_REFUSAL_SECONDS, self._start)
        if not self._call.add_callback(self._ended):
            self._ended()

    def cancel(self) -> None:
        """End it."""
        self._timer.cancel()
        self._is_over.set()
        self._call.cancel()

    def _start(self) -> None:
        if not self._is_over.is_set():
            threading.Thread(target=self._read, name="evenly-orca", daemon=True).start()

    # A thread of gRPC's.

    def _ended(self) -> None:
        self._is_over.set()
        self._background.soon(self._follower.ended, self._call.code())

    # A thread of its own.

    def _read(self) -> None:
        try:
            for data in self._call:
                self._background.soon(self._follower.heard, data)
                self._is_over.wait(self._follower.pause_seconds)
        except grpc.RpcError:
            return  # `_ended` is told how.
