"""A stage for one part alone: machines without client tasks, and a caller that writes down."""

from __future__ import annotations

from typing import final

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.overload.utilization import UtilizationConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.job import Call, Job
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.stage import Stage

SEED = 7
# A backend then refuses nothing but what has expired.
NEVER_SHEDS = BackendTaskConfig(limits_queue=False, utilization=UtilizationConfig(signals={}))


@final
class Listener:
    """Be a client's end of a connection, at a fixed distance."""

    def __init__(self, stage: Stage, *, delay_seconds: float = 0.0, index: int = 0) -> None:
        self.index = index
        self.answers: list[tuple[float, Job]] = []
        self.connections: list[tuple[float, ConnectionEvent]] = []
        self.reports: list[tuple[float, LoadReport]] = []
        self._stage = stage
        self._delay_seconds = delay_seconds

    def delay(self) -> float:
        return self._delay_seconds

    def came_back(self, job: Job) -> None:
        self.answers.append((self._stage.events.now, job))

    def heard(self, backend: Backend, report: LoadReport) -> None:
        self.reports.append((self._stage.events.now, report))

    def connected(self, machine: Machine, event: ConnectionEvent) -> None:
        self.connections.append((self._stage.events.now, event))

    def send(
        self,
        machine: Machine,
        cost_seconds: float,
        *,
        at: float = 0.0,
        request: Request | None = None,
    ) -> Job:
        """Let a request arrive at an instant; return its attempt."""
        stage = self._stage
        call = Call(
            self,
            request or Request(),
            cost_seconds,
            _nobody_waits,
            begun_at=at,
            second=stage.recorder.second,
        )
        job = Job(call, None, machine)
        stage.events.at(at, job.reach)
        return job

    def ends(self) -> dict[Job, float]:
        """Return when each request was answered."""
        return {job: at for at, job in self.answers}

    def outcomes(self) -> list[tuple[float, Outcome | None]]:
        return [(at, job.outcome) for at, job in self.answers]


def _nobody_waits(_call: Call, _end: Outcome | Reason) -> None:
    """Do nothing about the end of a request."""


def new_stage(backend_task: BackendTaskConfig = NEVER_SHEDS) -> Stage:
    return Stage(Scenario(title="small", backend_task=backend_task), SEED)


def new_machine(
    stage: Stage, config: ServiceConfig, *, speed: float = 1.0, index: int = 0
) -> Machine:
    """Return a machine whose process is up and warm."""
    backend = Backend(f"backend-{index}", index)
    machine = Machine(stage, config, backend, speed=speed, make_below=None)
    machine.start(is_warm=True)
    return machine
