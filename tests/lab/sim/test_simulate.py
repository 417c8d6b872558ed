"""One seed replays a run: to the last bit, and without one actor shifting another's luck."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import final

import pytest

from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.request import Request
from evenly.lab.sim.fault_config import (
    CrashFault,
    PartitionFault,
    RestartClientsFault,
    SlowFault,
    StallFault,
    SurgeFault,
)
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import (
    SIMULATED_POLICIES,
    BurstConfig,
    ClientsConfig,
    CustomerConfig,
    NetworkConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import AntagonistConfig, RequestCostConfig, RestartConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.world import World

CALM = Scenario(
    title="calm",
    seconds=10.0,
    settle_seconds=2.0,
    clients=ClientsConfig(count=4, start_seconds=0.0),
    backends=ServiceConfig(count=4, cores=2, cost=RequestCostConfig(mean_seconds=0.02)),
)
# Everything that draws from a generator, at once.
EVENTFUL = replace(
    CALM,
    title="eventful",
    workload=WorkloadConfig(
        criticalities=dict.fromkeys(Criticality, 1.0),
        customers=(CustomerConfig(name="a", share=2.0), CustomerConfig(name="b")),
        timeout_seconds=1.0,
        idempotent=True,
        bursts=BurstConfig(every_seconds=3.0, seconds=1.0, factor=3.0),
    ),
    clients=ClientsConfig(count=4, rate_sigma=0.5),
    backends=ServiceConfig(
        count=4,
        cores=2,
        speeds=(0.5, 1.5),
        cost=RequestCostConfig(kind="lognormal", mean_seconds=0.02),
        io_seconds=0.01,
        antagonists=AntagonistConfig(quiet_seconds=2.0, episode_seconds=1.0),
        restarts=RestartConfig(every_seconds=4.0),
        cold_speed_ratio=0.5,
    ),
    network=NetworkConfig(loss_ratio=0.01),
    faults=(
        StallFault(at_seconds=3.0, seconds=0.5),
        CrashFault(at_seconds=4.0, first=1),
        PartitionFault(at_seconds=5.0, seconds=1.0, first=2, clients=2),
        RestartClientsFault(at_seconds=6.0, clients=2),
        SurgeFault(at_seconds=7.0, seconds=1.0, customer="a", ratio=3.0),
    ),
)


def without_cpu_time(result: Result) -> Result:
    return replace(result, row=replace(result.row, cpu_seconds_spent=0.0))


@pytest.mark.parametrize("policy", SIMULATED_POLICIES)
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    first, again = (simulate(EVENTFUL, policy=policy, load=0.9, seed=1) for _ in range(2))

    assert without_cpu_time(first) == without_cpu_time(again)
    assert first.row.cpu_seconds_spent > 0.0


def test_the_result_does_not_hang_on_how_a_process_hashes() -> None:
    code = (
        "from dataclasses import replace; from tests.lab.sim.test_simulate import *;"
        "print(without_cpu_time(simulate(EVENTFUL, policy='probing', load=0.9, seed=1)))"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]

    assert shown[0] == shown[1]
    assert b"policy='probing'" in shown[0]


def test_another_seed_gives_another_result() -> None:
    rows = [simulate(CALM, policy="probing", load=0.6, seed=seed).row for seed in range(3)]

    assert len({row.p99_seconds for row in rows}) == 3
    assert len({row.requests for row in rows}) == 3


def test_nothing_is_violated_in_a_calm_run() -> None:
    row = simulate(CALM, policy="probing", load=0.6, seed=1).row

    assert (row.violations, row.errors_ratio) == ((), 0.0)
    assert (row.policy, row.seed, row.load) == ("probing", 1, 0.6)


def test_progress_is_told_after_each_second() -> None:
    told: list[float] = []
    simulate(replace(CALM, seconds=4.5), policy="random", load=0.1, seed=1, progress=told.append)

    assert told == pytest.approx([1 / 4.5, 2 / 4.5, 3 / 4.5, 4 / 4.5, 1.0])


# Actors draw for themselves.


@final
class Arrivals(Observer):
    """Write down the requests that are sent."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        if number == 1:
            self.requests.append(request)


def arrivals(scenario: Scenario, *, policy: str = "random", load: float) -> set[float]:
    """Return when requests begin, by their deadlines, which nothing but that decides."""
    seen = Arrivals()
    World(scenario, policy=policy, load=load, seed=1, observer=seen).run(None)
    return {request.deadline_at for request in seen.requests if request.deadline_at is not None}


# Twice as many clients at twice the load, or half of it for twice the backends, leave everybody's
# rate as it was: to the last bit, as these are powers of 2.


def test_another_client_does_not_shift_the_others_arrivals() -> None:
    few = arrivals(CALM, load=0.25)
    many = arrivals(replace(CALM, clients=replace(CALM.clients, count=8)), load=0.5)

    assert few < many
    # As many again from the four others, but for chance: two Poisson counts.
    assert abs(len(many - few) - len(few)) < 4.0 * math.sqrt(2.0 * len(few))


def test_other_backends_and_policies_do_not_shift_arrivals() -> None:
    usual = arrivals(CALM, load=0.25)
    assert len(usual) > 900

    wider = replace(CALM, backends=replace(CALM.backends, count=8))
    assert arrivals(wider, load=0.125) == usual
    assert arrivals(CALM, policy="probing", load=0.25) == usual
    faulty = replace(CALM, faults=(SlowFault(at_seconds=2.0, ratio=0.5),))
    assert arrivals(faulty, load=0.25) == usual


def test_clients_may_be_unequal_and_make_the_same_load_together() -> None:
    clients = ClientsConfig(count=8, rate_sigma=1.0, start_seconds=0.0)
    world = World(replace(CALM, clients=clients), policy="random", load=0.5, seed=1)
    world.run(None)

    # 0.5 · 4 · 2 / 0.02 = 200 requests/s for 10 s: 4 standard deviations of sqrt(2000).
    offered = sum(sum(second.offered) for second in world.stage.recorder.seconds)
    assert abs(offered - 2_000) < 4.0 * math.sqrt(2_000)
