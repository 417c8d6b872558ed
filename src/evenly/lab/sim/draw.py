"""Draw a random scenario: what nobody would have thought of writing down.

Everything that a scenario can have is drawn, mostly little of it and sometimes much at once.  Costs
are chosen last, so that every story has about as many requests, whatever its size and its load.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Final, get_args, get_type_hints

from evenly.core.balancing.datacenter import DatacenterConfig
from evenly.core.balancing.policies.catalogue import POLICIES
from evenly.core.criticality import Criticality
from evenly.lab.sim.draw_faults import draw_faults
from evenly.lab.sim.draw_tasks import draw_backend_task, draw_client_task
from evenly.lab.sim.luck import Luck
from evenly.lab.sim.scenario import (
    BurstConfig,
    ClientsConfig,
    CustomerConfig,
    DatacenterShare,
    NetworkConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import AntagonistConfig, RequestCostConfig, RestartConfig, ServiceConfig
from evenly.lab.sim.source import Profile

__all__ = ["draw_scenario"]

_COST_KINDS: Final = get_args(get_type_hints(RequestCostConfig)["kind"])
_REQUESTS = (2_000.0, 8_000.0)
"""What a story has, at all of its services together: a fraction of a CPU second."""
# A request's own work should fit into its deadline several times, or everything only times out.
_COST_PER_TIMEOUT = 0.25
_HOPELESS = 0.05
"""How often it need not fit."""


def draw_scenario(seed: int) -> tuple[Scenario, str, float]:
    """Return the scenario that belongs to a seed, and the policy and load to run it with."""
    luck = Luck(random.Random(f"{seed}/swarm"))
    load = luck.magnitude(0.1, 8.0)
    policy = luck.one_of(POLICIES)
    seconds = luck.number(3.0, 12.0)
    phases = _draw_phases(luck, seconds) if luck.chance(0.3) else ()
    workload = _draw_workload(luck)
    top = _draw_service(luck, "service")
    below = tuple(
        _draw_service(luck, f"below-{depth}")
        for depth in range(1, luck.whole(1, 3) if luck.chance(0.3) else 1)
    )
    scenario = Scenario(
        title=f"swarm {seed}",
        seconds=seconds,
        settle_seconds=1.0,
        phases=phases,
        loads=(load,),
        policies=(policy,),
        ideal=False,
        workload=workload,
        clients=ClientsConfig(
            count=60 if luck.chance(0.05) else luck.whole(1, 30),
            rate_sigma=luck.number(0.0, 2.0) if luck.chance(0.3) else 0.0,
            start_seconds=luck.one_of((0.0, luck.number(0.0, 3.0))),
        ),
        backends=top,
        below=below,
        network=_draw_network(luck),
        datacenters=_draw_datacenters(luck) if luck.chance(0.15) else (),
        datacenter=DatacenterConfig(
            fill_ratio=luck.number(0.3, 1.0), max_step_ratio=luck.number(0.05, 1.0)
        ),
        client_task=draw_client_task(luck),
    )
    scenario = _with_costs(luck, scenario, load)
    customers = [customer.name for customer in workload.customers]
    cpus = scenario.backends.capacity * scenario.backends.cost.mean_seconds
    scenario = replace(
        scenario, backend_task=draw_backend_task(luck, customers=customers, cpus=cpus)
    )
    return replace(scenario, faults=draw_faults(luck, scenario)), policy, load


def _draw_phases(luck: Luck, seconds: float) -> tuple[PhaseConfig, ...]:
    """Cut the story into a few phases; one of them has the row's load."""
    count = luck.whole(2, 4)
    cuts = [0.0, *sorted(luck.number(0.1, 0.9) for _ in range(count - 1)), 1.0]
    spans = [max(0.1, (end - begin) * seconds) for begin, end in pairwise(cuts)]
    measured = luck.whole(0, count - 1)
    return tuple(
        PhaseConfig(seconds=span, load=None if place == measured else luck.magnitude(0.1, 4.0))
        for place, span in enumerate(spans)
    )


def _draw_workload(luck: Luck) -> WorkloadConfig:
    mix = luck.some_of(tuple(Criticality), luck.whole(1, len(Criticality)))
    customers = tuple(
        CustomerConfig(name=f"customer-{number}", share=luck.magnitude(0.1, 10.0))
        for number in range(luck.whole(1, 5) if luck.chance(0.4) else 0)
    )
    bursts = None
    if luck.chance(0.2):
        every = luck.number(0.5, 4.0)
        bursts = BurstConfig(
            every_seconds=every,
            seconds=luck.number(0.02, 0.9) * every,
            factor=luck.magnitude(0.1, 10.0),
        )
    return WorkloadConfig(
        criticalities={criticality: luck.magnitude(0.05, 1.0) for criticality in mix},
        customers=customers,
        timeout_seconds=luck.magnitude(0.2, 10.0),
        idempotent=luck.chance(0.5),
        bursts=bursts,
        wait_for_ready=luck.chance(0.2),
        calls_per_user=luck.whole(2, 5) if luck.chance(0.2) else 1,
        shares_luck=luck.chance(0.7),
    )


def _draw_service(luck: Luck, name: str) -> ServiceConfig:
    speed = luck.magnitude(0.3, 3.0)
    antagonists = AntagonistConfig(
        quiet_seconds=luck.magnitude(0.5, 20.0),
        episode_seconds=luck.magnitude(0.1, 5.0),
        speed_ratio=luck.magnitude(0.05, 1.0),
    )
    cost = RequestCostConfig(
        kind=luck.one_of(_COST_KINDS),
        sigma=luck.number(0.1, 2.0),
        shape=luck.one_of((1.0, luck.number(0.8, 3.0))),
        spread=luck.magnitude(10.0, 10_000.0),
    )
    is_cold = luck.chance(0.3)
    return ServiceConfig(
        name=name,
        count=luck.whole(1, 30),
        cores=luck.size(1, 8),
        speeds=(speed, speed * luck.number(1.0, 4.0)) if luck.chance(0.5) else (1.0, 1.0),
        cost=cost,
        io_seconds=luck.magnitude(0.001, 0.5) if luck.chance(0.3) else 0.0,
        reject_cost_ratio=luck.number(0.0, 0.5) if luck.chance(0.9) else 0.0,
        error_cost_ratio=luck.one_of((0.01, luck.number(0.0, 1.0))),
        connect_cost_seconds=luck.magnitude(0.00001, 0.01),
        accept_backlog=luck.one_of((128, luck.size(1, 128))),
        antagonists=antagonists if luck.chance(0.3) else None,
        # A lone backend is away for up to 5 s: more often than that, nobody would ever serve.
        restarts=RestartConfig(every_seconds=luck.number(5.5, 9.0)) if luck.chance(0.2) else None,
        down_seconds=luck.number(0.0, 2.0),
        warm_up_seconds=luck.number(0.0, 2.0),
        cold_speed_ratio=luck.magnitude(0.05, 1.0) if is_cold else 1.0,
        cold_seconds=luck.number(0.0, 5.0),
    )


def _draw_network(luck: Luck) -> NetworkConfig:
    return NetworkConfig(
        delay_seconds=luck.magnitude(0.0001, 0.02),
        jitter_ratio=luck.one_of((0.0, luck.number(0.0, 2.0))),
        loss_ratio=luck.number(0.0, 0.05) if luck.chance(0.3) else 0.0,
        resend_seconds=luck.magnitude(0.01, 0.5),
        between_seconds=luck.magnitude(0.001, 0.05),
    )


def _draw_datacenters(luck: Luck) -> tuple[DatacenterShare, ...]:
    names = [f"place-{number}" for number in range(luck.whole(2, 3))]
    ratios = [[luck.number(0.1, 1.0) for _ in names] for _ in range(2)]
    clients, backends = ([part / math.fsum(parts) for part in parts] for parts in ratios)
    return tuple(
        DatacenterShare(name=name, clients_ratio=of_clients, backends_ratio=of_backends)
        for name, of_clients, of_backends in zip(names, clients, backends, strict=True)
    )


def _with_costs(luck: Luck, scenario: Scenario, load: float) -> Scenario:
    """Choose mean costs for the number of requests, and fewer CPUs where they would be too high."""
    requests = luck.magnitude(*_REQUESTS) / len(scenario.services)
    capacity = requests / _load_seconds(scenario, load)
    most = _COST_PER_TIMEOUT * scenario.workload.timeout_seconds
    if luck.chance(_HOPELESS):
        most = math.inf
    narrowest = luck.whole(0, len(scenario.services) - 1)
    services = []
    for place, service in enumerate(scenario.services):
        wanted = capacity if place == narrowest else capacity * luck.number(1.0, 3.0)
        services.append(_with_cost(luck, service, wanted, most))
    return replace(scenario, backends=services[0], below=tuple(services[1:]))


def _with_cost(luck: Luck, service: ServiceConfig, capacity: float, most: float) -> ServiceConfig:
    while True:
        cpus = service.capacity * service.cost.mean_seconds
        seconds = float(f"{max(1e-4, cpus / capacity):.3g}")
        if seconds <= most or service.count * service.cores == 1:
            return replace(service, cost=replace(service.cost, mean_seconds=seconds))
        if service.cores > 1 and (service.count == 1 or luck.chance(0.5)):
            service = replace(service, cores=(service.cores + 1) // 2)
        else:
            service = replace(service, count=(service.count + 1) // 2)


def _load_seconds(scenario: Scenario, load: float) -> float:
    """Return the load's integral over the story: requests over capacity."""
    profile = Profile(scenario, load)
    at = total = 0.0
    while at < profile.end:
        height, until = profile.piece(at)
        total += height * (until - at)
        at = until
    return total
