"""One process of a backend: cores behind one queue, and the `BackendTask` that decides."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapreplace
from typing import TYPE_CHECKING, Protocol, final

from evenly.core.backend_task import BackendTask
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.lab.sim.events import Events
from evenly.lab.sim.job import Accept, Call, Caller, Job

if TYPE_CHECKING:
    from evenly.lab.sim.machine import Machine

__all__ = ["Below", "Process"]

_RUNNABLE = "runnable"


class Below(Protocol):
    """Be the client task that a process has for the service below it."""

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request to the service below."""

    def retire(self) -> None:
        """Stop: the process is gone."""


@final
class Process:
    """Serve requests with `cores` CPUs, first come first served.

    Refusals and new connections go before the queue: a process makes them while it reads its
    sockets, before any handler gets its turn.
    """

    def __init__(
        self,
        machine: Machine,
        task: BackendTask,
        *,
        events: Events,
        speed: float,
        below: Below | None,
    ) -> None:
        config = machine.config
        self.machine = machine
        self.task = task
        self.below = below
        self.clients: dict[Caller, float] = {}
        """Who is connected, and when it hears, or heard, of it."""
        self.is_dead = False
        self.fails_fast = False
        self._events = events
        self._order = machine.stage.checkers.order
        self._config = config
        self._cores = config.cores
        self._mean_seconds = config.cost.mean_seconds
        self._has_middle = config.io_seconds > 0.0 or below is not None
        self._speed = speed
        self._busy = 0
        self._busy_seconds = 0.0
        self._counted_at = events.now
        self._queue: deque[Job] = deque()
        self._urgent: deque[Job | Accept] = deque()
        self._urgent_seconds = 0.0
        self._accepts = 0
        self._overhead_seconds = 0.0  # Answering probes, to be added to whatever runs next.
        self._running: dict[Job | Accept, None] = {}
        self._away: dict[Job, None] = {}
        self._inbox: list[Job | Accept] | None = None  # What comes in while it is stopped.
        self._deferred: list[Callable[[], None]] = []  # What it does when it goes on.

    @property
    def is_stalled(self) -> bool:
        """Whether it is stopped, by SIGSTOP."""
        return self._inbox is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in it."""
        return not (self._running or self._queue or self._urgent or self._away)

    @property
    def admitted(self) -> int:
        """How many requests are in it that were admitted."""
        inside = (*self._running, *self._urgent, *self._queue, *self._away)
        return sum(isinstance(work, Job) and work.admission is not None for work in inside)

    def busy_seconds(self) -> float:
        """Return the CPU time used so far, on all cores."""
        now = self._events.now
        if self._inbox is None:  # A process that is stopped uses no CPU.
            self._busy_seconds += self._busy * (now - self._counted_at)
        self._counted_at = now
        return self._busy_seconds

    def cores_free_at(self) -> list[float]:
        """Return when each core will be free, if nothing more comes in: what an oracle knows."""
        free = sorted(work.ends_at for work in self._running)
        free = [self._events.now] * (self._cores - len(free)) + free
        for work in (*self._urgent, *self._queue):
            heapreplace(free, free[0] + work.left_seconds / self._speed)
        return free

    # What comes in.

    def receive(self, job: Job) -> None:
        """Take a request off the network, and admit it or not."""
        if self._inbox is not None:
            self._inbox.append(job)
            return
        job.process = self
        request = job.call.request
        decision = self.task.admit(request, job.number, line=job.line)
        self._order.decided(
            self.machine.backend.address, self.task, request, decision, self._events.now
        )
        if isinstance(decision, Rejection):
            job.outcome = decision.outcome
            self._put_first(job, self._config.reject_cost_ratio * self._mean_seconds)
        elif self.fails_fast:
            job.admission = decision
            job.outcome = Outcome.ERROR
            self._put_first(job, self._config.error_cost_ratio * self._mean_seconds)
        else:
            job.admission = decision
            cost = job.call.cost_seconds
            job.left_seconds = 0.5 * cost if self._has_middle else cost
            self._queue.append(job)
        self._work()

    def accept(self, caller: Caller) -> None:
        """Accept a connection, or refuse it when too many wait."""
        if self._accepts >= self._config.accept_backlog:
            report = partial(caller.connected, self.machine, ConnectionEvent.REFUSED)
            self._events.after(caller.delay(), report)
            return
        self._accepts += 1
        accept = Accept(caller, self, self._config.connect_cost_seconds)
        if self._inbox is not None:
            self._inbox.append(accept)
        else:
            self._put_first(accept, accept.left_seconds)
            self._work()

    def answer_probe(self) -> LoadReport | None:
        """Answer a probe, unless the process is stopped."""
        if self._inbox is not None:
            return None
        self._overhead_seconds += self._config.probe_cost_seconds
        return self.task.report()

    # What happens on the CPUs.

    def finish_turn(self, work: Job | Accept) -> None:
        """End a turn on a CPU, unless it was put off or the process is gone."""
        now = self._events.now
        if work not in self._running or self.is_dead:
            return
        if now < work.ends_at:
            if work.ends_at < math.inf:
                self._events.at(work.ends_at, work.finish_turn)
            return
        self._busy_seconds += self._busy * (now - self._counted_at)
        self._counted_at = now
        self._busy -= 1
        del self._running[work]
        if isinstance(work, Accept):
            self._open(work)
            self._work()
            return
        work.cpu_seconds += now - work.started_at
        is_over = self._take_next_step(work)
        self._work()
        if is_over:
            self._answer(work)

    def resume(self, job: Job) -> None:
        """Put a request that waited elsewhere back into the queue, for its second half."""
        if self.is_dead or job not in self._away:
            return
        del self._away[job]
        job.is_second_half = True
        job.left_seconds = 0.5 * job.call.cost_seconds
        self._queue.append(job)
        self._work()

    def set_speed(self, speed: float) -> None:
        """Go on faster or slower, with what is running too; 0 is stopped."""
        now = self._events.now
        for work in self._running:
            left = work.left_seconds
            if self._speed > 0.0:
                left = (work.ends_at - now) * self._speed
            work.left_seconds = left
            work.ends_at = now + left / speed if speed > 0.0 else math.inf
            if speed > 0.0:
                self._events.at(work.ends_at, work.finish_turn)
        self._speed = speed

    def stall(self) -> None:
        """Stop, as by SIGSTOP: the kernel keeps what comes in."""
        if self._inbox is None:
            self.busy_seconds()
            for work in self._running:
                work.cpu_seconds += self._events.now - work.started_at
            self._inbox = []
            self.set_speed(0.0)

    def go_on(self, speed: float) -> None:
        """Go on, as by SIGCONT."""
        inbox = self._inbox
        if inbox is None:
            return
        self.busy_seconds()
        for work in self._running:
            work.started_at = self._events.now
        self._inbox = None
        self.set_speed(speed)
        for work in inbox:
            if isinstance(work, Job):
                self.receive(work)
            else:
                self._put_first(work, work.left_seconds)
        self._work()
        deferred, self._deferred = self._deferred, []
        for action in deferred:  # Last, since it may be to exit.
            action()

    def when_running(self, action: Callable[[], None]) -> None:
        """Have the process do something: at once, or when it goes on."""
        if self._inbox is None:
            action()
        else:
            self._deferred.append(action)

    def die(self) -> None:
        """Be gone: what is in it is lost, and connections break."""
        self.busy_seconds()
        self.is_dead = True
        self._busy = 0
        events = self._events
        inbox = self._inbox or ()
        for work in (*self._running, *self._urgent, *self._queue, *self._away, *inbox):
            if isinstance(work, Job):
                work.outcome = Outcome.LOST
                work.report = None
                events.after(work.call.caller.delay(), work.come_back)
            else:
                refused = partial(work.caller.connected, self.machine, ConnectionEvent.REFUSED)
                events.after(work.caller.delay(), refused)
        for client, heard_at in self.clients.items():
            lost = partial(client.connected, self.machine, ConnectionEvent.LOST)
            # A connection's messages do not overtake one another.
            events.at(max(heard_at, events.now + client.delay()), lost)
        if self.below is not None:
            self.below.retire()

    def tell(self) -> LoadReport:
        """Tell everyone who is connected what state this is in; return what was said."""
        report = self.task.report()
        for client in self.clients:
            heard = partial(client.heard, self.machine.backend, report)
            self._events.after(client.delay(), heard)
        return report

    def _put_first(self, work: Job | Accept, seconds: float) -> None:
        work.left_seconds = seconds
        self._urgent.append(work)
        self._urgent_seconds += seconds

    def _work(self) -> None:
        """Put what waits on free CPUs, and say how many are runnable."""
        events = self._events
        queue = self._queue
        if self._inbox is None:
            now = events.now
            while self._busy < self._cores and (queue or self._urgent):
                work: Job | Accept
                if self._urgent:
                    work = self._urgent.popleft()
                    self._urgent_seconds -= work.left_seconds
                else:
                    work = queue.popleft()
                self._busy_seconds += self._busy * (now - self._counted_at)
                self._counted_at = now
                self._busy += 1
                work.left_seconds += self._overhead_seconds
                self._overhead_seconds = 0.0
                work.started_at = now
                work.ends_at = now + work.left_seconds / self._speed
                self._running[work] = None
                events.at(work.ends_at, work.finish_turn)
        waiting = len(queue) + (self._urgent_seconds / self._mean_seconds if self._urgent else 0)
        self.task.record_signal(_RUNNABLE, self._busy + waiting)

    def _take_next_step(self, job: Job) -> bool:
        """Let a request go on after a turn; return whether it is over."""
        if job.admission is None:
            return True  # It was rejected, and that was the work.
        if job.outcome is None and self._has_middle and not job.is_second_half:
            self._away[job] = None
            if self.below is not None:
                # With the luck that it was admitted with.
                self.below.issue(job.admission.request, partial(self._came_from_below, job))
            else:
                self._events.after(self.machine.draw_io_seconds(), job.resume)
            return False
        if job.outcome is None:
            job.outcome = Outcome.OK
        job.admission.finish(job.outcome, job.cpu_seconds)
        return True

    def _came_from_below(self, job: Job, _call: Call, end: Outcome | Reason) -> None:
        """Go on with what came back from the service below."""
        self.when_running(partial(self._go_on_with, job, end))

    def _go_on_with(self, job: Job, end: Outcome | Reason) -> None:
        if self.is_dead or job not in self._away:
            return
        if end is Outcome.OK:
            self.resume(job)
            return
        del self._away[job]
        assert job.admission is not None  # noqa: S101  Only admitted requests go below.
        if isinstance(end, Reason) or end.is_rejection:
            # "Overloaded; don't retry", whatever was said below.
            job.outcome = self.task.pass_on(job.admission, job.cpu_seconds).outcome
        else:
            job.outcome = end if end is Outcome.TIMEOUT else Outcome.ERROR
            job.admission.finish(job.outcome, job.cpu_seconds)
        job.admission = None  # Saying no costs what any refusal does.
        self._put_first(job, self._config.reject_cost_ratio * self._mean_seconds)
        self._work()

    def _answer(self, job: Job) -> None:
        job.report = self.task.report()
        job.process = None
        self.machine.left(self)
        self._events.after(job.call.caller.delay(), job.come_back)

    def _open(self, accept: Accept) -> None:
        self._accepts -= 1
        caller = accept.caller
        after = self._events.after
        seconds = caller.delay()
        self.clients[caller] = self._events.now + seconds
        after(seconds, partial(caller.connected, self.machine, ConnectionEvent.OPENED))
        # A new connection begins with the backend's state, as grpc.health.v1 Watch does.
        after(seconds, partial(caller.heard, self.machine.backend, self.task.report()))
