"""Build everyone in a scenario's world, and let time pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, final

from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.client import Client
from evenly.lab.sim.cpu_samples import CpuSamples
from evenly.lab.sim.datacenters import Datacenters, DatacenterSender
from evenly.lab.sim.faults import schedule_fault
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.job import Call
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.omniscient import EarliestCompletion, LeastCpu, OmniscientClient, Oracle
from evenly.lab.sim.process import Process
from evenly.lab.sim.quotas import share_quotas
from evenly.lab.sim.scenario import OMNISCIENT, OMNISCIENT_LEAST_CPU, Scenario
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.source import Mix, Profile, Source
from evenly.lab.sim.stage import Stage
from evenly.lab.sim.success import seldom_senders

__all__ = ["World"]

# After the story, what is under way gets as long to end: a few of the requests' own timeouts.
_DRAIN_TIMEOUTS = 3.0


class _Sender(Protocol):
    def start(self) -> None: ...
    def retire(self) -> None: ...
    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None: ...


@final
class World:
    """Hold one run of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        policy: str,
        load: float,
        seed: int,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.stage = stage = Stage(scenario, seed, observer)
        self._scenario = scenario
        self._policy = policy
        self._clients: list[Client] = []
        self._belows: Counter[tuple[str, int]] = Counter()
        self._machines: dict[str, list[Machine]] = {}
        self._fleets: list[Fleet] = []
        self._tops = self._build_services()
        tops = self._machines[scenario.backends.name]
        self.samples = CpuSamples(stage.events, tops)
        self._datacenters = Datacenters(stage, self._tops) if scenario.datacenters else None
        self._oracle: Oracle | None = None
        for fleet in self._fleets:
            fleet.start()
        if policy in (OMNISCIENT, OMNISCIENT_LEAST_CPU):
            (top,) = self._tops.values()
            kind = EarliestCompletion if policy == OMNISCIENT else LeastCpu
            self._oracle = kind(top)
            for machine in top.machines:
                machine.watcher = self._oracle
        self._mix = Mix(scenario.workload)
        self._sources: list[Source] = []
        self._senders: list[_Sender] = []
        self._starts = 0
        self._start_clients(Profile(scenario, load))
        for fault in scenario.faults:
            schedule_fault(
                stage, fault, self._machines, mix=self._mix, restart_clients=self._restart_clients
            )
        if scenario.backend_task.quota is not None:
            share_quotas(stage, scenario.backend_task.quota, tops)

    @property
    def clients(self) -> Sequence[Client]:
        """Every client task, those of the services in the middle and retired ones too."""
        return self._clients

    @property
    def machines(self) -> Sequence[Machine]:
        """The machines of the topmost service."""
        return self._machines[self._scenario.backends.name]

    def run(self, progress: Callable[[float], None] | None) -> None:
        """Tell the story, let what is under way end, and have the checkers look."""
        events = self.stage.events
        end = self._scenario.total_seconds
        for second in range(1, math.ceil(end) + 1):
            events.run(min(float(second), end))
            if progress is not None:
                progress(events.now / end)
        last = end + _DRAIN_TIMEOUTS * self._scenario.workload.timeout_seconds
        while events.now < last and not self._is_quiet():
            events.run(events.now + 1.0)
        self._check_end()

    def _is_quiet(self) -> bool:
        if self.stage.checkers.open_calls:
            return False
        processes = [m.process for fleet in self._fleets for m in fleet.machines if m.process]
        return all(process.is_idle for process in processes)

    def _check_end(self) -> None:
        actives = [
            (f"{client.name} at {backend.address}", backend.active)
            for client in self._clients
            for backend in client.task.snapshot().backends
        ]
        for fleet in self._fleets:
            for machine in fleet.machines:
                if machine.process is not None:
                    actives += _surplus(machine.backend.address, machine.process)
        self.stage.checkers.finished(actives)

    # Services, from the lowest up.

    def _build_services(self) -> dict[str, Fleet]:
        below: Fleet | None = None
        for service in reversed(self._scenario.below):
            below = self._build_fleet(service, service.name, below)
        top = self._scenario.backends
        shares = self._scenario.datacenters
        if not shares:
            return {"": self._build_fleet(top, top.name, below)}
        tops = {}
        placed = 0
        for place, share in enumerate(shares):
            count = max(1, round(top.count * share.backends_ratio))
            if place == len(shares) - 1:
                count = max(1, top.count - placed)
            placed += count
            config = replace(top, count=count)
            tops[share.name] = self._build_fleet(
                config, f"{top.name}-{share.name}", below, datacenter=share.name
            )
        return tops

    def _build_fleet(
        self, config: ServiceConfig, name: str, below: Fleet | None, datacenter: str = ""
    ) -> Fleet:
        network = self._scenario.network

        def delay_seconds(client: int) -> float:
            is_near = not datacenter or self._origin(client) == datacenter
            return network.delay_seconds if is_near else network.between_seconds

        fleet = Fleet(
            self.stage,
            config,
            name=name,
            is_lowest=below is None,
            delay_seconds=delay_seconds,
            make_below=None if below is None else partial(self._make_below, below, name),
        )
        self._fleets.append(fleet)
        self._machines.setdefault(config.name, []).extend(fleet.machines)
        return fleet

    def _make_below(self, fleet: Fleet, above: str, index: int) -> Client:
        # Numbered by place, so that one more client task elsewhere does not shift its luck.
        self._belows[above, index] += 1
        name = f"{above}-{index}/client-{self._belows[above, index]}"
        client = self._make_client(fleet, index, name)
        self.stage.events.after(0.0, client.start)
        return client

    # Clients.

    def _start_clients(self, profile: Profile) -> None:
        scenario = self._scenario
        events = self.stage.events
        rates = self._rates()
        are_seldom = seldom_senders(rates)
        for index, rate in enumerate(rates):
            name = f"client-{index}"
            sender = self._make_sender(index, name)
            source = Source(
                self.stage,
                sender,
                name=name,
                requests_per_second=rate,
                profile=profile,
                mix=self._mix,
                is_seldom=are_seldom[index],
            )
            self._senders.append(sender)
            self._sources.append(source)
            at = scenario.clients.start_seconds * index / len(rates)
            events.at(at, sender.start)
            events.at(at, source.start)

    def _rates(self) -> list[float]:
        """Return each client's requests per second at load 1."""
        clients = self._scenario.clients
        rng = self.stage.rng("clients")
        weights = [math.exp(clients.rate_sigma * rng.gauss()) for _ in range(clients.count)]
        whole = math.fsum(weights)
        return [self._scenario.capacity * weight / whole for weight in weights]

    def _make_sender(self, index: int, name: str) -> _Sender:
        if self._datacenters is None:
            (top,) = self._tops.values()
            if self._oracle is not None:
                return OmniscientClient(top, index, name, oracle=self._oracle)
            return self._make_client(top, index, name)
        clients = {
            place: self._make_client(fleet, index, f"{name}/{place}")
            for place, fleet in self._tops.items()
        }
        luck = self.stage.rng(name).random()
        return DatacenterSender(self._datacenters, self._origin(index), clients, luck)

    def _make_client(self, fleet: Fleet, index: int, name: str) -> Client:
        is_omniscient = self._policy in (OMNISCIENT, OMNISCIENT_LEAST_CPU)
        policy = self._scenario.client_task.policy.name if is_omniscient else self._policy
        client = Client(fleet, index, name, policy=policy)
        self._clients.append(client)
        return client

    def _origin(self, client: int) -> str:
        """Return a client task's own datacenter: they stand there in blocks."""
        place = (client + 0.5) / self._scenario.clients.count
        for share in self._scenario.datacenters:
            place -= share.clients_ratio
            if place < 0.0:
                return share.name
        return self._scenario.datacenters[-1].name

    def _restart_clients(self, count: int) -> None:
        """Start so many client tasks anew (0: all) at once; the old ones end what they have."""
        self._starts += 1
        for index in range(count or len(self._senders)):
            self._senders[index].retire()
            sender = self._make_sender(index, f"client-{index}/{self._starts}")
            self._senders[index] = sender
            self._sources[index].sender = sender
            sender.start()


def _surplus(address: str, process: Process) -> Iterator[tuple[str, int]]:
    """Yield how many active requests a backend counts beyond those that are still in it."""
    snapshot = process.task.snapshot()
    admitted = process.admitted
    yield address, snapshot.active - admitted
    if snapshot.customers:
        counted = sum(customer.active for customer in snapshot.customers.values())
        yield f"{address}, for its customers,", counted - admitted
