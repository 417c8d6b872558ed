"""One request: a loop around the core's steps.

Everything that is decided (which backend, whether to wait, whether to try again, how the request
ends) is decided by `Exchange`.  Here is I/O, and the translation of ends into exceptions.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, final

import evenly
from evenly.core.attempt import Ask, Attempt
from evenly.core.exchange import Connect, Ended, Exchange, Park, Step
from evenly.core.request import Outcome, Reason, Rejection
from evenly.wire.level import line_steps, luck_steps
from examples.lines.link import Link
from examples.lines.wire import OUTCOMES, Message

if TYPE_CHECKING:
    from examples.lines.client import Client

__all__ = ["Call", "ConnectionLost", "Failed"]


class Failed(evenly.EvenlyError):
    """Report that the backend answered with an error."""


class ConnectionLost(evenly.EvenlyError):
    """Report that the request was sent and no answer came: the backend may have done the work."""


@final
class Call:
    """One request: do what its exchange says, until it has ended."""

    def __init__(self, client: Client, exchange: Exchange, do: object) -> None:
        self._client = client
        self._runtime = client.runtime
        self._exchange = exchange
        self._do = do
        self._answer: Message = {}
        """What came of the last attempt that was sent."""
        self._backend = ""

    async def run(self) -> object:
        """Send it, and return its answer or raise."""
        exchange, runtime = self._exchange, self._runtime
        try:
            async with asyncio.timeout_at(exchange.request.deadline_at):
                step = runtime.begin(exchange)
                while not isinstance(step, Ended):
                    step = await self._take(step)
                    runtime.follow_up()
        except TimeoutError:
            step = exchange.expire()
        finally:
            exchange.cancel()  # If it is over, nothing happens.
            runtime.follow_up()
        return self._end(step)

    async def _take(self, step: Attempt | Ask | Park) -> Step:
        if not isinstance(step, Attempt):
            going_on: asyncio.Future[Step] = self._runtime.loop.create_future()
            self._runtime.hold(self._exchange, step, partial(_go_on, going_on))
            return await going_on
        address = step.backend.address
        if address not in self._client.links:
            self._runtime.follow_up()  # It is opened on demand.
        link = self._client.links.get(address)
        if link is None:
            return self._exchange.not_sent()
        if not link.is_open:
            return await self._connect(link)
        return self._exchange.ended(await self._send(step, link))

    async def _connect(self, link: Link) -> Step:
        """Wait for the connection, but no longer than need be where another stands."""
        wait = self._exchange.connect()
        while True:
            try:
                async with asyncio.timeout_at(wait.until):
                    await link.settled.wait()
            except TimeoutError:
                step = self._exchange.waited()
                if not isinstance(step, Connect):
                    return step
                wait = step
            else:
                break
        return self._exchange.connected() if link.is_open else self._exchange.not_sent()

    async def _send(self, attempt: Attempt, link: Link) -> Outcome:
        """Send it and wait for the answer; return how the attempt ended."""
        request = attempt.request
        message: Message = {
            "do": self._do,
            "attempt": attempt.number,
            "criticality": request.criticality.name,
            "customer": request.customer,
        }
        if request.luck is not None:
            message["luck"] = luck_steps(request.luck)
        if attempt.line:
            message["line"] = line_steps(attempt.line)
        if request.deadline_at is not None:
            seconds_left = request.deadline_at - self._runtime.loop.time()
            message["deadline_ms"] = max(0, round(1000.0 * seconds_left))
        self._backend = link.backend.address
        answer = await link.ask(self._client.new_number(), message)
        self._answer = {} if answer is None else answer
        if answer is None:
            return Outcome.LOST
        told = answer.get("outcome")
        return OUTCOMES.get(told, Outcome.ERROR) if isinstance(told, str) else Outcome.ERROR

    def _end(self, end: Ended) -> object:
        """Return the answer, or raise what kept it from coming."""
        if end.outcome is Outcome.OK:
            return self._answer.get("answer")
        if end.rejection is not None:
            raise self._refused(end.rejection)
        raise self._failed(end.outcome)

    def _refused(self, rejection: Rejection) -> Exception:
        text = f"{rejection.text}; {self._client.name} (local)"
        if rejection.reason is Reason.EXPIRED:
            return TimeoutError(text)
        kind = evenly.Throttled if rejection.reason is Reason.THROTTLED else evenly.NoBackend
        return kind(text, retryable=rejection.retryable)

    def _failed(self, outcome: Outcome | None) -> Exception:
        text = f"{self._backend}: {self._answer.get('error', 'no answer')}"
        match outcome:
            case Outcome.OVERLOADED | Outcome.DONT_RETRY:
                return evenly.Overloaded(text, retryable=outcome is Outcome.OVERLOADED)
            case Outcome.OUT_OF_QUOTA:
                return evenly.QuotaExceeded(text)
            case Outcome.LOST:
                return ConnectionLost(text)
            case Outcome.TIMEOUT:
                return TimeoutError(text)
            case _:
                return Failed(text)


def _go_on(going_on: asyncio.Future[Step], step: Step) -> None:
    if not going_on.done():  # Else its caller is being cancelled, and gives it up.
        going_on.set_result(step)
