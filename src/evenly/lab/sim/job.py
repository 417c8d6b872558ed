"""A request on its way through the simulated world: the call, and its attempts at backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from evenly.core.attempt import Attempt
from evenly.core.backend_task import Admission
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.exchange import Exchange
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.order import Asked
from evenly.lab.sim.recorder import Second

if TYPE_CHECKING:  # A job knows where it is; where it is imports jobs.
    from evenly.lab.sim.machine import Machine
    from evenly.lab.sim.process import Process

__all__ = ["Accept", "Call", "Caller", "Job"]


class Caller(Protocol):
    """Be the client's end of a connection, as a backend sees it."""

    index: int

    def delay(self) -> float:
        """Return how long the next message between the two takes."""

    def came_back(self, job: Job) -> None:
        """Receive a response, or the news that there will be none."""

    def heard(self, backend: Backend, report: LoadReport) -> None:
        """Receive what a backend says unasked."""

    def connected(self, machine: Machine, event: ConnectionEvent) -> None:
        """Receive what became of a connection."""


@final
class Call:
    """Be one request, from the call site's begin to its end."""

    __slots__ = (
        "asked",
        "attempts",
        "begun_at",
        "caller",
        "cost_seconds",
        "exchange",
        "is_over",
        "job",
        "on_end",
        "request",
        "second",
    )

    def __init__(
        self,
        caller: Caller,
        request: Request,
        cost_seconds: float,
        on_end: Callable[[Call, Outcome | Reason], None],
        *,
        begun_at: float,
        second: Second,
    ) -> None:
        self.caller = caller
        self.request = request
        self.cost_seconds = cost_seconds
        self.on_end = on_end
        self.begun_at = begun_at
        self.second = second
        self.attempts = 0
        """How many were begun; one that could not be sent is the same elsewhere."""
        self.asked: Asked | None = None
        """What was asked before it was sent."""
        self.exchange: Exchange | None = None
        """What decides about it; `None` where an oracle does."""
        self.job: Job | None = None
        """The attempt under way."""
        self.is_over = False


@final
class Job:
    """Be one attempt at one backend: what the network carries and a CPU works on."""

    __slots__ = (
        "admission",
        "attempt",
        "call",
        "cpu_seconds",
        "ends_at",
        "is_parked",
        "is_second_half",
        "left_seconds",
        "line",
        "machine",
        "number",
        "outcome",
        "process",
        "report",
        "started_at",
    )

    def __init__(self, call: Call, attempt: Attempt | None, machine: Machine) -> None:
        self.call = call
        self.attempt = attempt
        self.machine = machine
        self.number = 1 if attempt is None else attempt.number
        self.line = 0.0 if attempt is None else attempt.line
        self.outcome: Outcome | None = None
        self.report: LoadReport | None = None
        self.process: Process | None = None
        self.admission: Admission | None = None
        self.is_parked = False
        """Whether it waits for its connection."""
        self.is_second_half = False
        self.left_seconds = 0.0
        """CPU seconds at speed 1 that this turn on a CPU needs."""
        self.cpu_seconds = 0.0
        """CPU time used."""
        self.started_at = 0.0
        self.ends_at = 0.0

    def reach(self) -> None:
        """Arrive at the backend's machine."""
        self.machine.receive(self)

    def finish_turn(self) -> None:
        """End a turn on a CPU."""
        if self.process is not None:
            self.process.finish_turn(self)

    def resume(self) -> None:
        """Come back from waiting for something else than a CPU."""
        if self.process is not None:
            self.process.resume(self)

    def come_back(self) -> None:
        """Arrive at the client task."""
        self.call.caller.came_back(self)


@final
class Accept:
    """Be one connection that a backend is about to accept."""

    __slots__ = ("caller", "cpu_seconds", "ends_at", "left_seconds", "process", "started_at")

    def __init__(self, caller: Caller, process: Process, seconds: float) -> None:
        self.caller = caller
        self.process = process
        self.left_seconds = seconds
        self.cpu_seconds = 0.0
        self.started_at = 0.0
        self.ends_at = 0.0

    def finish_turn(self) -> None:
        """End the turn on a CPU that accepting takes."""
        self.process.finish_turn(self)
