"""What a caller streams to a backend, kept for a while so that it can be sent again elsewhere.

gRPC pulls the messages in a thread of its own for each call, and so for each attempt.  What one has
pulled is kept, up to the size that gRPC's own retries keep, until the call is committed; a thread
that still waits for the caller's iterator when its attempt is over leaves what it gets to the next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, final

__all__ = ["RequestStream"]

_REPLAY_MOST_BYTES: Final = 256 * 1024
# What a message costs to keep beyond its bytes: without it, empty ones would be kept without end.
_MESSAGE_BYTES: Final = 64


@final
class RequestStream:
    """Hand one stream of messages to one attempt after another, from any thread.

    There is one reader at a time: `open` ends the one before.
    """

    def __init__(self, source: Iterable[Any], serialize: Callable[[Any], bytes] | None) -> None:
        self._error: BaseException | None = None
        self._source: Iterator[Any] = iter(())
        try:
            self._source = iter(source)
        except TypeError as error:
            self._error = error  # gRPC's thread gets it, and makes a status of it.
        self._serialize = serialize
        self._changed = threading.Condition()
        # Messages that may have to be sent again, the first of them with this number.
        self._kept: deque[bytes] = deque()
        self._first = 0
        self._kept_bytes = 0
        self._is_committed = False
        self.is_pulling = False
        """Whether the caller's iterator is being asked."""
        self._has_ended = False
        self._reader: _Reader | None = None

    @property
    def can_replay(self) -> bool:
        """Whether everything that was pulled is still here."""
        return not self._is_committed

    @property
    def has_failed(self) -> bool:
        """Whether the caller's iterator has raised: no backend's fault."""
        return self._error is not None

    def open(self) -> Iterator[bytes]:
        """Return the messages from the start, for a new attempt."""
        with self._changed:
            self._reader = reader = _Reader(self)
            self._changed.notify_all()
        return reader

    def detach(self) -> None:
        """End the reader: its attempt is over.  Another one may be opened."""
        with self._changed:
            self._reader = None
            self._changed.notify_all()

    def commit(self) -> None:
        """Stop keeping messages: the call will not be sent again."""
        with self._changed:
            self._is_committed = True
            self._drop_read()

    def take(self, reader: _Reader) -> bytes:
        """Return the reader's next message; raise `StopIteration` at the end."""
        while True:
            with self._changed:
                while True:
                    if self._reader is not reader:
                        raise StopIteration
                    place = reader.position - self._first
                    if place < len(self._kept):
                        reader.position += 1
                        message = self._kept[place]
                        if self._is_committed:
                            self._drop_read()
                        return message
                    if self._error is not None:
                        raise self._error
                    if self._has_ended:
                        raise StopIteration
                    if not self.is_pulling:
                        self.is_pulling = True
                        break
                    self._changed.wait()
            self._pull()

    def _pull(self) -> None:
        """Ask the caller's iterator for one message, which may take long; without the lock."""
        message: bytes | None = None
        error: BaseException | None = None
        try:
            pulled = next(self._source)
            message = pulled if self._serialize is None else self._serialize(pulled)
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 -- whatever the caller's iterator raises
            error = raised
        with self._changed:
            self.is_pulling = False
            if message is not None:
                self._keep(message)
            else:
                self._error = error
                self._has_ended = error is None
            self._changed.notify_all()

    def _keep(self, message: bytes) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message) + _MESSAGE_BYTES
        # Between two attempts everything is still to be sent, and stays.
        if self._kept_bytes > _REPLAY_MOST_BYTES and self._reader is not None:
            self._is_committed = True
            self._drop_read()

    def _drop_read(self) -> None:
        read = self._first if self._reader is None else self._reader.position
        while self._first < read and self._kept:
            self._kept.popleft()
            self._first += 1


@final
class _Reader(Iterator[bytes]):
    __slots__ = ("_stream", "position")

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self.position = 0

    def __next__(self) -> bytes:
        return self._stream.take(self)
