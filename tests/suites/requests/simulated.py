"""The simulator: its client task, and its machines, which do what the script says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from evenly.core.balancing.membership import MembershipConfig
from evenly.core.exchange import Requests
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.client import Client
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.job import Call, Job
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.scenario import ClientsConfig, NetworkConfig, Scenario
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.stage import Stage
from tests.suites.requests.script import Act, Script, What, what_of
from tests.suites.requests.world import Sent, Setup
from tests.suites.requests.world import World as AnyWorld

_OUTCOMES = {
    Act.OK: Outcome.OK,
    Act.ERROR: Outcome.ERROR,
    Act.OVERLOADED: Outcome.OVERLOADED,
    Act.DONT_RETRY: Outcome.DONT_RETRY,
    Act.OUT_OF_QUOTA: Outcome.OUT_OF_QUOTA,
    Act.DIE: Outcome.LOST,
}
_PATIENCE_SECONDS = 60.0
_NEVER = 86_400.0


class Backend:
    """A machine whose requests the script answers."""

    def __init__(self, machine: Machine, script: Script) -> None:
        self.machine = machine
        self._script = script
        machine.receive = self._receive  # type: ignore[method-assign]

    @property
    def address(self) -> str:
        return self.machine.backend.address

    async def start(self) -> None:
        self.machine.start(is_warm=True)

    async def stop(self) -> None:
        self.machine.crash()

    def _receive(self, job: Job) -> None:
        if self.machine.process is None:
            self._act(job, Act.DIE)
            return
        act = self._script.arrive(self.address, job.call.request.customer)
        if act is Act.HOLD:
            self._script.hold(partial(self._act, job))
        else:
            self._act(job, act)

    def _act(self, job: Job, act: Act) -> None:
        if act is Act.DIE:
            self.machine.crash()
        if act is Act.DONT_RETRY and self.machine.process is not None:
            job.report = replace(self.machine.process.task.report(), cut=4.0)  # It says so.
        job.outcome = _OUTCOMES[act]
        self.machine.stage.events.after(job.call.caller.delay(), job.come_back)


class SentCall:
    """A request whose end the simulator tells."""

    def __init__(self) -> None:
        self.what: What | None = None

    def ended(self, _call: Call, end: Outcome | Reason) -> None:
        assert self.what is None
        self.what = what_of(end)

    def cancel(self) -> None:
        raise NotImplementedError


class World(AnyWorld):
    """The simulator."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        scenario = Scenario(
            title="requests",
            clients=ClientsConfig(count=1, start_seconds=0.0),
            backends=ServiceConfig(
                count=setup.backends + setup.has_mute,
                cost=RequestCostConfig(mean_seconds=0.001),
                down_seconds=_NEVER,  # Until it is started.
            ),
            network=NetworkConfig(delay_seconds=0.001, jitter_ratio=0.0),
            client_task=replace(
                setup.task,
                membership=MembershipConfig(health=setup.config().task.membership.health),
            ),
        )
        self._stage = stage = Stage(scenario, 1, self.counts)
        self._fleet = fleet = Fleet(
            stage,
            scenario.backends,
            name="backend",
            is_lowest=True,
            delay_seconds=lambda _client: 0.001,
            make_below=None,
        )
        policy = "probing" if setup.asks else "weighted_least_loaded"
        self._client = Client(fleet, 0, "client", policy=policy)
        for machine in fleet.machines:
            machine.answers_probes = False
            machine.start(is_warm=True)
        scripted = fleet.machines[: setup.backends]
        self._scripted = [Backend(machine, self.script) for machine in scripted]
        self.backends = list(self._scripted)
        if setup.has_mute:
            self.mute = fleet.machines[-1].backend.address
            stage.network.cut(0, self.mute)

    async def __aenter__(self) -> Self:
        self._fleet.backends = []
        self._client.start()
        if self.setup.is_listed:
            self.say(*self.addresses)
            await self.connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stage.checkers.violations() == ()

    @property
    def requests(self) -> Requests:
        return self._client._requests

    def say(self, *addresses: str) -> None:
        machines = self._fleet.machines_by_address
        self.task.update([machines[address].backend for address in addresses])
        self._client._connect()
        self._client._schedule_wake()

    def send(
        self,
        name: str = "",
        *,
        is_idempotent: bool = False,
        is_patient: bool = False,
        seconds: float | None = None,
        is_stream: bool = False,
    ) -> Sent:
        assert not is_stream
        # A scenario has patience or not; whom it belongs to is named as the customer.
        self._client._is_patient = is_patient
        deadline_at = None if seconds is None else self._stage.events.now + seconds
        sent = SentCall()
        request = Request(customer=name, deadline_at=deadline_at, idempotent=is_idempotent)
        self._client.issue(request, sent.ended)
        return sent

    async def until(self, condition: Callable[[], object]) -> None:
        events = self._stage.events
        while not condition():
            assert events.now < _PATIENCE_SECONDS
            events.run(events._heap[0][0])

    async def close(self) -> None:
        raise NotImplementedError
