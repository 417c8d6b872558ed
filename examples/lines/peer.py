"""One client's connection at a backend: admit, wait for the turn, serve metered, answer.

What is decided (whom to admit, who begins next, whom to refuse and how) is decided by
`BackendRuntime`.  Here is I/O, and what an end is called on the wire.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, final

from evenly import context
from evenly.core import claim
from evenly.core.admission import Admission
from evenly.core.request import Outcome, Reason, Rejection
from evenly.runtime import answer as answers
from evenly.wire.load_header import format_load
from examples.lines.wire import Message, receive, send

if TYPE_CHECKING:
    from examples.lines.backend import Backend

__all__ = ["Peer"]

_LOGGER = logging.getLogger("examples.lines")
_EXPIRED = Rejection(Reason.EXPIRED, retryable=False)


@final
class Peer:
    """One client's connection, and its requests that are being served."""

    def __init__(
        self, backend: Backend, writer: asyncio.StreamWriter, task: asyncio.Task[Any]
    ) -> None:
        self.task = task
        self.serving: dict[int, asyncio.Task[object]] = {}
        self._backend = backend
        self._runtime = backend.runtime
        self._writer = writer
        host, port = writer.get_extra_info("peername")[:2]
        self._is_trusted = self._runtime.trust.is_trusted(f"{host}:{port}")

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve until the client goes."""
        self.say({})  # A greeting: this process runs, and is not only listened for.
        while (message := await receive(reader)) is not None:
            number = message.get("id")
            if type(number) is int and number not in self.serving:
                self._begin(number, message)
            elif "check" in message:
                self.say({})
            elif type(number := message.get("cancel")) is int and number in self.serving:
                self.serving[number].cancel()
            await self._writer.drain()  # Who does not read its answers is read no further.

    def say(self, message: Message) -> None:
        """Send a message, with what this backend says of itself."""
        send(self._writer, {**message, "load": format_load(self._runtime.report())})

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the connection: `serve` sees its end."""
        if at_once:
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def close(self) -> None:
        """Give up what is being served: nobody waits for it any more."""
        self.hang_up()
        tasks = list(self.serving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests.

    def _begin(self, number: int, message: Message) -> None:
        request, attempt = claim.believe(
            criticality=message.get("criticality"),
            customer=message.get("customer"),
            attempt=message.get("attempt"),
            deadline_ms=message.get("deadline_ms"),
            luck=message.get("luck"),
            peer_is_trusted=self._is_trusted,
            now=time.monotonic(),
        )
        line = claim.believe_line(message.get("line")) if self._is_trusted else 0.0
        admission = self._runtime.admit(request, attempt, line=line)
        if isinstance(admission, Rejection):
            self._refuse(number, admission, answers.details(admission, request))
            return
        serving = Serving(self._backend, admission)
        task = asyncio.get_running_loop().create_task(serving.run(message.get("do")))
        self.serving[number] = task
        # So it finishes also where it is cancelled before its first step.
        task.add_done_callback(partial(self._ended, number, serving))

    def _ended(self, number: int, serving: Serving, task: asyncio.Task[object]) -> None:
        """Finish a request, on every path and exactly once, and answer."""
        del self.serving[number]
        admission, cpu_seconds = serving.admission, serving.cpu_seconds
        if task.cancelled():  # Its client has left, and hears nothing.
            admission.finish(answers.gave_up(admission, admission.deadline_at), cpu_seconds)
            return
        error = task.exception()
        if error is None:
            admission.finish(Outcome.OK, cpu_seconds)
            self.say({"id": number, "outcome": Outcome.OK.name, "answer": task.result()})
        elif context.is_refusal(error):
            rejection = self._runtime.task.pass_on(admission, cpu_seconds)
            text = answers.details(rejection, admission.request)
            self._refuse(number, rejection, answers.passed_on(text, error))
        elif isinstance(error, TimeoutError) and serving.is_late():
            admission.finish(Outcome.TIMEOUT, cpu_seconds)
            self._refuse(number, _EXPIRED, answers.details(_EXPIRED, admission.request))
        else:
            _LOGGER.error("a request failed", exc_info=error)
            admission.finish(Outcome.ERROR, cpu_seconds)
            text = f"{type(error).__name__}: {error}"
            self.say({"id": number, "outcome": Outcome.ERROR.name, "error": text})

    def _refuse(self, number: int, rejection: Rejection, text: str) -> None:
        self.say({"id": number, "outcome": rejection.outcome.name, "error": text})


@final
class Serving:
    """One admitted request while its handler works."""

    def __init__(self, backend: Backend, admission: Admission) -> None:
        self.admission = admission
        self.cpu_seconds = 0.0
        self._backend = backend

    def is_late(self) -> bool:
        """Return whether its deadline has passed."""
        deadline_at = self.admission.deadline_at
        return deadline_at is not None and time.monotonic() >= deadline_at

    async def run(self, do: object) -> object:
        """Wait for its turn, do the work metered, and return the answer."""
        runtime, metering = self._backend.runtime, self._backend.metering
        if not runtime.gate.try_enter():
            await runtime.wait_for_turn()
            if self.is_late():
                raise TimeoutError
        meter = metering.next()
        try:
            # What the handler sends inherits criticality, customer and deadline.
            with context.serving(self.admission.request, should_degrade=runtime.should_degrade):
                work = self._backend.handler(do)
                answer = await (work if meter is None else meter.run(work))
            json.dumps(answer)  # Else it is the handler's mistake.
        finally:
            self.cpu_seconds = metering.cpu_seconds(meter)
        return answer
