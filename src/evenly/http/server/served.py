"""Be one request while the application serves it: what it sends and receives passes through here.

`send` adds our headers to the response's first message, and both notice how the request ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from time import monotonic
from typing import Final, final

from evenly.core.backend_task import Admission
from evenly.core.request import Outcome, Rejection
from evenly.http.server.answer import Answers, outcome_of_status
from evenly.http.server.asgi import Message, Receive, Scope, Send
from evenly.runtime.answer import gave_up, is_refusal

__all__ = ["Served"]

_OK: Final = Outcome.OK
# What ends a response besides a body of which there is no more.
_OTHER_BODIES: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})


@final
class Served(Admission):
    """Stand between an application and its server for one request, and be its scope.

    One object is the request's admission too, because one is made per request.
    """

    __slots__ = (
        "answers",
        "ended",
        "has_left",
        "held",
        "receive_from",
        "scope",
        "send_to",
        "status",
        "to_evenly",
        "was_degraded",
    )

    # Set by `Middleware.__call__`: a constructor is one call more, once per request.
    answers: Answers
    scope: Scope
    receive_from: Receive
    send_to: Send
    to_evenly: bool
    has_left: bool
    """Whether the client is known to have."""
    was_degraded: bool
    status: int
    """With which status the response began; 0 before."""
    ended: Outcome | None
    """How the request has ended, once the response is complete."""
    held: list[Message] | None
    """A response that is not sent yet, if there is one; see `send`."""

    def should_degrade(self, level: float) -> bool:
        """Return whether a cheaper answer is wanted now."""
        return self.answers.should_degrade(level)

    async def receive(self) -> Message:
        """Receive for the application, and notice that the client has left."""
        message = await self.receive_from()
        # After a response servers say the same: there is nothing more to receive.
        if message["type"] == "http.disconnect" and self.ended is None:
            self.has_left = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Send for the application, with our headers in front of the body.

        Starlette answers an exception with a 500 of its own before it lets it out.  Where that is a
        rejection from below, the 500 is held back until the application has ended: if the rejection
        is let out indeed, there will be another answer.

        No coroutine itself, because that is one more to step for each message.
        """
        if self.held is not None:
            self.held.append(message)
            return _nothing()
        send_to = self.send_to  # See `Middleware.__call__`.
        kind = message["type"]
        if kind != "http.response.start":
            if (
                (kind == "http.response.body" or kind in _OTHER_BODIES)
                and self.status  # Without a beginning the server raises, and answers 500.
                and not message.get("more_body", False)
                and not self.has_left
            ):
                self.ended = ended = _OK if self.status < 500 else outcome_of_status(self.status)
                at = self.deadline_at
                if at is not None and ended is _OK and monotonic() >= at:
                    self.ended = Outcome.TIMEOUT
            return send_to(message)
        status = message["status"]
        if status == 500 and is_refusal(sys.exception()):
            self.held = [message]
            return _nothing()
        self.status = status
        answers = self.answers
        if self.to_evenly and status < 400 and (peer := self.scope.get("client")) and peer[1]:
            # Port 0 is what a proxy said, of whomever.
            news_for = answers.news_for
            entries = news_for(peer)
            if not entries and not (self.was_degraded or answers.is_lame_duck):
                return send_to(message)
        else:
            entries = answers.load(self.to_evenly)
        headers = [*(message.get("headers") or ()), *entries]
        if self.was_degraded or answers.is_lame_duck:
            answers.mark(
                headers, self.scope, to_evenly=self.to_evenly, is_degraded=self.was_degraded
            )
        # Not in place: some applications have one message for all responses.
        return send_to({**message, "headers": headers})

    async def send_watched(self, message: Message) -> None:
        """Send where the server says that a client has left, by an `OSError` (ASGI 2.4)."""
        try:
            await self.send(message)
        except OSError:
            self.has_left = True
            self.ended = None
            raise

    async def release(self) -> None:
        """Send what was held back."""
        held, self.held = self.held, None
        for message in held or ():
            await self.send(message)

    async def refuse(self, rejection: Rejection, error: BaseException | None = None) -> None:
        """Answer instead of the application: it has not begun, or let the refusal `error` out."""
        await self.answers.refuse(
            rejection,
            self.request,
            self.scope,
            self.send_to,
            to_evenly=self.to_evenly,
            error=error,
        )

    def outcome(self, error: BaseException | None = None) -> Outcome:
        """Return how the request ended, when the application has returned or raised `error`."""
        if self.ended is not None:
            return self.ended  # Whatever was done after the response.
        if self.has_left or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return gave_up(self, self.deadline_at)
        return Outcome.ERROR  # The server answers 500, or cuts the response off.


async def _nothing() -> None:
    """Be what a message that is held back is awaited by."""
