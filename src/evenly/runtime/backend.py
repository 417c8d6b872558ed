"""Run one `BackendTask` on an event loop: its signals, its probes, its start and its shutdown.

Whatever the transport, the same has to be done around the façade; a transport adds requests.
Nothing is decided here.

Use it on the loop's thread, which has the façade to itself: a lock around `admit` and `finish` was
a fifth of what we add to a request.  From other threads there are `record_signal`, which the loop
hears in its next turn, `should_degrade`, `report`, which is then the last one made, and `snapshot`,
`announce_healthy` and `enter_lame_duck`, which wait for the loop.

Where handlers are threads, whoever makes the runtime gives it a reentrant `lock`: any thread then
records, reports and takes snapshots under it, and must hold it to call `admit` or `task`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import final

from evenly.context import job_criticality
from evenly.core.backend_task import (
    Admission,
    BackendTask,
    BackendTaskSnapshot,
)
from evenly.core.claim import Trust
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.report import LoadReport
from evenly.core.request import Rejection, Request
from evenly.errors import ConfigError
from evenly.observe.guard import guarded
from evenly.observe.on_loop import ask
from evenly.probe.responder import ProbeResponder, ResponderSnapshot
from evenly.runtime.backend_config import BackendConfig, default_task
from evenly.runtime.gate import StartGate
from evenly.runtime.readings import Readings

__all__ = ["BackendRuntime", "BackendRuntimeSnapshot"]

_LOGGER = logging.getLogger("evenly.runtime")
_LEAST_WAIT_SECONDS = 0.001
_MOST_WAIT_SECONDS = 0.02


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRuntimeSnapshot:
    """Show what a backend is doing, and what was read of the system."""

    task: BackendTaskSnapshot
    waiting: int
    """Requests admitted and not begun."""
    lag_seconds: float
    """0 also where the application records `runnable` itself."""
    mean_cost_seconds: float
    probe: ResponderSnapshot


@final
class BackendRuntime:
    """Drive the decisions of one backend."""

    def __init__(
        self,
        config: BackendConfig | None = None,
        *,
        observer: Observer = NO_OBSERVER,
        lock: AbstractContextManager[object] | None = None,
        waiting: Callable[[], int] | None = None,
        gate: StartGate | None = None,
        thread_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        job_criticality()  # A misspelt EVENLY_CRITICALITY fails here rather than at a request.
        if not (config is None or isinstance(config, BackendConfig)):
            raise ConfigError(
                f"config must be a BackendConfig of evenly.http or evenly.grpc, not {config!r:.100}"
            )
        self.config = BackendConfig() if config is None else config
        task_config = default_task() if self.config.task is None else self.config.task
        self.has_quotas = task_config.quota is not None
        self.rng = rng = random.Random()
        """All the luck of this backend."""
        self._pid = os.getpid()
        self._is_shared = lock is not None
        self.lock = contextlib.nullcontext() if lock is None else lock
        """What guards `task` where several threads use it."""
        self.task = BackendTask(
            task_config,
            clock=time.monotonic,
            rng=rng,
            boot=time.time_ns(),
            observer=guarded(observer),
        )
        self.trust = Trust(self.config.trusted_networks, near=self.config.trust_near)
        self.gate = StartGate() if gate is None else gate
        self.responder = ProbeResponder(self.report, key=self.config.probe.key, rng=rng)
        self.arriving = 0
        """Requests that are here and not admitted yet, where somebody else counts them in."""
        self.combine: Callable[[LoadReport], LoadReport] | None = None
        """Makes of this process's report what is said: where several are one backend, their sum."""
        self.readings = Readings(
            # `runnable` is no signal with ramps.  It is read always: backends that refuse nothing
            # because of their queue report it, and clients go by it.
            signals=frozenset({"runnable", *task_config.utilization.signals}).difference(
                self.config.own_signals
            ),
            record=self.record_signal,
            record_process=self._record_process,
            waiting=self._count_waiting if waiting is None else waiting,
            active=self._count_active,
            ended=self._count_ended,
            handler_seconds=self._handler_seconds,
            rng=rng,
            thread_clock=thread_clock,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._is_over = False
        self._charged_seconds = 0.0
        self._observers: list[Callable[[bool], None]] = []
        self._udp_port: int | None = None
        self._is_udp_logged = False
        self._changed: asyncio.Event | None = None  # made when somebody waits for the drain
        self._reported = self.task.report()

    @property
    def active(self) -> int:
        """Requests that are here and have not ended."""
        return self.task.active + self.arriving

    @property
    def is_started(self) -> bool:
        """Whether it runs on a loop."""
        return self._loop is not None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to read the system and to answer probes; once, so not after `stop` either."""
        if self._loop is None and not self._is_over:
            self._be_this_process()
            self._loop = loop
            self._thread = threading.get_ident()
            self.readings.start(loop)
            self.responder.start(loop)

    def stop(self) -> None:
        """End; a second time does nothing."""
        self._is_over = True
        self._loop = None
        self.readings.stop()
        self.responder.stop()

    def _be_this_process(self) -> None:
        """Be told apart from the others into which this was copied: gunicorn's `--preload`."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.rng.seed()
            with self.lock:
                self.task.update_boot(time.time_ns())
                self._reported = self.task.report()

    # Requests.

    def admit(
        self,
        request: Request,
        attempt: int = 1,
        *,
        luck: float | None = None,
        line: float = 0.0,
    ) -> Admission | Rejection:
        """Take a request or refuse it; under `lock`.  `task` ends it.

        Where a call counts, event loops' transports write this out: HTTP's and gRPC's.
        """
        answer = self.task.admit(request, attempt, luck=luck, line=line)
        if not self.readings.is_timing and type(answer) is Admission:
            self.readings.begun()
        return answer

    async def wait_for_turn(self) -> None:
        """Wait until an admitted request may begin; for when `gate.try_enter` said no."""
        # A burst must show before its first request has ended ...
        self.readings.record_waiting(arriving=1)
        try:
            await self.gate.enter()
        finally:
            # ... and no longer than it lasts: the next reading may be 20 ms away.
            self.readings.record_waiting()

    def measured(self, cpu_seconds: float, others: int = 0, others_seconds: float = 0.0) -> None:
        """Learn what the handler of one request has been measured to take; see `Metering`."""
        self.gate.left(cpu_seconds, others, others_seconds)

    def charged(self, cpu_seconds: float) -> None:
        """Learn what a request was charged that no clock of this process has seen."""
        with self.lock:
            self._charged_seconds += cpu_seconds

    def report(self) -> LoadReport:
        """Return what to say in a response or in a probe's answer."""
        if self._elsewhere() is not None:
            return self._reported
        with self.lock:
            # Now, so that it has the queue without the request that has just ended.
            self.readings.record_runnable()
            report = self.task.report()
            self._reported = report if self.combine is None else self.combine(report)
            return self._reported

    def should_degrade(self, level: float) -> bool:
        """Return whether cheaper answers are wanted at this level now; from any thread."""
        return self.task.should_degrade(level)

    # Probes.

    def bind_probe(self, host: str, port: int) -> int | None:
        """Answer probes for the service at this TCP address; return the UDP port, if there is one.

        Where its own number is taken (several workers share the address), a free one is announced.
        A backend with several addresses has one announced port for all.
        """
        probe = self.config.probe
        if not probe.is_on:
            return None
        wanted = port if probe.port is None else probe.port
        try:
            if self._udp_port is not None:
                self._bind_another(host, port)
            else:
                self._udp_port = self._bind_first(host, wanted)
                is_the_usual = self._udp_port == port
                with self.lock:
                    self.task.announce_probe_port(None if is_the_usual else self._udp_port)
        except (OSError, UnicodeError, OverflowError) as error:
            if not self._is_udp_logged:
                self._is_udp_logged = True
                _LOGGER.warning("no probes by UDP, and so no idle mode, at %s: %s", host, error)
        return self._udp_port

    def _bind_first(self, host: str, port: int) -> int:
        try:
            return self.responder.bind(host, port)
        except OSError:
            return self.responder.bind(host, 0)

    def _bind_another(self, host: str, port: int) -> None:
        assert self._udp_port is not None  # noqa: S101  The first has been bound.
        if port != self._udp_port:
            with self.lock:
                self.task.announce_probe_port(self._udp_port)
        # Where the first address was 0.0.0.0, it is taken, by us.
        with contextlib.suppress(OSError):
            self.responder.bind(host, self._udp_port)

    # States.

    def on_state(self, observer: Callable[[bool], None]) -> None:
        """Tell `observer` on the loop's thread whether this is a lame duck, when that changes."""
        self._observers.append(observer)

    @property
    def is_lame_duck(self) -> bool:
        """Whether clients are asked to send elsewhere."""
        return self.report().lame_duck

    def announce_healthy(self) -> bool:
        """Ask clients to send, warmed up; return False if the shutdown has begun."""
        return self._change(self.task.announce_healthy)

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere, for good: step 2 of the book's clean shutdown."""
        self._change(self.task.enter_lame_duck)

    def _change(self, verb: Callable[[], bool | None]) -> bool:
        loop = self._elsewhere()
        if loop is not None:
            return ask(loop, partial(self._change, verb))
        with self.lock:
            before = self.task.report()
            answer = verb()
            after = self.task.report()
        if self._changed is not None:
            self._changed.set()
        if after.sequence != before.sequence:
            self.report()  # for those who ask elsewhere
            self.responder.notify()
            for observer in self._observers:
                observer(after.lame_duck)
        return answer is not False

    async def drained(self) -> None:
        """Return when the process may exit: shutting down, and nobody left or time up."""
        if self._changed is None:
            self._changed = asyncio.Event()
        while True:
            self._changed.clear()
            with self.lock:
                if self.task.is_drained():
                    return
                seconds = self.task.next_wake_at() - time.monotonic()
            # `inf`, while the shutdown has not begun, is a time-out that asyncio cannot have.  Once
            # it has we look: requests would have to tell of their end, each of them, for this once.
            limit = None
            if seconds < math.inf:
                limit = min(max(seconds, _LEAST_WAIT_SECONDS), _MOST_WAIT_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._changed.wait()

    def snapshot(self) -> BackendRuntimeSnapshot:
        """Return what is known now."""
        loop = self._elsewhere()
        if loop is not None:
            return ask(loop, self.snapshot)
        with self.lock:
            task = self.task.snapshot()
        return BackendRuntimeSnapshot(
            task=task,
            waiting=self.gate.waiting,
            lag_seconds=self.readings.lag_seconds(),
            mean_cost_seconds=self.readings.mean_cost_seconds(),
            probe=self.responder.snapshot(),
        )

    def record_signal(self, name: str, value: float) -> None:
        """Learn the value of a signal, from any thread; see `BackendConfig.own_signals`."""
        loop = self._elsewhere()
        if loop is None:
            with self.lock:
                self.task.record_signal(name, value)
            return
        self.task.check_signal(name)  # Here, where somebody hears of it.
        with contextlib.suppress(RuntimeError):  # It was closed just now.
            # In an empty context: the one that is current may belong to a request.
            loop.call_soon_threadsafe(
                self.task.record_signal, name, value, context=contextvars.Context()
            )

    def _elsewhere(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop that has the façade to itself, if that runs in another thread."""
        loop = self._loop
        if self._is_shared or loop is None or threading.get_ident() == self._thread:
            return None
        return loop if loop.is_running() else None

    def _record_process(self, cpu_seconds_total: float) -> None:
        with self.lock:
            # Handlers report it as theirs, and so it is the process's too.
            self.task.record_process(cpu_seconds_total + self._charged_seconds)

    def _count_waiting(self) -> int:
        return self.gate.waiting

    def _count_active(self) -> int:
        return self.task.active + self.arriving

    def _count_ended(self) -> int:
        return self.task.finished

    def _handler_seconds(self) -> float:
        return self.gate.mean_seconds
