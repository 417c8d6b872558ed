"""The calling side: connections that are opened when told to, and a loop around the core's steps.

Everything that is decided (which backend, whether to wait, whether to try again, how a request
ends) is decided by `Exchange`.  Here is I/O, and the translation of ends into exceptions.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Self, final

import evenly
from evenly.context import outgoing_request
from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.exchange import Connect, Ended, Exchange, Park, Step
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason
from evenly.discovery import address as addresses
from evenly.discovery.target import Discovery
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig
from examples.lines.wire import LINE_MAX_BYTES, OUTCOMES, Message, receive, send

__all__ = ["Client", "ConnectionLost", "Failed"]


class Failed(evenly.EvenlyError):
    """Report that the backend answered with an error."""


class ConnectionLost(evenly.EvenlyError):
    """Report that the request was sent and no answer came: the backend may have done the work."""


@final
class Link:
    """One connection to one backend, from the order to connect until it is gone."""

    def __init__(self, client: Client, backend: Backend) -> None:
        self.backend = backend
        self.is_open = False
        self.settled = asyncio.Event()
        """Set when it is known whether it can be had."""
        self._client = client
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[Message | None]] = {}
        self._is_retired = False
        # In an empty context: the one that is current may belong to a request.
        self.task = asyncio.get_running_loop().create_task(self._live(), context=Context())

    async def ask(self, number: int, message: Message) -> Message | None:
        """Send a request and return its answer, or `None` if the connection broke."""
        coming: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = coming
        self.say({"id": number, **message})
        try:
            return await coming
        except asyncio.CancelledError:
            self.say({"cancel": number})
            raise
        finally:
            self._answers.pop(number, None)
            if self._is_retired and not self._answers:
                self.task.cancel()

    def say(self, message: Message) -> None:
        """Send what has no answer of its own."""
        if self.is_open and self._writer is not None:
            send(self._writer, message)

    def retire(self) -> None:
        """Take nothing new, and close when what is under way has ended."""
        self._is_retired = True
        if not self._answers:
            self.task.cancel()

    async def _live(self) -> None:
        event = ConnectionEvent.REFUSED
        try:
            async with asyncio.timeout(self._client.runtime.config.connect_seconds):
                reader = await self._open()
            event = ConnectionEvent.LOST
            while (message := await receive(reader)) is not None:
                self._heard(message)
        except (OSError, ConnectionLost):
            pass  # A TimeoutError is an OSError.
        finally:
            self.is_open = False
            self.settled.set()
            if self._writer is not None:
                self._writer.transport.abort()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_result(None)
            self._client.link_ended(self, event)

    async def _open(self) -> asyncio.StreamReader:
        """Connect and wait for the greeting: a kernel accepts for a process that is stopped."""
        host, port = addresses.split(self.backend.address, "address")
        reader, self._writer = await asyncio.open_connection(host, port, limit=LINE_MAX_BYTES)
        greeting = await receive(reader)
        if greeting is None:
            raise ConnectionLost
        self._client.runtime.heard_load(self.backend, greeting.get("load"))
        self.is_open = True
        self.settled.set()
        self._client.link_opened(self)
        return reader

    def _heard(self, message: Message) -> None:
        self._client.runtime.heard_load(self.backend, message.get("load"))
        number = message.get("id")
        answer = self._answers.get(number) if type(number) is int else None
        if answer is None:
            self._client.runtime.follow_up()  # It was said unasked, or to somebody who has left.
        elif not answer.done():
            answer.set_result(message)


@final
class Client:
    """Send requests to the backends of a service.

    async with Client("dns:///greeter.prod:7000") as client:
        answer = await client.call({"greet": "world"}, timeout_seconds=1.0)
    """

    def __init__(
        self,
        target: str | Discovery,
        *,
        config: ClientConfig | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        config = ClientConfig() if config is None else config
        self.name = target if isinstance(target, str) else type(target).__name__
        self.runtime = ClientRuntime(target, config, observer=observer)
        self.links: dict[str, Link] = {}
        self._all: set[Link] = set()
        self._numbers = 0

    async def __aenter__(self) -> Self:
        self.runtime.start(asyncio.get_running_loop(), self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End what waits for a backend, and break the connections."""
        self.runtime.stop()
        self.links.clear()
        tasks = [link.task for link in self._all]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.runtime.stopped()

    async def call(
        self,
        do: object,
        *,
        timeout_seconds: float | None = None,
        idempotent: bool = False,
        wait_for_ready: bool = False,
    ) -> object:
        """Send a request and return its answer.

        Raises an `evenly.RejectedError` where it was refused, here or by a backend; `Failed`,
        `ConnectionLost` or `TimeoutError`.
        """
        now = asyncio.get_running_loop().time()
        request = outgoing_request(now, timeout_seconds, idempotent=idempotent)
        exchange = Exchange(self.runtime.requests, request, wait_for_ready)
        return await Call(self, exchange, do).run()

    def new_number(self) -> int:
        """Return what a request is called on its connection."""
        self._numbers += 1
        return self._numbers

    # The runtime says what to do about connections: a `Connector`.

    def connect(self, backend: Backend) -> None:
        """Open a connection, in place of any other."""
        self.disconnect(backend)
        self.links[backend.address] = link = Link(self, backend)
        self._all.add(link)

    def disconnect(self, backend: Backend) -> None:
        """Close the connection when what is under way on it has ended."""
        link = self.links.pop(backend.address, None)
        if link is not None:
            link.retire()

    def check(self, backend: Backend) -> None:
        """Ask over the connection how the backend is: it does not answer by UDP."""
        link = self.links.get(backend.address)
        if link is not None:
            link.say({"check": True})

    # Links say what happened; of one that was replaced or closed nobody speaks.

    def link_opened(self, link: Link) -> None:
        """Tell the runtime that requests can be sent."""
        if self.links.get(link.backend.address) is link:
            self.runtime.connection_changed(link.backend, ConnectionEvent.OPENED)

    def link_ended(self, link: Link, event: ConnectionEvent) -> None:
        """Tell the runtime that it was refused or lost."""
        self._all.discard(link)
        if self.links.get(link.backend.address) is link:
            del self.links[link.backend.address]
            self.runtime.connection_changed(link.backend, event)


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
        raise self._refused(end) if end.rejection is not None else self._failed(end.outcome)

    def _refused(self, end: Ended) -> Exception:
        rejection = end.rejection
        assert rejection is not None
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
