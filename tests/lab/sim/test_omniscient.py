"""The balancers that know everything: held against brute force, and against everybody else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from evenly.core.backend_task import BackendTaskConfig
from evenly.lab.sim.fault_config import (
    FastFailFault,
    FaultConfig,
    LossFault,
    PartitionFault,
    RestartFault,
    SlowFault,
    StallFault,
)
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.omniscient import EarliestCompletion, LeastCpu
from evenly.lab.sim.scenario import (
    OMNISCIENT,
    OMNISCIENT_LEAST_CPU,
    ClientsConfig,
    NetworkConfig,
    Scenario,
)
from evenly.lab.sim.service import AntagonistConfig, RequestCostConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate
from tests.lab.sim.queueing import completions
from tests.lab.sim.small import Listener, new_stage

# Costs are given with each request.
THREE = ServiceConfig(count=3, cores=2, speeds=(0.5, 2.0))


def new_fleet(config: ServiceConfig) -> Fleet:
    """Return a fleet that is up; see `small.py` for the rest of its world."""
    fleet = Fleet(
        new_stage(),
        config,
        name="service",
        is_lowest=True,
        delay_seconds=lambda _client: 0.0,
        make_below=None,
    )
    fleet.start()
    return fleet


def watched(fleet: Fleet, make: Callable[[Fleet], EarliestCompletion]) -> EarliestCompletion:
    oracle = make(fleet)
    for machine in fleet.machines:
        machine.watcher = oracle
    return oracle


# Earliest completion.


@pytest.mark.parametrize("seed", range(5))
def test_each_request_goes_where_brute_force_would_complete_it_first(seed: int) -> None:
    rng = random.Random(seed)
    fleet = new_fleet(THREE)
    oracle = EarliestCompletion(fleet)
    sent: dict[Machine, list[tuple[float, float]]] = {machine: [] for machine in fleet.machines}
    now = 0.0
    for _ in range(200):
        # 7 CPUs' worth of speed, and about as much work as they can do.
        now += rng.expovariate(7.0)
        cost = rng.expovariate(1.0)
        # Everything that a machine was ever sent, run again from the beginning, with this one last.
        done_at = {
            machine: list(
                completions(
                    ((at, each / machine.speed) for at, each in (*earlier, (now, cost))), cores=2
                )
            )[-1]
            for machine, earlier in sent.items()
        }

        chosen = oracle.pick(cost, now)

        assert chosen is not None
        assert done_at[chosen] == pytest.approx(min(done_at.values()))
        sent[chosen].append((now, cost))
    assert all(sent.values())


def test_requests_really_end_when_the_oracle_counts_on_it() -> None:
    rng = random.Random(1)
    fleet = new_fleet(THREE)
    stage = fleet.stage
    oracle = watched(fleet, EarliestCompletion)
    caller = Listener(stage)
    expected = {}
    sent: dict[Machine, list[tuple[float, float]]] = {machine: [] for machine in fleet.machines}
    for _ in range(200):
        stage.events.run(stage.events.now + rng.expovariate(7.0))
        now = stage.events.now
        cost = rng.expovariate(1.0)
        machine = oracle.pick(cost, now)
        assert machine is not None
        sent[machine].append((now, cost / machine.speed))
        job = caller.send(machine, cost, at=now)
        expected[job] = list(completions(sent[machine], cores=2))[-1]

    stage.events.run(1_000.0)

    assert caller.ends() == pytest.approx(expected)


def test_no_other_choice_for_one_request_would_complete_it_sooner_whatever_the_order() -> None:
    # Three requests at once on two machines of one core and speeds 1 and 2: all that there is.
    config = ServiceConfig(count=2, cores=1, speeds=(0.5, 2.5))
    costs = (3.0, 2.0, 2.0)
    fleet = new_fleet(config)
    oracle = EarliestCompletion(fleet)
    chosen = tuple(oracle.pick(cost, 0.0) for cost in costs)

    def ends(machines: tuple[Machine | None, ...]) -> list[float]:
        busy_until = dict.fromkeys(fleet.machines, 0.0)
        result = []
        for machine, cost in zip(machines, costs, strict=True):
            assert machine is not None
            busy_until[machine] += cost / machine.speed
            result.append(busy_until[machine])
        return result

    assert {machine.speed for machine in fleet.machines} == {1.0, 2.0}
    # 1.5 on the fast one; then 2 on the slow one rather than 2.5; then 2.5 rather than 4.
    assert ends(chosen) == pytest.approx([1.5, 2.0, 2.5])
    # Of all eight, none completes the first sooner, then the second, then the third.
    assert ends(chosen) == min(ends(each) for each in product(fleet.machines, repeat=3))


def test_the_oracle_sees_what_changes_under_it() -> None:
    fleet = new_fleet(ServiceConfig(count=2, cores=1))
    stage = fleet.stage
    oracle = watched(fleet, EarliestCompletion)
    first, second = fleet.machines

    # Equals: the first in order.  It is slowed down to a third: one request is done there at 3, and
    # at the other at 1, and two at 2.
    assert oracle.pick(0.0, 0.0) is first
    first.set_speed_ratio("slow", 1.0 / 3.0)
    assert [oracle.pick(1.0, 0.0) for _ in range(3)] == [second, second, first]
    # Nothing of that was sent, which a change of the machine brings to light.
    first.set_speed_ratio("slow", 1.0)
    second.set_speed_ratio("slow", 1.0)
    assert [oracle.pick(1.0, 0.0) for _ in range(2)] == [first, second]

    for begin, end in (
        (first.stall, first.go_on),
        (
            lambda: first.set_fast_fail(fails_fast=True),
            lambda: first.set_fast_fail(fails_fast=False),
        ),
    ):
        begin()
        assert [oracle.pick(1.0, 0.0) for _ in range(2)] == [second, second]
        end()
        assert oracle.pick(0.1, 0.0) is first
        second.set_speed_ratio("slow", 1.0)
    first.terminate()
    assert [oracle.pick(1.0, 0.0) for _ in range(2)] == [second, second]
    second.crash()
    assert oracle.pick(1.0, 0.0) is None
    # Gone after a second of quiet or at once, away for one more, and warm after another.
    stage.events.run(2.5)
    assert oracle.pick(1.0, 2.5) is second
    stage.events.run(3.5)
    assert oracle.pick(1.0, 3.5) is first


def test_an_oracle_knows_what_waits_and_how_fast_it_goes() -> None:
    fleet = new_fleet(ServiceConfig(count=1, cores=2, speeds=(0.5, 0.5)))
    (machine,) = fleet.machines
    caller = Listener(fleet.stage)
    for cost in (1.0, 2.0, 3.0, 1.0):
        caller.send(machine, cost)
    fleet.stage.events.run(1.0)
    assert machine.process is not None

    # At half speed until 2 and 4 s; from 2 on the third, until 8; from 4 on the fourth, until 6.
    assert sorted(machine.process.cores_free_at()) == pytest.approx([6.0, 8.0])
    machine.set_speed_ratio("fast", 2.0)
    # Half of what was left: 1.5 and 2.5, then 4.5 and 3.5.
    assert sorted(machine.process.cores_free_at()) == pytest.approx([3.5, 4.5])
    fleet.stage.events.run(10.0)
    assert sorted(caller.ends().values()) == pytest.approx([1.5, 2.5, 3.5, 4.5])
    assert machine.process.cores_free_at() == [10.0, 10.0]


# Least CPU.


def test_the_least_used_of_those_that_can_begin_at_once() -> None:
    fleet = new_fleet(ServiceConfig(count=2, cores=1, speeds=(0.5, 2.5)))
    oracle = LeastCpu(fleet)
    slow, fast = sorted(fleet.machines, key=lambda machine: machine.speed)

    # Equally unused: the first in order, and then the other, as the first has no core free.
    assert {oracle.pick(1.0, 0.0), oracle.pick(1.0, 0.0)} == {slow, fast}
    # At 0.75 only the fast one is free, which had 0.5 CPU seconds; at 2.0 both are, and the fast
    # one has had 0.5 + 0.5, the slow one 1.0, some of it longer ago.
    assert oracle.pick(1.0, 0.75) is fast
    assert oracle.pick(1.0, 2.0) is slow
    # Nobody is free: whoever has a core first.
    assert oracle.pick(1.0, 2.0) is fast
    assert oracle.pick(4.0, 2.0) is fast  # free at 2.5, before 3.0


def test_use_is_forgotten_over_ten_seconds_and_never_overflows() -> None:
    fleet = new_fleet(ServiceConfig(count=2, cores=1))
    oracle = LeastCpu(fleet)
    first, second = fleet.machines

    assert oracle.pick(2.0, 0.0) is first
    assert oracle.pick(1.0, 1.0) is second
    # 2 · e^(−t/10) against e^(−(t−1)/10): the first has had more for ever; but 1.9 more ten seconds
    # later is more than 2 · e^(−1) = 0.74.
    assert oracle.pick(1.9, 10.0) is second
    assert oracle.pick(1.0, 12.0) is first
    for at in (1e4, 2e4, 1e6, 1e9):
        assert oracle.pick(1.0, at) is not None
    assert math.isfinite(float(oracle._used.max()))


# As the limit of a whole world.


STORY = Scenario(
    title="the limit",
    seconds=25.0,
    settle_seconds=5.0,
    clients=ClientsConfig(count=6),
    backends=ServiceConfig(
        count=6,
        cores=2,
        speeds=(0.5, 1.5),
        cost=RequestCostConfig(kind="bounded_pareto", mean_seconds=0.03),
        antagonists=AntagonistConfig(),
    ),
    network=NetworkConfig(delay_seconds=0.0),
    # Who knows every cost puts many small requests where one after another they are done first; a
    # backend takes them for an overload now and then.
    backend_task=BackendTaskConfig(limits_queue=False),
)


def test_nobody_has_a_lower_p99_than_the_one_who_knows_everything() -> None:
    limit = simulate(STORY, policy=OMNISCIENT, load=0.6, seed=1).row
    assert limit.p99_seconds is not None
    assert (limit.errors_ratio, limit.violations) == (0.0, ())

    for policy in ("random", "least_loaded", "probing", OMNISCIENT_LEAST_CPU):
        row = simulate(STORY, policy=policy, load=0.6, seed=1).row
        assert row.p99_seconds is not None
        assert row.p99_seconds >= limit.p99_seconds, policy
        assert row.requests == limit.requests


@pytest.mark.parametrize("policy", [OMNISCIENT, OMNISCIENT_LEAST_CPU])
@pytest.mark.parametrize(
    "fault",
    [
        PartitionFault(at_seconds=5.0, seconds=1.0),
        StallFault(at_seconds=5.0, seconds=1.0),
        FastFailFault(at_seconds=5.0, seconds=1.0),
        SlowFault(at_seconds=5.0, seconds=1.0, ratio=0.5),
        LossFault(at_seconds=5.0, seconds=1.0, ratio=0.5),
        RestartFault(at_seconds=5.0),
    ],
    ids=lambda fault: str(fault.kind),
)
def test_faults_that_leave_room_elsewhere_fail_no_request_of_the_limit(
    fault: FaultConfig, policy: str
) -> None:
    story = replace(STORY, seconds=10.0, settle_seconds=0.0, faults=(fault,))

    row = simulate(story, policy=policy, load=0.3, seed=1).row

    assert (row.errors_ratio, row.violations) == (0.0, ())
