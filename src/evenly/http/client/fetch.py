"""One request and its attempts, until the body of the last response has ended.

Everything runs in the caller's own task.  With an idle connection at hand a request awaits one
future.  The deadline is a timer that breaks off whatever is under way, which then ends as it would
if the connection had broken.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Final, final

from evenly.core.attempt import Ask, Attempt
from evenly.core.exchange import Connect, Ended, Exchange, Park, Step
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.http.client.errors import BodyTooLong, Errors, Phase, local_message
from evenly.http.client.outcome import outcome_of
from evenly.http.client.outgoing import Outgoing
from evenly.http.client.service import LOAD, Link, Service
from evenly.http.client.timed import PhaseSeconds, Timed
from evenly.http1.connection import BadResponse, Connection, End, Lost, NotSent
from evenly.http1.pool import Pool
from evenly.http1.reply import Reply, TooLong
from evenly.wire import orca
from evenly.wire.metadata import REJECT_KEY

__all__ = ["Fetch"]

# Enough for a backend that restarts; one that goes on so is avoided for this request.
_STALE_MAX: Final = 10
# A refusal of 99,999 bytes at most is read before it is tried elsewhere.
_SMALL_DIGITS: Final = 5
_OK: Final = Outcome.OK
_READ: Final = Phase.READ
_REJECT: Final = REJECT_KEY.encode()
_ORCA: Final = orca.HTTP_KEY.encode()


@final
class Fetch(Timed):
    """Send a request, and again where the core allows it; settle each attempt exactly once."""

    __slots__ = (
        "_acquiring",
        "_cause",
        "_connection",
        "_current",
        "_error",
        "_errors",
        "_exchange",
        "_going_on",
        "_is_expired",
        "_message",
        "_stale",
        "attempts",
        "backend",
        "body_max_bytes",
        "content",
        "keeper",
        "outcome",
        "response",
    )

    keeper: object  # The client: let go, it would close the connection that a body is read from.

    def __init__(
        self,
        service: Service,
        message: Outgoing,
        request: Request,
        errors: Errors,
        seconds: PhaseSeconds | None = None,
        *,
        body_max_bytes: int | None = None,
    ) -> None:
        self._service = service
        self.body_max_bytes = body_max_bytes
        """Of a body that is read whole; `None`: its reader knows."""
        self._request = request
        self._seconds = seconds
        self._limit_at = self._timer = None
        self._phase = Phase.BACKEND
        self._message = message
        self._errors = errors
        if seconds is not None and not isinstance(message.body, bytes):
            message.body.on_phase = self._upload
        self._exchange = Exchange(service.runtime.requests, request)
        self._going_on: asyncio.Future[Step] | None = None
        self._acquiring: asyncio.Task[Connection] | None = None
        self._connection: Connection | None = None
        self._current: Reply | None = None
        """The response being received."""
        self._cause: NotSent | None = None
        """Why nothing could be sent the last time."""
        self._stale = 0
        """Connections that turned out to be closed when they were to be used."""
        self._is_expired = False
        self._error: Exception | None = None
        self.response: Reply | None = None
        """What came of the last attempt that was sent, if it was answered."""
        self.content: bytes | None = None
        """Its body, where that was read."""
        self.outcome: Outcome | None = None
        """What that answer says of the backend."""
        self.backend: str | None = None
        self.attempts = 0

    async def run(self, *, is_buffered: bool) -> Reply:
        """Return the response, with its body in `content` if `is_buffered`; or raise.

        Else, the attempt ends with the body: read it by `next_chunk`, or `close` it.
        """
        try:
            step: Step | None = self._service.runtime.begin(self._exchange)
            while not (step is None or isinstance(step, Ended)):
                if isinstance(step, Attempt):
                    step = await self._send(step, is_buffered)
                else:
                    step = await self._wait(step)
        except BaseException:
            self._give_up()
            raise
        if step is not None:
            self._disarm()
        response = self.response
        if response is None:
            raise self._failure(step)
        return response

    async def next_chunk(self) -> bytes:
        """Return more of the body, and nothing at its end."""
        response = self.response
        if response is None:
            raise self._failure()  # Once more.
        if self._is_expired:
            raise self._timed_out()
        if not self.is_over:  # Else all is here, and no time can be up.
            self._enter(_READ)
        try:
            return await response.next_chunk()
        except Lost as error:
            self._lost(error)
            raise self._failure() from error
        except BaseException:
            response.close()
            raise
        finally:
            if not self.is_over:
                self._leave()

    def close(self) -> None:
        """Give up what has not arrived."""
        if self.response is not None:
            self.response.close()

    def abandon(self) -> None:
        """Close it soon, from whatever thread collects who should have."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, and all its sockets.
            self._service.loop.call_soon_threadsafe(self.close)

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way."""
        return self._exchange.is_over

    # Waiting.

    async def _wait(self, step: Ask | Park) -> Step:
        """Wait for probes or for a backend."""
        going_on: asyncio.Future[Step]
        self._going_on = going_on = self._service.loop.create_future()
        self._enter(Phase.BACKEND)
        self._service.runtime.hold(self._exchange, step, self._go_on)
        try:
            return await going_on
        finally:
            self._going_on = None

    def _go_on(self, step: Step) -> None:
        going_on = self._going_on
        if going_on is not None and not going_on.done():
            going_on.set_result(step)  # Else its caller is being cancelled, and gives it up.

    def _give_up(self) -> None:
        self._disarm()
        self._connection = self._current = None
        self._exchange.cancel()
        self._service.runtime.follow_up()

    # One attempt.

    async def _send(self, attempt: Attempt, is_buffered: bool) -> Step | None:
        """Return what to do next; `None`: the rest is for the reader of the body."""
        service = self._service
        link = service.link_for(attempt)
        if link is None:
            return self._not_sent(None)
        message = self._message
        now = service.loop.time()
        head = message.head(self._request, attempt.number, now, link.host, attempt.line)
        connection = link.pool.try_acquire()
        is_old = connection is not None
        try:
            if connection is None:
                acquired = await self._acquire(link)
                if not isinstance(acquired, Connection):
                    return acquired
                connection = acquired
            self._connection = connection
            try:
                self._enter(_READ)
            except BaseException:
                connection.close()  # Nobody else has it.
                raise
            response = await connection.request(message.method, head, message.body)
        except NotSent as error:
            if is_old and self._stale < _STALE_MAX and not self._is_expired and message.can_replay:
                # Closed by the other side while it was idle: that says nothing of the backend.
                self._stale += 1
                return await self._send(attempt, is_buffered)
            return self._not_sent(error)
        except Lost as error:
            self._sent(attempt)
            return self._ended(self._lost(error))
        self._sent(attempt)
        return await self._received(attempt, response, is_buffered)

    async def _received(
        self, attempt: Attempt, response: Reply, is_buffered: bool
    ) -> Attempt | Ended | None:
        self._current = response
        self.outcome = outcome = self._heard(attempt, response)
        # A refusal may be tried elsewhere, and a new connection costs more than to read it.
        if is_buffered or (outcome.is_rejection and _is_small(response)):
            most = self.body_max_bytes if is_buffered else None
            return self._ended(await self._read(response, outcome, most))
        self.response = response
        self._leave()
        self._service.runtime.follow_up()
        response.on_end = self._body_ended
        return None

    async def _read(self, response: Reply, outcome: Outcome, most: int | None) -> Outcome:
        try:
            self.content = await response.read(most)
        except Lost as error:
            return self._lost(error)
        except TooLong as error:
            response.close()
            self._error = self.too_long(str(error))
            return outcome
        except BaseException:
            response.close()
            raise
        self.response = response
        return outcome

    def _sent(self, attempt: Attempt) -> None:
        self.attempts = attempt.number
        self.backend = attempt.view.backend.address
        self.response = self.content = None

    def _heard(self, attempt: Attempt, response: Reply) -> Outcome:
        """Learn what the head of a response says of its backend."""
        runtime = self._service.runtime
        backend = attempt.view.backend
        load = response.get(LOAD)
        is_reported = load is not None and runtime.heard_load(backend, load)
        status = response.status
        if load is None:
            if status < 400:
                runtime.heard_nothing(backend)
            if runtime.task.wants_orca(attempt.view):
                runtime.heard_orca(backend, orca.parse_header(response.get(_ORCA)))
        if status < 400:
            return _OK
        has_deadline = self._request.deadline_at is not None
        return outcome_of(status, response, is_reported=is_reported, has_deadline=has_deadline)

    async def _acquire(self, link: Link) -> Connection | Step:
        """Wait for a connection, but not longer than need be where another backend has one."""
        self._enter(Phase.CONNECT)
        loop = self._service.loop
        wait = self._exchange.connect()
        self._acquiring = acquiring = loop.create_task(link.pool.acquire())
        try:
            while not acquiring.done():
                await asyncio.wait((acquiring,), timeout=max(0.0, wait.until - loop.time()))
                if self._is_expired:
                    raise NotSent("time was up")
                if not acquiring.done():
                    step = self._exchange.waited()
                    if not isinstance(step, Connect):
                        self._cause = NotSent(f"no connection to {link.backend} in time")
                        self._service.runtime.follow_up()
                        _abandon(link.pool, acquiring)
                        return step
                    wait = step
            connection = acquiring.result()
        except BaseException:
            _abandon(link.pool, acquiring)
            raise
        finally:
            self._acquiring = None
        self._exchange.connected()
        return connection

    # Ending.

    def _ended(self, outcome: Outcome) -> Attempt | Ended:
        """Say how an attempt ended that was sent; return what to do next."""
        self._connection = self._current = None
        is_final = outcome is not _OK and not self._can_replay(outcome)
        step = self._exchange.ended(outcome, is_final=is_final)
        self._service.runtime.follow_up()
        return step

    def _body_ended(self, end: End) -> None:
        """Say how an attempt ended whose body the caller reads."""
        self._disarm()
        self.keeper = None
        if end is End.COMPLETE:
            outcome = self.outcome or _OK
        elif self._is_expired:
            outcome = Outcome.TIMEOUT
        else:
            outcome = Outcome.LOST if end is End.LOST else Outcome.CANCELLED
        self._connection = self._current = None
        self._exchange.ended(outcome, is_final=True)
        self._service.runtime.follow_up()

    def _can_replay(self, outcome: Outcome) -> bool:
        """Return whether the request may be sent again after an attempt that ended so."""
        if self._is_expired or not self._message.can_replay:
            return False
        if outcome is Outcome.OVERLOADED and not self._request.idempotent:
            # Who is not one of ours may have refused after a part of the work was done.
            response = self.response
            return response is not None and response.get(_REJECT) is not None
        return True

    def _not_sent(self, error: NotSent | None) -> Step:
        """Say that nothing of an attempt was sent; return what to do next."""
        self._connection = None
        self._cause = error
        exchange = self._exchange
        if self._is_expired:
            step: Step = exchange.expire()
        else:
            step = exchange.not_sent(is_final=not self._message.can_replay)
        self._service.runtime.follow_up()
        return step

    def _lost(self, error: Lost) -> Outcome:
        self.response = None
        if self._is_expired:
            self._error = self._timed_out()
            self._error.__cause__ = error
            return Outcome.TIMEOUT
        is_bad = isinstance(error, BadResponse)
        message = f"{self.backend}: {error}"
        self._error = self._errors.lost(message, is_bad_response=is_bad, phase=self._phase)
        self._error.__cause__ = error
        return Outcome.ERROR if is_bad else Outcome.LOST

    def too_long(self, what: str) -> BodyTooLong:
        """Return what to raise for a body that is not kept in memory."""
        return BodyTooLong(f"{self.backend}: {what}: raise body_max_bytes, or use stream()")

    def _timed_out(self) -> Exception:
        where = self._service.name if self.backend is None else self.backend
        return self._errors.timed_out(
            self._phase, f"{where}: time was up while waiting for {self._phase.value}"
        )

    def _failure(self, step: Step | None = None) -> Exception:
        if self._error is None and isinstance(step, Ended) and step.rejection is not None:
            self._error = self._refused(step.rejection)
        if self._error is None:
            raise RuntimeError("a request ended without a response and without an error")
        return self._error

    def _refused(self, rejection: Rejection) -> Exception:
        if rejection.reason is Reason.EXPIRED and self._is_expired:
            error = self._timed_out()
        else:
            message = local_message(rejection, self._request, self._service.name)
            error = self._errors.refused_here(rejection, message)
        error.__cause__ = self._cause
        return error

    # Time.

    def _upload(self, phase: Phase | None) -> None:
        """Learn what a body that is made while it is sent waits for."""
        if self._current is not None or self._connection is None:
            return  # The response came first.
        if phase is None:
            self._leave()  # It takes its time.
        else:
            self._enter(phase)

    def _expire(self) -> None:
        """Break off whatever is under way."""
        self._is_expired = True
        going_on = self._going_on
        if going_on is not None:
            if not going_on.done():
                going_on.set_result(self._exchange.expire())
        elif self._acquiring is not None:
            self._acquiring.cancel()
        elif self._current is not None:
            self._current.close()
        elif self._connection is not None:
            self._connection.close()


def _is_small(response: Reply) -> bool:
    """Return whether a body is to be waited for: it has a length, and one of a refusal."""
    length = response.get(b"content-length")
    return length is not None and len(length) <= _SMALL_DIGITS


def _abandon(pool: Pool, acquiring: asyncio.Task[Connection]) -> None:
    acquiring.add_done_callback(partial(_give_back, pool))
    acquiring.cancel()


def _give_back(pool: Pool, acquiring: asyncio.Task[Connection]) -> None:
    """Return a connection that came when nobody waited any more."""
    if not acquiring.cancelled() and acquiring.exception() is None:
        pool.release(acquiring.result())
