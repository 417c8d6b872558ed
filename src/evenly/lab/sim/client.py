"""One client task in the simulated world: the transport around an unchanged `ClientTask`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, final

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTask
from evenly.core.exchange import Connect, Exchange, Park, Requests, Step
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.costs import cost_drawer
from evenly.lab.sim.job import Call, Job
from evenly.lab.sim.lame_ducks import LameDucks
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.probe import Probe, Wait

if TYPE_CHECKING:
    from evenly.lab.sim.fleet import Fleet

__all__ = ["Client"]

# How long a client task waits for a connection that nobody refuses or accepts.
_CONNECT_SECONDS = 1.0
# How long a request waits for a connection before it looks for another: the default of transports.
_PATIENCE_SECONDS = 0.25
# By its own name, because an enum's members take long to look up.
_NOT_SENT: Final = Outcome.NOT_SENT


@final
class Client:
    """Send one process's requests to one service."""

    def __init__(self, fleet: Fleet, index: int, name: str, *, policy: str) -> None:
        stage = fleet.stage
        self.name = name
        self.index = index
        self.fleet = fleet
        self.is_retired = False
        self._events = stage.events
        self._network = stage.network
        self._recorder = stage.recorder
        self._checkers = stage.checkers
        self._rng = stage.rng(name)
        self._random = self._rng.random
        self._jitter_ratio = stage.scenario.network.jitter_ratio
        self._delay_seconds = fleet.delay_seconds(index)
        self._draw_cost = cost_drawer(fleet.config.cost, stage.rng(f"{name}/costs"))
        config = stage.scenario.client_task
        self.task = ClientTask(
            replace(
                config,
                policy=replace(config.policy, name=policy),
                membership=replace(config.membership, client_index=index),
            ),
            clock=stage.events.clock,
            rng=stage.rng(f"{name}/task"),
            observer=stage.observer,
        )
        self._requests = Requests(
            self.task,
            clock=stage.events.clock,
            patience_seconds=_PATIENCE_SECONDS,
            is_discovered=True,
        )
        self._is_patient = stage.scenario.workload.wait_for_ready
        self._open: dict[str, bool] = {}  # By address: True for open, False for connecting.
        self._tries: dict[str, int] = {}  # How often it has connected to each.
        self._parked: dict[str, list[Job]] = {}
        self._lame_ducks = LameDucks(self, stage, delay_seconds=self._delay_seconds)
        self._calls: deque[Call] = deque()
        self._sweep_at: float | None = None
        self._wake_at = -math.inf

    def __repr__(self) -> str:
        return f"<Client {self.name}>"

    def start(self) -> None:
        """Learn the backends, connect, and begin to wake up."""
        self.task.update(self.fleet.backends)
        self._connect()
        self._wake()

    def retire(self) -> None:
        """Send nothing more, and disconnect: what is under way ends as it will."""
        self.is_retired = True
        for address in self._open:
            self.fleet.machines_by_address[address].disconnect(self)

    # The call site.

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request, and call `on_end` exactly once when it is over."""
        now = self._events.now
        second = self._recorder.second
        call = Call(self, request, self._draw_cost(), on_end, begun_at=now, second=second)
        self._checkers.begun()
        if request.deadline_at is not None:
            self._watch(call, request.deadline_at)
        exchange = call.exchange = Exchange(self._requests, request, self._is_patient)
        if self._is_patient:  # Others never wait in line: the backends are known.
            exchange.on_step = partial(self._go_on, call, exchange)
        step = exchange.begin()
        probes = self.task.take_probes()
        if probes:
            self._probe(probes)
        self._go_on(call, exchange, step)

    def _go_on(self, call: Call, exchange: Exchange, step: Step) -> None:
        if isinstance(step, Attempt):
            self._send(call, exchange, step)
        elif isinstance(step, Ask):
            call.asked = self._checkers.order.asked(self.task, step)
            wait = Wait(self._events, exchange, step, partial(self._go_on, call, exchange))
            for backend in step.backends:
                self._send_probe(backend, wait)
        elif isinstance(step, Park):
            call.asked = None  # It will be begun anew.
            self._connect()  # It may have a backend tried.
        elif step.outcome is not None:
            self._end(call, step.outcome)
        elif step.rejection is not None:
            reason = step.rejection.reason
            if reason is Reason.THROTTLED:
                self._recorder.second.throttled += 1
                self._checkers.order.throttled(
                    self.name,
                    self.task,
                    call.request,
                    step.rejection,
                    asked=call.asked,
                    now=self._events.now,
                )
            elif reason is Reason.NO_BACKEND:
                self._connect()  # It may have one tried.
            self._end(call, reason)

    def _end(self, call: Call, end: Outcome | Reason) -> None:
        self._checkers.ended(self._events.now, twice=call.is_over)
        call.is_over = True
        call.job = None
        call.on_end(call, end)

    # The network.

    def delay(self) -> float:
        """Return how long the next message takes, sent again if it is lost."""
        seconds = self._delay_seconds * (1.0 + self._jitter_ratio * self._random())
        loss_ratio = self._network.loss_ratio
        if loss_ratio:
            while self._random() < loss_ratio:
                seconds += self._network.config.resend_seconds
        return seconds

    def _send(self, call: Call, exchange: Exchange, attempt: Attempt) -> None:
        address = attempt.view.backend.address
        machine = self.fleet.machines_by_address[address]
        now = self._events.now
        # What earns retries, and what they cost, is settled when an attempt is begun.  One that
        # could not be sent is the same elsewhere.
        if call.job is None or call.job.outcome is not _NOT_SENT:
            call.attempts += 1
            self._checkers.sent(self.name, call.attempts, attempt.number, now)
            if call.job is None or (call.job.outcome and call.job.outcome.is_rejection):
                self._checkers.order.sent(self.name, attempt, call.asked, now)
        elif attempt.number != call.attempts:
            what = f"{self.name} calls attempt {call.attempts} its {attempt.number}. elsewhere"
            self._checkers.violated("attempts", what)
        if machine.lame_duck_since < now:
            self._lame_ducks.sent(machine, now)
        job = call.job = Job(call, attempt, machine)
        if address not in self._open:
            self._connect()  # On demand.
        is_open = self._open.get(address)
        if is_open:
            self._dispatch(job)
        elif is_open is None:
            job.outcome = _NOT_SENT
            self._events.after(0.0, job.come_back)
        else:
            job.is_parked = True
            self._parked.setdefault(address, []).append(job)
            self._wait(job, exchange, exchange.connect())

    def _wait(self, job: Job, exchange: Exchange, wait: Connect) -> None:
        """Look again for another connection when patience ends."""
        self._events.at(wait.until, partial(self._waited, job, exchange))

    def _waited(self, job: Job, exchange: Exchange) -> None:
        if job.call.job is not job or not job.is_parked:
            return  # It was dispatched, or given up.
        step = exchange.waited()
        if isinstance(step, Connect):
            self._wait(job, exchange, step)
        else:
            job.is_parked = False
            job.outcome = _NOT_SENT
            self._moved_on(job, exchange, step)

    def _dispatch(self, job: Job) -> None:
        """Put an attempt on its way."""
        if self.fleet.is_lowest:
            self._recorder.second.attempts += 1
        self._events.after(self.delay(), job.reach)

    def came_back(self, job: Job) -> None:
        """Receive a response, unless the call was given up meanwhile."""
        call = job.call
        exchange = call.exchange
        outcome = job.outcome
        if call.job is not job or outcome is None or exchange is None:
            return
        if outcome is _NOT_SENT:
            self._moved_on(job, exchange, exchange.not_sent())
        elif self._passes(job.machine):
            if job.report is not None:
                self._record(job.machine, job.report)
            if outcome.is_rejection:
                self._recorder.second.rejected += 1
            self._moved_on(job, exchange, exchange.ended(outcome))

    def _moved_on(self, job: Job, exchange: Exchange, step: Step) -> None:
        """Do what is to be done after an attempt."""
        call = job.call
        self._connect()
        if job.outcome is _NOT_SENT and call.attempts > 1 and not isinstance(step, Attempt):
            self._checkers.never_sent(self.name)
        self._go_on(call, exchange, step)
        if self._requests.parked:
            self._follow_up()

    def heard(self, backend: Backend, report: LoadReport) -> None:
        """Receive what a backend says unasked, if it gets through."""
        machine = self.fleet.machines_by_address[backend.address]
        if self._passes(machine):
            self._record(machine, report)
            self._follow_up()

    def connected(self, machine: Machine, event: ConnectionEvent) -> None:
        """Receive what became of a connection."""
        address = machine.backend.address
        if event is ConnectionEvent.OPENED:
            if self._open.get(address) is not False or not self._passes(machine):
                return  # It was given up, or the last message is lost.
            self._open[address] = True
            self._recorder.second.connections += 1
        elif event is ConnectionEvent.LOST and not self._open.get(address):
            return  # It was replaced or closed.
        elif self._open.pop(address, None) is None:
            return
        self.task.record_connection(machine.backend, event)
        for job in self._parked.pop(address, ()):
            exchange = job.call.exchange
            if job.call.job is not job or not job.is_parked or exchange is None:
                continue  # It was given up, or has gone elsewhere.
            job.is_parked = False
            if event is ConnectionEvent.OPENED:
                exchange.connected()
                self._dispatch(job)
            else:
                job.outcome = _NOT_SENT
                self.came_back(job)
        self._follow_up()
        self._schedule_wake()

    def _record(self, machine: Machine, report: LoadReport, *, is_probe: bool = False) -> None:
        if report.lame_duck:
            self._lame_ducks.heard(machine, report)
        self.task.record_report(machine.backend, report, is_probe=is_probe)

    def _passes(self, machine: Machine) -> bool:
        network = self._network
        return not network.is_cut or network.passes(self.index, machine.backend.address)

    def _connect(self) -> None:
        """Do what the task says about connections."""
        connections = self.task.take_connections()
        for backend in connections.close:
            self._open.pop(backend.address, None)
            self.fleet.machines_by_address[backend.address].disconnect(self)
        for backend in connections.open:
            if self.is_retired:
                return
            machine = self.fleet.machines_by_address[backend.address]
            machine.disconnect(self)  # One that is silent is replaced.
            self._open[backend.address] = False
            if self._passes(machine):
                self._events.after(self.delay(), partial(machine.connect, self))
            tries = self._tries[backend.address] = self._tries.get(backend.address, 0) + 1
            give_up = partial(self._give_up_connecting, machine, tries)
            self._events.after(_CONNECT_SECONDS, give_up)

    def _follow_up(self) -> None:
        """Do what the task says, and begin what waits for a backend, until one has to wait on."""
        self._connect()
        for _ in range(self._requests.parked):
            found = self._requests.next_parked()
            self._probe(self.task.take_probes())
            if found is None:
                return
            exchange, step = found
            if exchange.on_step is not None:
                exchange.on_step(step)

    def _give_up_connecting(self, machine: Machine, tries: int) -> None:
        address = machine.backend.address
        if self._open.get(address) is False and self._tries[address] == tries:
            self.connected(machine, ConnectionEvent.REFUSED)

    # Probes, health checks and other periodic work.

    def _probe(self, backends: Iterable[Backend]) -> None:
        for backend in backends:
            self._send_probe(backend, None)

    def _send_probe(self, backend: Backend, wait: Wait | None) -> None:
        self._recorder.second.probes += 1
        network = self._network
        machine = self.fleet.machines_by_address[backend.address]
        is_lost = network.loss_ratio and self._random() < network.loss_ratio
        if not is_lost and self._passes(machine):
            probe = Probe(self, machine, wait)
            self._events.after(self.probe_delay(), probe.reach)

    def probe_delay(self) -> float:
        """Return how long a datagram takes, if it is not lost."""
        return self._delay_seconds * (1.0 + self._jitter_ratio * self._random())

    def answer_probe(self, probe: Probe) -> None:
        """Let a backend's answer to a probe travel back."""
        loss_ratio = self._network.loss_ratio
        if not loss_ratio or self._random() >= loss_ratio:
            self._events.after(self.probe_delay(), probe.come_back)

    def probe_came_back(self, probe: Probe) -> None:
        """Receive the answer to a probe."""
        if probe.report is not None and self._passes(probe.machine):
            self._record(probe.machine, probe.report, is_probe=True)
            self._follow_up()
            if probe.wait is not None:
                probe.wait.answered()

    def _wake(self) -> None:
        task = self.task
        if self.is_retired or self._events.now < self._wake_at:
            return  # A later one is due, because an earlier one became so in between.
        task.wake()
        self._follow_up()
        self._probe(task.take_probes())
        self._wake_at = math.inf
        self._schedule_wake()

    def _schedule_wake(self) -> None:
        at = max(self.task.next_wake_at(), self._events.now + 0.001)
        if at < self._wake_at:
            self._wake_at = at
            self._events.at(at, self._wake)

    # Deadlines.  They are in the order in which the calls began, or nearly so in a stack of
    # services; hence one timer, for the first that is not over, is enough.

    def _watch(self, call: Call, deadline_at: float) -> None:
        calls = self._calls
        while calls and calls[0].is_over:
            calls.popleft()
        calls.append(call)
        if self._sweep_at is None:
            self._sweep_at = deadline_at
            self._events.at(deadline_at, self._sweep)

    def _sweep(self) -> None:
        now = self._events.now
        calls = self._calls
        self._sweep_at = None
        while calls:
            call = calls[0]
            deadline_at = call.request.deadline_at
            if not call.is_over and deadline_at is not None and deadline_at > now:
                self._sweep_at = deadline_at
                self._events.at(deadline_at, self._sweep)
                return
            calls.popleft()
            if not call.is_over:
                self._expire(call)

    def _expire(self, call: Call) -> None:
        job, call.job = call.job, None
        if call.exchange is not None:
            call.exchange.expire()
        if job is not None and job.is_parked and call.attempts > 1:
            self._checkers.never_sent(self.name)
        self._end(call, Outcome.TIMEOUT)
