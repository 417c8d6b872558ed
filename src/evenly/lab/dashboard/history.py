"""Keep the last frames, and hand each new one to everyone who follows.

Nobody who follows can hold up the fleet or make memory grow: a frame is encoded once for all, and
each subscription keeps the newest few that its reader has not taken yet.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, final

__all__ = ["ENDED", "FRAMES", "History", "Subscription", "encode"]

FRAMES: Final = 240  # Two minutes, at a frame per half second.
# Ten seconds: a tab that is not drawn for that long shows a gap, which is the truth.
_WAITING_MAX: Final = 20
ENDED: Final = b""
"""What stands for the end of the source, after its last frame."""


def encode(value: object) -> bytes:
    """Return JSON in ASCII on one line; raise `ValueError` or `TypeError` for what is none."""
    # NaN is not JSON, though Python writes it: the page could not read the rest of the frame.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


@final
class Subscription:
    """Be one reader's place in the frames; a context manager, at whose end it is given up."""

    def __init__(self, history: History, past: tuple[bytes, ...]) -> None:
        self._past = past
        self._history = history
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_MAX)
        self._changed = asyncio.Event()
        self._is_closed = False

    def take_past(self) -> tuple[bytes, ...]:
        """Return the frames from before, and keep them no longer: nobody needs them twice."""
        past, self._past = self._past, ()
        return past

    async def next(self) -> bytes | None:
        """Return the next frame or `ENDED`, or `None` once it is closed.  Safe to cancel."""
        while not self._waiting:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def put(self, frame: bytes) -> None:
        """Add a frame; the oldest that nobody took goes."""
        self._waiting.append(frame)
        self._changed.set()

    def close(self) -> None:
        """End it, after what is waiting."""
        self._is_closed = True
        self._changed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._history.leave(self)


@final
class History:
    """Be the last frames, as JSON, and those who follow them."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque(maxlen=FRAMES)
        self._subscriptions: dict[Subscription, None] = {}
        self._has_ended = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<History frames={len(self._frames)} subscriptions={self.subscriptions}>"

    @property
    def subscriptions(self) -> int:
        """How many follow now."""
        return len(self._subscriptions)

    def publish(self, frame: Mapping[str, object]) -> None:
        """Keep a frame and hand it out; raise `ValueError` or `TypeError` if it is not JSON."""
        encoded = encode(frame)
        self._frames.append(encoded)
        for subscription in self._subscriptions:
            subscription.put(encoded)

    def subscribe(self) -> Subscription:
        """Return the frames from before, and each from now on."""
        subscription = Subscription(self, tuple(self._frames))
        self._subscriptions[subscription] = None
        if self._has_ended:
            subscription.put(ENDED)
        if self._is_closed:
            subscription.close()
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Hand out nothing more to this one; a second time nothing."""
        self._subscriptions.pop(subscription, None)

    def end(self) -> None:
        """Tell everyone who follows or will follow that no frame comes any more."""
        if not self._has_ended:
            self._has_ended = True
            for subscription in self._subscriptions:
                subscription.put(ENDED)

    def close(self) -> None:
        """End every subscription, and those to come."""
        self._is_closed = True
        for subscription in self._subscriptions:
            subscription.close()
