"""What a caller streams to a backend, kept for a while so that it can be sent again elsewhere.

gRPC pulls the first message of a request stream before it knows whether the backend will take the
call.  A rejected attempt would lose it, so what was pulled is kept, up to the size that gRPC's own
retries keep, until the call is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Final, final

__all__ = ["RequestStream"]

_REPLAY_MOST_BYTES: Final = 256 * 1024
# What a message costs to keep beyond its bytes: without it, empty ones would be kept without end.
_MESSAGE_BYTES: Final = 64


@final
class RequestStream:
    """Hand one stream of messages to one attempt after another.

    There is one reader at a time: `open` ends the one before.  `source` is an iterable of messages,
    or `None` where the caller writes them one by one.  With `is_kept=False` messages are handed on
    as they are, and once the first was pulled there is no other attempt.
    """

    def __init__(
        self,
        source: AsyncIterable[Any] | Iterable[Any] | None,
        serialize: Callable[[Any], bytes] | None,
        *,
        is_kept: bool = True,
    ) -> None:
        self.is_written = source is None
        """Whether the caller writes, instead of giving an iterable."""
        self._serialize = serialize if is_kept else None
        self._is_kept = is_kept
        self._async_source: AsyncIterator[Any] | None = None
        self._source: Any = None
        if isinstance(source, AsyncIterable):
            self._async_source = aiter(source)
        elif source is not None:
            self._source = iter(source)
        # Messages that may have to be sent again, the first of them with this number.
        self._kept: deque[Any] = deque()
        self._first = 0
        self._kept_bytes = 0
        self._is_committed = False
        self._has_ended = False
        self._error: BaseException | None = None
        self._reader: _Reader | None = None
        self._changed: asyncio.Future[None] | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._taken: asyncio.Future[None] | None = None

    @property
    def can_replay(self) -> bool:
        """Whether everything that was pulled is still here."""
        return not self._is_committed

    def open(self) -> AsyncIterator[Any]:
        """Return the messages from the start, for a new attempt."""
        self._reader = reader = _Reader(self)
        self._wake()
        return reader

    def commit(self) -> None:
        """Stop keeping messages: the call will not be sent again."""
        self._is_committed = True
        read = self._first if self._reader is None else self._reader.position
        while self._first < read and self._kept:
            self._kept.popleft()
            self._first += 1

    def close(self) -> None:
        """End: nobody reads any more."""
        self._reader = None
        if self._pulling is not None:
            self._pulling.cancel()
        self._wake()
        self._wrote()

    # The caller writes.

    async def write(self, message: object) -> None:
        """Add a message, and wait until it was handed to gRPC, which asks for another then."""
        self._keep(message)
        if self._taken is None:
            self._taken = asyncio.get_running_loop().create_future()
        self._wake()
        await asyncio.shield(self._taken)

    def done_writing(self) -> None:
        """End the stream after what was written."""
        self._has_ended = True
        self._wake()

    @property
    def is_done_writing(self) -> bool:
        """Whether the caller has said that it is done."""
        return self._has_ended

    # The reader takes.

    async def take(self, reader: _Reader) -> Any:
        """Return the reader's next message; raise `StopAsyncIteration` at the end."""
        while self._reader is reader:
            place = reader.position - self._first
            if place < len(self._kept):
                reader.position += 1
                message = self._kept[place]
                if self._is_committed or not self._is_kept:
                    self.commit()
                return message
            self._wrote()
            if self._error is not None:
                raise self._error
            if self._has_ended:
                break
            await self._more()
        raise StopAsyncIteration

    async def _more(self) -> None:
        if self._source is not None:
            self._pull_now()
            return
        if self._async_source is not None and self._pulling is None:
            # A task of its own, because the reader may end while it waits.
            self._pulling = asyncio.get_running_loop().create_task(self._pull())
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _pull_now(self) -> None:
        try:
            self._keep(next(self._source))
        except StopIteration:
            self._has_ended = True

    async def _pull(self) -> None:
        source = self._async_source
        try:
            if source is not None:
                self._keep(await anext(source))
        except StopAsyncIteration:
            self._has_ended = True
        except asyncio.CancelledError:
            self._has_ended = True
            raise
        except BaseException as error:  # noqa: BLE001 -- whatever the caller's source raises
            self._error = error
        finally:
            self._pulling = None
            self._wake()

    def _keep(self, message: Any) -> None:
        if self._serialize is not None:
            message = self._serialize(message)
        self._kept.append(message)
        if self._is_kept and not self._is_committed:
            size = len(message) if isinstance(message, bytes) else 0
            self._kept_bytes += size + _MESSAGE_BYTES
            if self._kept_bytes > _REPLAY_MOST_BYTES:
                self.commit()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _wrote(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)


@final
class _Reader(AsyncIterator[Any]):
    __slots__ = ("_stream", "position")

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self.position = 0

    async def __anext__(self) -> Any:
        return await self._stream.take(self)
