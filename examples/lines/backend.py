"""The serving side: admit, wait for the turn, serve metered, answer with the load.

What is decided (whom to admit, who begins next, whom to refuse and how, when the process may exit)
is decided by `BackendRuntime`.  Here is I/O, and what an end is called on the wire.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, final

from evenly import context
from evenly.core import claim
from evenly.core.admission import Admission
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason, Rejection
from evenly.runtime import answer as answers
from evenly.runtime.backend import BackendConfig, BackendRuntime
from evenly.runtime.lifecycle import Interruptions, WarmUp, live, run_warm_up, signals_to
from evenly.runtime.metering import Metering
from evenly.wire.load_header import format_load
from examples.lines.wire import LINE_MAX_BYTES, Message, receive, send

__all__ = ["Backend", "Handler", "serve"]

Handler = Callable[[Any], Coroutine[Any, Any, object]]
"""What does the work: it gets what the client said, and returns what JSON can say."""

_LOGGER = logging.getLogger("examples.lines")
_FLUSH_SECONDS = 1.0
_EXPIRED = Rejection(Reason.EXPIRED, retryable=False)


@final
class Backend:
    """Serve a handler at a port; `serve` gives it a life from its start to its clean end."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: BackendConfig | None = None,
        observer: Observer = NO_OBSERVER,
        warm_up: WarmUp | None = None,
        on_listening: Callable[[str], None] = lambda _address: None,
    ) -> None:
        self.runtime = BackendRuntime(config, observer=observer)
        self.host = host
        self.port = port
        self.warming_up = warm_up
        self.on_listening = on_listening
        self.handler = handler
        self.metering = Metering(
            self.runtime.measured,
            self.runtime.charged,
            is_always_on=self.runtime.has_quotas,
            rng=self.runtime.rng,
        )
        self._listener: asyncio.Server | None = None
        self._peers: set[Peer] = set()
        self.runtime.on_state(self._tell)

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        return f"{self.host}:{self.port}"

    # The steps of `evenly.runtime.lifecycle.Life`, in their order.

    @property
    def active(self) -> int:
        """Requests that are under way."""
        return self.runtime.active

    async def start(self) -> None:
        """Listen, as a lame duck."""
        self.runtime.start(asyncio.get_running_loop())
        self._listener = await asyncio.start_server(
            self._accept, self.host, self.port, limit=LINE_MAX_BYTES
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self.runtime.bind_probe(self.host, self.port)
        self.on_listening(self.address)

    async def warm_up(self) -> None:
        """Get ready."""
        await run_warm_up(self.warming_up)

    def announce_healthy(self) -> None:
        """Ask clients to send."""
        self.runtime.announce_healthy()

    async def stopped(self) -> None:
        """Wait: nobody but `live` stops it."""
        await asyncio.Event().wait()

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere."""
        self.runtime.enter_lame_duck()

    async def drained(self) -> None:
        """Return when nobody sends any more, or time is up."""
        await self.runtime.drained()

    async def stop(self, grace: float | None) -> None:
        """Stop, and give what is left so many seconds; `None` is at once."""
        if self._listener is not None:
            self._listener.close()
        tasks = [task for peer in self._peers for task in peer.serving.values()]
        if tasks and grace is not None:
            await asyncio.wait(tasks, timeout=grace)
        peers = list(self._peers)
        for peer in peers:
            peer.hang_up()
        if peers:  # Until what was written has gone out, but no longer than that.
            await asyncio.wait([peer.task for peer in peers], timeout=_FLUSH_SECONDS)
        for peer in peers:
            peer.hang_up(at_once=True)
        await asyncio.gather(*(peer.task for peer in peers))

    def close(self) -> None:
        """Leave nothing behind."""
        self.runtime.stop()

    # Connections.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = Peer(self, writer, task)
        self._peers.add(peer)
        try:
            await peer.serve(reader)
        except OSError:
            pass  # The client has gone while it was written to.
        finally:
            await peer.close()
            self._peers.discard(peer)

    def _tell(self, _is_lame_duck: bool) -> None:
        """Tell every client at once that the state has changed."""
        for peer in self._peers:
            peer.say({})


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
            peer_is_trusted=self._is_trusted,
            now=time.monotonic(),
        )
        admission = self._runtime.admit(request, attempt)
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


async def serve(backend: Backend, *, grace_seconds: float = 5.0) -> None:
    """Serve until SIGTERM or Ctrl-C: then lame duck, drain, and leave."""
    interruptions: Interruptions = asyncio.Queue()
    with signals_to(interruptions):
        await live(backend, interruptions, grace_seconds=grace_seconds)
