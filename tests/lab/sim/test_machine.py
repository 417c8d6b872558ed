"""The life of a backend, to the instant: restart, crash, warming up, and a scenario's faults."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.request import Outcome
from evenly.lab.sim.fault_config import (
    CrashFault,
    FastFailFault,
    FaultConfig,
    RestartFault,
    SlowFault,
    StallFault,
)
from evenly.lab.sim.faults import schedule_fault
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.scenario import ClientsConfig, Scenario, WorkloadConfig
from evenly.lab.sim.service import RequestCostConfig, RestartConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.source import Mix
from evenly.lab.sim.stage import Stage
from tests.lab.sim.small import NEVER_SHEDS, Listener, new_machine, new_stage

# One second each for quiet, gone and warming up: the defaults.
CONFIG = ServiceConfig(cores=1, connect_cost_seconds=0.0)


def state(machine: Machine) -> str:
    if machine.process is None:
        return "gone"
    return "healthy" if machine.is_healthy else "lame duck"


def states(stage: Stage, machine: Machine, until: float, step: float) -> list[tuple[float, str]]:
    """Return since when the machine is in which state, looking every `step` seconds."""
    changes: list[tuple[float, str]] = []

    def look(at: float) -> None:
        if not changes or changes[-1][1] != state(machine):
            changes.append((at, state(machine)))

    for i in range(round(until / step) + 1):
        # Just after the instant, so that what happens at it has happened.
        stage.events.at(i * step + 1e-6, partial(look, i * step))
    stage.events.run(until + 1.0)
    return changes


def test_a_restart_goes_from_lame_duck_to_drained_to_gone_to_warm_to_healthy() -> None:
    stage = new_stage()
    machine = new_machine(stage, CONFIG)
    caller = Listener(stage, delay_seconds=0.01)
    machine.connect(caller)
    served = caller.send(machine, 2.0, at=9.0)
    late = caller.send(machine, 0.25, at=10.5)  # Sent by somebody who has not heard.
    stage.events.at(10.0, machine.terminate)
    for at in (11.5, 12.5, 13.5):
        stage.events.at(at, partial(machine.connect, caller))

    # Both are answered, at 11.0 and 11.25; a second of quiet, one away, one of warming up.
    assert states(stage, machine, 20.0, 0.125) == [
        (0.0, "healthy"),
        (10.0, "lame duck"),
        (12.25, "gone"),
        (13.25, "lame duck"),
        (14.25, "healthy"),
    ]
    assert caller.outcomes() == [(11.01, Outcome.OK), (11.26, Outcome.OK)]
    assert [job for _, job in caller.answers] == [served, late]
    assert caller.connections == [
        (0.01, ConnectionEvent.OPENED),
        (11.51, ConnectionEvent.OPENED),  # A lame duck still accepts,
        (12.26, ConnectionEvent.LOST),
        (12.51, ConnectionEvent.REFUSED),
        (13.51, ConnectionEvent.OPENED),  # and so does one that warms up.
    ]
    said = [(at, report.boot, report.lame_duck) for at, report in caller.reports]
    assert said == [
        (0.01, 1, False),
        (10.01, 1, True),
        (11.51, 1, True),
        (13.51, 2, True),
        (14.26, 2, False),
    ]
    assert machine.healthy_since() == 14.25


def test_a_restart_waits_no_longer_than_the_drain_allows() -> None:
    stage = new_stage(replace(NEVER_SHEDS, drain_seconds=5.0))
    machine = new_machine(stage, CONFIG)
    caller = Listener(stage, delay_seconds=0.01)
    endless = caller.send(machine, 100.0)
    stage.events.at(10.0, machine.terminate)

    assert states(stage, machine, 20.0, 0.5)[1:3] == [(10.0, "lame duck"), (15.0, "gone")]
    assert caller.outcomes() == [(15.01, Outcome.LOST)]
    assert endless.outcome is Outcome.LOST


def test_sigterm_twice_or_to_nobody_changes_nothing() -> None:
    stage = new_stage()
    machine = new_machine(stage, CONFIG)
    # While it is a lame duck, while it is gone, and while it warms up: then it leaves again.
    for at in (10.0, 10.5, 11.5, 12.5):
        stage.events.at(at, machine.terminate)

    assert states(stage, machine, 20.0, 0.25) == [
        (0.0, "healthy"),
        (10.0, "lame duck"),
        (11.0, "gone"),
        (12.0, "lame duck"),
        (13.5, "gone"),
        (14.5, "lame duck"),
        (15.5, "healthy"),
    ]


def test_a_crash_is_followed_by_a_successor() -> None:
    stage = new_stage()
    machine = new_machine(stage, CONFIG)
    stage.events.at(10.0, machine.crash)

    assert states(stage, machine, 20.0, 0.5) == [
        (0.0, "healthy"),
        (10.0, "gone"),
        (11.0, "lame duck"),
        (12.0, "healthy"),
    ]
    assert machine.busy_seconds() == 0.0


def test_cpu_time_is_counted_over_all_processes() -> None:
    stage = new_stage()
    machine = new_machine(stage, CONFIG)
    caller = Listener(stage)
    caller.send(machine, 2.0, at=0.0)
    caller.send(machine, 4.0, at=9.0)  # One second of it before the crash.
    stage.events.at(10.0, machine.crash)
    caller.send(machine, 3.0, at=15.0)

    stage.events.run(30.0)

    assert machine.busy_seconds() == pytest.approx(2.0 + 1.0 + 3.0)


# Some are not whole numbers of any binary fraction, and must not miss full speed.
@pytest.mark.parametrize("cold", [0.5, 0.005, 0.3])
def test_a_cold_process_comes_up_to_full_speed_in_steps_and_stays_there(cold: float) -> None:
    stage = new_stage()
    config = replace(CONFIG, cold_speed_ratio=cold, cold_seconds=5.0)
    machine = new_machine(stage, config)
    speeds: list[float] = []
    stage.events.at(10.0, machine.crash)
    # Listening, cold, at 11 s; healthy at 12 s, and a tenth of the way on every half second.
    for at in (9.0, 11.5, *(12.25 + 0.5 * i for i in range(10)), 17.25, 100.0):
        stage.events.at(at, lambda: speeds.append(machine.speed))

    stage.events.run(100.0)

    steps = [cold + (1.0 - cold) * i / 10 for i in range(10)]
    assert speeds == pytest.approx([1.0, cold, *steps, 1.0, 1.0])
    assert speeds[-1] == 1.0


def test_cold_and_slow_at_once_are_slower_than_either() -> None:
    stage = new_stage()
    config = replace(CONFIG, cold_speed_ratio=0.5, cold_seconds=1000.0)
    machine = new_machine(stage, config, speed=2.0)
    stage.events.at(1.0, machine.crash)
    stage.events.at(4.0, lambda: machine.set_speed_ratio("slow", 0.25))
    caller = Listener(stage)
    job = caller.send(machine, 1.0, at=5.0)

    stage.events.run(20.0)

    # 2 · 0.5 · 0.25 of the usual speed.
    assert caller.ends() == {job: pytest.approx(9.0)}


# What a scenario does to machines.


def told_faults(
    *faults: FaultConfig, count: int = 3, until: float
) -> list[list[tuple[float, str]]]:
    """Return each machine's states under these faults; `slow` and `stopped` are states here."""
    stage = Stage(Scenario(title="faults", faults=faults, backend_task=NEVER_SHEDS), 1)
    machines = [new_machine(stage, replace(CONFIG, count=count), index=i) for i in range(count)]
    services = {CONFIG.name: machines}
    for fault in faults:
        schedule_fault(
            stage, fault, services, mix=Mix(WorkloadConfig()), restart_clients=lambda _count: None
        )
    seen: list[list[tuple[float, str]]] = [[] for _ in machines]

    def look(at: float) -> None:
        for machine, changes in zip(machines, seen, strict=True):
            process = machine.process
            now = state(machine)
            if process is not None and process.is_stalled:
                now = "stopped"
            elif process is not None and process.fails_fast:
                now = "failing"
            elif machine.speed < 1.0:
                now = "slow"
            if not changes or changes[-1][1] != now:
                changes.append((at, now))

    for i in range(round(until / 0.25) + 1):
        stage.events.at(i * 0.25 + 1e-6, partial(look, i * 0.25))
    stage.events.run(until + 1.0)
    return seen


TWO_IN_TURN: Final[dict[str, Any]] = {
    "at_seconds": 2.0, "seconds": 3.0, "first": 1, "backends": 2, "every_seconds": 1.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (SlowFault(ratio=0.5, **TWO_IN_TURN), "slow"),
        (StallFault(**TWO_IN_TURN), "stopped"),
        (FastFailFault(**TWO_IN_TURN), "failing"),
    ],
)
def test_a_fault_begins_and_ends_at_its_instants_one_machine_after_another(
    fault: FaultConfig, name: str
) -> None:

    healthy = (0.0, "healthy")
    assert told_faults(fault, until=20.0) == [
        [healthy],
        [healthy, (2.0, name), (5.0, "healthy")],
        [healthy, (3.5, name), (6.5, "healthy")],
    ]


def test_a_fault_without_a_length_lasts_and_backends_zero_are_all() -> None:
    fault = SlowFault(at_seconds=2.0, first=1, backends=0, ratio=0.5)

    first, *others = told_faults(fault, until=20.0)
    assert first == [(0.0, "healthy")]
    assert others == [[(0.0, "healthy"), (2.0, "slow")]] * 2


def test_rolling_restarts_and_crashes_come_one_after_another() -> None:
    restart = RestartFault(at_seconds=1.0, backends=2, every_seconds=4.0)
    crash = CrashFault(at_seconds=2.0, first=2, backends=1)

    assert told_faults(restart, crash, until=20.0) == [
        [
            (0.0, "healthy"),
            (1.0, "lame duck"),
            (2.0, "gone"),
            (3.0, "lame duck"),
            (4.0, "healthy"),
        ],
        [
            (0.0, "healthy"),
            (5.0, "lame duck"),
            (6.0, "gone"),
            (7.0, "lame duck"),
            (8.0, "healthy"),
        ],
        [(0.0, "healthy"), (2.0, "gone"), (3.0, "lame duck"), (4.0, "healthy")],
    ]


# A whole service that restarts, and nobody notices.


@pytest.mark.parametrize("policy", ["round_robin", "probing"])
def test_a_rolling_restart_fails_no_request(policy: str) -> None:
    scenario = Scenario(
        title="deploy",
        seconds=40.0,
        settle_seconds=0.0,
        clients=ClientsConfig(count=10),
        backends=ServiceConfig(count=8, cores=2, cost=RequestCostConfig(mean_seconds=0.05)),
        faults=(RestartFault(at_seconds=5.0, backends=0, every_seconds=4.0),),
    )
    row = simulate(scenario, policy=policy, load=0.4, seed=1).row

    assert row.errors_ratio == 0.0
    assert row.violations == ()
    assert row.requests > 4_000


def test_a_service_that_always_restarts_somebody_fails_no_request() -> None:
    scenario = Scenario(
        title="restless",
        seconds=60.0,
        settle_seconds=0.0,
        clients=ClientsConfig(count=10),
        backends=ServiceConfig(
            count=10,
            cores=2,
            cost=RequestCostConfig(mean_seconds=0.05),
            restarts=RestartConfig(every_seconds=3.0),
        ),
    )
    row = simulate(scenario, policy="probing", load=0.4, seed=1).row

    assert row.errors_ratio == 0.0
    assert row.violations == ()
    # Of ten backends one is away all the time: three seconds for each restart, one in three.
    assert scenario.capacity == pytest.approx(10 * 2 / 0.05 * 0.9)


def test_machines_lie_evenly_between_the_slowest_and_the_fastest_in_an_order_of_their_own() -> None:
    def speeds_of(seed: int) -> list[float]:
        fleet = Fleet(
            Stage(Scenario(title="speeds"), seed),
            ServiceConfig(count=8, speeds=(1.0, 3.0)),
            name="service",
            is_lowest=True,
            delay_seconds=lambda _client: 0.0,
            make_below=None,
        )
        return [machine.speed for machine in fleet.machines]

    # Eight parts of [1, 3], and the middle of each: so the capacity is that of the mean, 2.
    even = [1.125, 1.375, 1.625, 1.875, 2.125, 2.375, 2.625, 2.875]
    assert sorted(speeds_of(1)) == sorted(speeds_of(2)) == even
    assert even != speeds_of(1) != speeds_of(2) != even
    assert ServiceConfig(count=8, speeds=(1.0, 3.0)).capacity == pytest.approx(8 * 4 * 2.0 / 0.015)
