"""Balancers that know everything, at once and for nothing: the limit that no real one can reach.

They see the queues of all backends, of no subset, and the cost of every request before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from heapq import heapify, heapreplace
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.costs import cost_drawer
from evenly.lab.sim.fault_config import StallFault
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.job import Call, Job
from evenly.lab.sim.machine import Machine

__all__ = ["EarliestCompletion", "LeastCpu", "OmniscientClient", "Oracle"]

# Over which the CPU that `LeastCpu` evens out is averaged.
_CPU_SECONDS = 10.0
# exp() overflows at 709.
_MOST_EXPONENT = 300.0


class Oracle(Protocol):
    """Choose among all backends, knowing their state."""

    def pick(self, cost_seconds: float, now: float) -> Machine | None:
        """Return where a request of this cost is to go, and count on it."""

    def changed(self, machine: Machine) -> None:
        """See a machine's speed or process change."""


class _Schedule:
    """Know when each machine has a free core: the queue is first come first served."""

    def __init__(self, fleet: Fleet) -> None:
        self.machines = fleet.machines
        self._place = {machine: place for place, machine in enumerate(self.machines)}
        self._cores: list[list[float]] = [[] for _ in self.machines]
        self.free_at: npt.NDArray[np.float64] = np.zeros(len(self.machines))
        self.slowness: npt.NDArray[np.float64] = np.ones(len(self.machines))
        for machine in self.machines:
            self.changed(machine)

    def changed(self, machine: Machine) -> None:
        place = self._place[machine]
        process = machine.process
        if process is None or process.is_stalled or process.fails_fast or not machine.is_healthy:
            self.free_at[place] = math.inf
            self._cores[place] = []
            return
        cores = process.cores_free_at()
        heapify(cores)
        self._cores[place] = cores
        self.free_at[place] = cores[0]
        self.slowness[place] = 1.0 / machine.speed

    def take(self, place: int, cost_seconds: float, now: float) -> Machine | None:
        cores = self._cores[place]
        if not cores:
            return None  # Nobody is healthy.
        begins_at = max(now, cores[0])
        heapreplace(cores, begins_at + cost_seconds * float(self.slowness[place]))
        self.free_at[place] = cores[0]
        return self.machines[place]


@final
class EarliestCompletion:
    """Send each request where it will be completed first."""

    def __init__(self, fleet: Fleet) -> None:
        self._schedule = _Schedule(fleet)

    def changed(self, machine: Machine) -> None:
        """See a machine's speed or process change."""
        self._schedule.changed(machine)

    def pick(self, cost_seconds: float, now: float) -> Machine | None:
        """Return the machine that completes it first, by begin and by speed."""
        schedule = self._schedule
        done_at = np.maximum(schedule.free_at, now) + cost_seconds * schedule.slowness
        return schedule.take(int(done_at.argmin()), cost_seconds, now)


@final
class LeastCpu:
    """Send each request to the least used of the backends that can begin at once."""

    def __init__(self, fleet: Fleet) -> None:
        self._schedule = _Schedule(fleet)
        self._used: npt.NDArray[np.float64] = np.zeros(len(fleet.machines))
        self._since = 0.0

    def changed(self, machine: Machine) -> None:
        """See a machine's speed or process change."""
        self._schedule.changed(machine)

    def pick(self, cost_seconds: float, now: float) -> Machine | None:
        """Return the least used machine with a free core, or the one that has a core first."""
        schedule = self._schedule
        # Rather than let all averages decay, later use counts for more.
        exponent = (now - self._since) / _CPU_SECONDS
        if exponent > _MOST_EXPONENT:
            self._used *= math.exp(-exponent)
            self._since = now
            exponent = 0.0
        is_free = schedule.free_at <= now
        if is_free.any():
            place = int(np.where(is_free, self._used, math.inf).argmin())
        else:
            place = int(schedule.free_at.argmin())
        self._used[place] += cost_seconds * float(schedule.slowness[place]) * math.exp(exponent)
        return schedule.take(place, cost_seconds, now)


@final
class OmniscientClient:
    """Send as an oracle says: no subset, no throttle, no retries, no connections."""

    def __init__(self, fleet: Fleet, index: int, name: str, *, oracle: Oracle) -> None:
        stage = fleet.stage
        self.index = -1  # Nobody's: no partition lies between it and a backend.
        self.name = name
        self._stage = stage
        self._oracle = oracle
        self._random = stage.rng(name).random
        self._delay_seconds = fleet.delay_seconds(index)
        self._draw_cost = cost_drawer(fleet.config.cost, stage.rng(f"{name}/costs"))
        # Everyone else answers, if late; a timer for each request is dear.
        self._has_stalls = any(isinstance(fault, StallFault) for fault in stage.scenario.faults)

    def start(self) -> None:
        """Do nothing: all is known."""

    def retire(self) -> None:
        """Do nothing: it holds nothing."""

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request to the best backend there is."""
        stage = self._stage
        now = stage.events.now
        cost = self._draw_cost()
        call = Call(self, request, cost, on_end, begun_at=now, second=stage.recorder.second)
        stage.checkers.begun()
        machine = self._oracle.pick(cost, now)
        if machine is None:
            self._end(call, Reason.NO_BACKEND)
            return
        if self._has_stalls and request.deadline_at is not None:
            stage.events.at(request.deadline_at, partial(self._expire, call))
        stage.recorder.second.attempts += 1
        job = call.job = Job(call, None, machine)
        stage.events.after(self.delay(), job.reach)

    def delay(self) -> float:
        """Return how long the next message takes."""
        jitter_ratio = self._stage.scenario.network.jitter_ratio
        return self._delay_seconds * (1.0 + jitter_ratio * self._random())

    def came_back(self, job: Job) -> None:
        """Receive a response."""
        if job.outcome is not None and not job.call.is_over:
            deadline_at = job.call.request.deadline_at
            is_late = deadline_at is not None and deadline_at < self._stage.events.now
            self._end(job.call, Outcome.TIMEOUT if is_late else job.outcome)

    def heard(self, backend: Backend, report: LoadReport) -> None:
        """Ignore what is known already."""

    def connected(self, machine: Machine, event: ConnectionEvent) -> None:
        """Ignore connections: there are none."""

    def _expire(self, call: Call) -> None:
        if not call.is_over:
            self._end(call, Outcome.TIMEOUT)

    def _end(self, call: Call, end: Outcome | Reason) -> None:
        self._stage.checkers.ended(self._stage.events.now, twice=call.is_over)
        call.is_over = True
        call.on_end(call, end)
