"""Run one `ClientTask` on an event loop: its timers, its probes, its list of backends.

Whatever the transport, the same has to be done around the façade; a transport adds connections and
requests.  Nothing is decided here.

Use it on the loop's thread.  A threaded transport passes a lock, holds it around its own calls of
`task`, and comes here through `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Protocol, final

from evenly.context import job_criticality
from evenly.core.attempt import Ask
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.out_of_band import OutOfBand
from evenly.core.client_task import ClientTask
from evenly.core.exchange import Ended, Exchange, Park, Requests, Step
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.report import LoadReport
from evenly.discovery.target import Discovery, from_target
from evenly.errors import ConfigError
from evenly.observe.guard import guarded
from evenly.probe.prober import Prober
from evenly.runtime.client_config import ClientConfig
from evenly.runtime.memories import MEMORIES
from evenly.wire.load_header import parse_load

__all__ = ["ClientRuntime", "Connector", "check_client"]

_LOGGER = logging.getLogger("evenly.runtime")
_DISCOVERY_RETRY_SECONDS = 5.0
# After periodic work that raised, and may be due still.
_WAKE_RETRY_SECONDS = 1.0

GoOn = Callable[[Step], None]


class Connector(Protocol):
    """Be what a transport does about connections, when told to."""

    def connect(self, backend: Backend) -> None:
        """Open a connection, in place of any other, and say what became of it."""

    def disconnect(self, backend: Backend) -> None:
        """Close the connection, if there is one."""

    def check(self, backend: Backend) -> None:
        """Ask over the connection whether the backend serves: it does not answer by UDP."""


@final
class _Waiting:
    """One request that waits for probes or for a backend, and who is to hear when it goes on."""

    __slots__ = ("_exchange", "_go_on", "_left", "_runtime", "_timer")

    def __init__(self, runtime: ClientRuntime, exchange: Exchange, go_on: GoOn) -> None:
        self._runtime = runtime
        self._exchange = exchange
        self._go_on = go_on
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, step: Step) -> None:
        """Wait on, or let the request go on."""
        if isinstance(step, Ask):
            self._ask(step)
        elif isinstance(step, Park):
            self._exchange.on_step = self.take
        else:
            self._go_on(step)

    def _ask(self, ask: Ask) -> None:
        """Send the probes of a question, and go on when all are answered or time is up."""
        runtime = self._runtime
        runtime.asking.add(self)
        self._left = len(ask.views)
        # Where nobody is asked, there is nothing to wait for; but never call back at once.
        seconds = ask.wait_seconds if runtime.config.probe.is_on else 0.0
        self._timer = runtime.loop.call_later(seconds, self.resume)
        for backend in ask.backends:
            runtime.prober.probe(backend, self._answered)

    def _answered(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.resume()

    def resume(self) -> None:
        """Go on with what was answered so far."""
        timer, self._timer = self._timer, None
        if timer is None:
            return  # It went on already.
        timer.cancel()
        self._runtime.asking.discard(self)
        with self._runtime.lock:
            step = None if self._exchange.is_over else self._exchange.probed()
        if step is not None:
            self.take(step)


def check_client(target: str | Discovery, config: ClientConfig) -> None:
    """Raise where a client is made what would fail at its first request, in the background."""
    job_criticality()  # EVENLY_CRITICALITY may be misspelt, ...
    if not isinstance(config, ClientConfig):
        raise ConfigError(f"config must be a ClientConfig, not {config!r:.100}")
    config.resolved_task(os.environ)  # ... and so may the rest of the environment.
    from_target(target)


@final
class ClientRuntime:
    """Drive the decisions about one service for one process."""

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        observer: Observer = NO_OBSERVER,
        lock: AbstractContextManager[object] | None = None,
        part: object = None,
    ) -> None:
        """Decide about `target`; `part` says which part of it, where one name has several."""
        self.config = config
        # One of its own is cheaper than `nullcontext`, or than asking whether there is one.
        self.lock = threading.RLock() if lock is None else lock
        self.task = ClientTask(
            config.resolved_task(os.environ),
            clock=time.monotonic,
            rng=random.Random(),
            observer=guarded(observer),
        )
        self.requests = Requests(
            self.task, clock=time.monotonic, patience_seconds=config.patience_seconds
        )
        self.prober = Prober(self._reported, key=config.probe.key)
        self._discovery = from_target(target)  # It checks that it is one.
        # A discovery is an object, which says nothing about the next one.
        task = config.task
        self._memory_key = (
            (target, part, task.throttle, task.retry) if isinstance(target, str) else None
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connector: Connector | None = None
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = math.inf
        self._wake_errors: set[type[Exception]] = set()
        self._discovery_timer: asyncio.TimerHandle | None = None
        self._is_unparking = False
        self.asking: set[_Waiting] = set()
        """The requests that wait for probes."""
        self._backends: dict[str, Backend] = {}
        # What each said last, in its words: a busy backend repeats itself for some milliseconds.
        self._last_loads: dict[str, tuple[object, LoadReport]] = {}

    @property
    def is_discovered(self) -> bool:
        """Whether there has been a list of backends, or the wait for it is over."""
        return self.requests.is_discovered

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this runs on."""
        if self._loop is None:
            raise RuntimeError("the runtime has not been started")
        return self._loop

    def start(self, loop: asyncio.AbstractEventLoop, connector: Connector) -> None:
        """Begin: look up the backends, connect, probe."""
        self._loop = loop
        self._connector = connector
        if self.config.probe.is_on:
            self.prober.start(loop)
        # In an empty context: the one that is current may belong to a request.
        Context().run(self._begin_watching, loop)
        memory = None if self._memory_key is None else MEMORIES.take(self._memory_key)
        if memory is not None:
            with self.lock:
                self.task.remember(memory)
        self._schedule()

    def _begin_watching(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watching = loop.create_task(self._watch())
        self._discovery_timer = loop.call_later(self.config.discovery_seconds, self._discovered)

    def stop(self) -> None:
        """End; what waits is rejected."""
        for timer in (self._timer, self._discovery_timer):
            if timer is not None:
                timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self.abandon()
        with self.lock:
            steps = self.requests.close()
        for exchange, step in steps:
            _go_on(exchange, step)
        for waiting in list(self.asking):
            waiting.resume()

    def abandon(self) -> None:
        """Let go of what belongs to no loop, which may be closed: sockets, and what was learnt."""
        self.prober.stop()
        was_running, self._connector = self._connector is not None, None
        if was_running and self._memory_key is not None:
            with self.lock:
                memory = self.task.leave_memory()
            MEMORIES.leave(self._memory_key, memory)

    async def stopped(self) -> None:
        """Wait, after `stop`, until nothing of this runs any more."""
        if self._watching is not None:
            await asyncio.wait([self._watching])

    # Requests.

    def begin(self, exchange: Exchange) -> Step:
        """Begin a request.  Where it has to wait for probes or a backend, `hold` it."""
        step = exchange.begin()
        probes = self.task.take_probes()
        if probes:
            self.probe(probes)
        if isinstance(step, (Ended, Park)):
            self._connect()  # It may have a backend tried.
        return step

    def hold(self, exchange: Exchange, step: Ask | Park, go_on: GoOn) -> None:
        """Call `go_on` with the next step of a request that waits, unless it is cancelled.

        That is an attempt or its end.
        """
        _Waiting(self, exchange, go_on).take(step)

    def follow_up(self) -> None:
        """Connect where the task says so, and begin what waits, after something has changed."""
        self._connect()
        if self.requests.parked:
            self._unpark()

    def _connect(self) -> None:
        with self.lock:
            connections = self.task.take_connections()
        connector = self._connector
        if connector is not None:
            for backend in connections.close:
                connector.disconnect(backend)
            for backend in connections.open:
                connector.connect(backend)

    def is_resting(self) -> bool:
        """Return whether some backend has no connection because nobody needed one."""
        with self.lock:
            return self.task.is_resting()

    def connect_one(self) -> None:
        """Have a connection opened to a backend that rests: somebody wants to see it stand."""
        with self.lock:
            self.task.demand_one()
        self.follow_up()

    def probe(self, backends: Sequence[Backend]) -> None:
        """Probe these in the background, if there are probes."""
        if self.config.probe.is_on:
            for backend in backends:
                self.prober.probe(backend)

    # What was heard.

    def heard_load(self, backend: Backend, value: object) -> bool:
        """Learn what a response says of its backend; return whether it said anything."""
        last = self._last_loads.get(backend.address)
        if last is not None and last[0] == value:
            report = last[1]
        else:
            parsed = parse_load(value)
            if parsed is None:
                return False
            report = parsed
            if backend.address in self._backends:
                self._last_loads[backend.address] = (value, report)
                self.prober.announce_port(backend, report.probe_port)
        with self.lock:
            self.task.record_report(backend, report)
        return True

    def heard_nothing(self, backend: Backend) -> None:
        """Learn that a response that ended well came without a word on its backend."""
        with self.lock:
            self.task.record_repeat(backend)

    def heard_orca(self, backend: Backend, report: LoadReport | None) -> None:
        """Learn what a response says in ORCA, if it could be read."""
        if report is not None:
            with self.lock:
                self.task.record_orca(backend, report)

    def out_of_band(self, backend: Backend) -> OutOfBand | None:
        """Return what decides when to ask for ORCA over a connection that has just been opened."""
        with self.lock:
            return self.task.out_of_band(backend)

    def heard_serving(self, backend: Backend, *, is_serving: bool) -> None:
        """Learn what a health service says of its backend."""
        with self.lock:
            self.task.record_serving(backend, serving=is_serving)
        self.follow_up()

    def connection_changed(self, backend: Backend, event: ConnectionEvent) -> None:
        """Learn what became of a connection."""
        with self.lock:
            self.task.record_connection(backend, event)
        self.follow_up()
        self._schedule()

    def _reported(self, backend: Backend, report: LoadReport, is_probe: bool) -> None:
        with self.lock:
            self.task.record_report(backend, report, is_probe=is_probe)
        self.follow_up()

    # Discovery.

    async def _watch(self) -> None:
        while True:
            try:
                async for backends in self._discovery.watch():
                    self._learn(backends)
            except asyncio.CancelledError:
                raise
            except Exception:
                _LOGGER.exception("discovery failed; the last list of backends stays")
            await asyncio.sleep(_DISCOVERY_RETRY_SECONDS * random.uniform(0.8, 1.2))

    def _learn(self, backends: Sequence[Backend]) -> None:
        try:
            with self.lock:
                self.task.update(backends)
        except ConfigError as error:
            _LOGGER.error("discovery: %s; the last list of backends stays", error)
            return
        before = self._backends
        self._backends = {backend.address: backend for backend in backends}
        for address, backend in before.items():
            if address not in self._backends:
                self.prober.forget(backend)
                self._last_loads.pop(address, None)
        self._discovered()
        self._schedule()

    def _discovered(self) -> None:
        if not self.is_discovered:
            with self.lock:
                steps = self.requests.discovered()
                probes = self.task.take_probes()
            self.probe(probes)
            for exchange, step in steps:
                _go_on(exchange, step)
        self.follow_up()

    # Periodic work.

    def _schedule(self, least_seconds: float = 0.001) -> None:
        loop = self.loop
        if self._connector is None:
            return  # Stopped: what is heard now changes nothing.
        with self.lock:
            at = max(self.task.next_wake_at(), loop.time() + least_seconds)
        if at < self._wake_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wake_at = at
            # In an empty context, as above: each wake-up schedules the next.
            self._timer = Context().run(loop.call_at, at, self._wake)

    def _wake(self) -> None:
        self._wake_at = math.inf
        least_seconds = 0.001
        try:
            self._do_what_is_due()
        except Exception as error:
            # A mistake of ours or of a transport's; without a next time health checks would end.
            least_seconds = _WAKE_RETRY_SECONDS * random.uniform(0.8, 1.2)
            if type(error) not in self._wake_errors:
                self._wake_errors.add(type(error))
                _LOGGER.exception("periodic work failed, and goes on; said once for this kind")
        self._schedule(least_seconds)

    def _do_what_is_due(self) -> None:
        with self.lock:
            self.task.wake()
            probes = self.task.take_probes()
        self.follow_up()
        for backend in probes:
            # Health checks: by UDP, and over the connection too where that gets no answer.
            if self._connector is not None and not self.prober.is_answering(backend):
                self._connector.check(backend)
        self.probe(probes)

    def _unpark(self) -> None:
        """Begin what waits for a backend, in its order, until one has to wait on."""
        if self._is_unparking:
            return  # What was begun here has led here again: the loop below goes on.
        self._is_unparking = True
        try:
            # Once round: who is parked again in the meantime waits for the next change.
            for _ in range(self.requests.parked):
                with self.lock:
                    found = self.requests.next_parked()
                    probes = self.task.take_probes()
                self.probe(probes)
                if found is None:
                    self._connect()  # It may have a backend tried.
                    return
                _go_on(*found)
        finally:
            self._is_unparking = False


def _go_on(exchange: Exchange, step: Step) -> None:
    on_step, exchange.on_step = exchange.on_step, None
    if on_step is not None and (isinstance(step, Ended) or not exchange.is_over):
        on_step(step)
