"""What goes wrong in a simulated world, also at the same time, goes wrong as it would outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.lab.sim.client import Client
from evenly.lab.sim.fault_config import (
    CrashFault,
    FastFailFault,
    FaultConfig,
    LossFault,
    PartitionFault,
    RestartFault,
    SlowFault,
    StallFault,
)
from evenly.lab.sim.scenario import (
    ClientsConfig,
    NetworkConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.world import World

CALM = Scenario(
    title="calm",
    seconds=10.0,
    settle_seconds=1.0,
    ideal=False,
    workload=WorkloadConfig(timeout_seconds=1.0),
    clients=ClientsConfig(count=4, start_seconds=0.0),
    backends=ServiceConfig(
        count=4,
        cores=1,
        cost=RequestCostConfig(kind="constant", mean_seconds=0.01),
        down_seconds=0.5,
        warm_up_seconds=0.5,
    ),
)


def world_with(*faults: FaultConfig, load: float = 0.5, **changes: Any) -> World:
    scenario = replace(CALM, faults=faults, **changes)
    return World(scenario, policy="round_robin", load=load, seed=1)


def states(client: Client) -> dict[str, State]:
    return {each.address: each.state for each in client.task.snapshot().backends}


# SIGSTOP.


def test_a_stopped_process_hears_sigterm_when_it_goes_on() -> None:
    world = world_with(
        StallFault(at_seconds=1.0, seconds=2.0),
        RestartFault(at_seconds=1.5),
    )
    machine = world.machines[0]

    world.stage.events.run(2.9)
    assert machine.is_healthy

    world.stage.events.run(3.0)
    assert machine.lame_duck_since == 3.0
    world.run(None)
    assert world.stage.checkers.violations() == ()


def test_a_stopped_process_does_not_exit_or_announce_itself() -> None:
    # It drains from 1.0 to 2.0, its quiet second, and would exit then; it exits at 4.0, is gone
    # until 4.5, and would be warm at 5.0.
    world = world_with(
        RestartFault(at_seconds=1.0),
        StallFault(at_seconds=1.5, seconds=2.5),
        StallFault(at_seconds=4.75, seconds=1.0),
        load=0.0,
    )
    machine = world.machines[0]

    seen = []
    for instant in (1.25, 3.9, 4.1, 4.6, 5.7, 5.8):
        world.stage.events.run(instant)
        seen.append((machine.process is not None, machine.is_healthy))
    lame_duck, gone, healthy = (True, False), (False, False), (True, True)
    assert seen == [lame_duck, lame_duck, gone, lame_duck, lame_duck, healthy]


def test_a_stopped_process_does_not_answer_for_the_service_below() -> None:
    """It is stopped while the service below fails what it asked for."""
    below = replace(CALM.backends, name="below")
    world = world_with(
        StallFault(at_seconds=2.0, seconds=5.0, backends=0),
        CrashFault(at_seconds=2.0001, service="below", backends=0),
        below=(below,),
    )
    processes = [machine.process for machine in world.machines]

    world.stage.events.run(2.0)
    before = [process.admitted for process in processes if process is not None]
    assert sum(before) > 0
    world.stage.events.run(6.9)

    assert [process.admitted for process in processes if process is not None] == before


def test_a_process_that_stays_stopped_may_keep_what_it_has() -> None:
    world = world_with(StallFault(at_seconds=2.0, backends=0))

    world.run(None)

    processes = [machine.process for machine in world.machines]
    assert sum(process.admitted for process in processes if process is not None) > 0
    assert world.stage.checkers.violations() == ()


# Several at a time.


def test_of_two_fast_fails_each_ends_by_itself() -> None:
    world = world_with(
        FastFailFault(at_seconds=1.0, seconds=2.0),
        FastFailFault(at_seconds=2.0, seconds=2.0),
    )
    process = world.machines[0].process
    assert process is not None

    failing = []
    for instant in (0.5, 1.5, 2.5, 3.5, 4.5):
        world.stage.events.run(instant)
        failing.append(process.fails_fast)
    assert failing == [False, True, True, True, False]


def test_of_two_slow_downs_each_ends_by_itself() -> None:
    world = world_with(
        SlowFault(at_seconds=1.0, seconds=2.0, ratio=0.5),
        SlowFault(at_seconds=2.0, seconds=2.0, ratio=0.2),
    )

    speeds = []
    for instant in (0.5, 1.5, 2.5, 3.5, 4.5):
        world.stage.events.run(instant)
        speeds.append(world.machines[0].speed)
    assert speeds == pytest.approx([1.0, 0.5, 0.1, 0.2, 1.0])


def test_of_two_losses_each_ends_by_itself() -> None:
    world = world_with(
        LossFault(at_seconds=1.0, seconds=2.0, ratio=0.5),
        LossFault(at_seconds=2.0, seconds=2.0, ratio=0.2),
        network=NetworkConfig(loss_ratio=0.01),
    )

    ratios = []
    for instant in (0.5, 1.5, 2.5, 3.5, 4.5):
        world.stage.events.run(instant)
        ratios.append(world.stage.network.loss_ratio)
    assert ratios == [0.01, 0.5, 0.2, 0.2, 0.01]


def test_the_network_is_fine_again_from_its_mending_on() -> None:
    world = world_with(
        LossFault(at_seconds=1.0, seconds=1.0, ratio=0.2),
        PartitionFault(at_seconds=3.0, seconds=1.0),
    )
    network = world.stage.network
    was_fine_since = network.was_fine_since

    fine = []
    for instant in (0.5, 1.5, 2.5, 3.5, 4.5):
        world.stage.events.run(instant)
        fine.append((was_fine_since(0.5), was_fine_since(2.1), was_fine_since(4.1)))
    assert fine == [
        (True, True, True),
        (False, False, False),
        (False, True, True),
        (False, False, False),
        (False, False, True),
    ]


# Partitions and connections.


def test_a_partition_below_cuts_off_all_who_call_there() -> None:
    """Those are the backends above, which may be more than the clients."""
    below = replace(CALM.backends, name="below")
    world = world_with(
        PartitionFault(at_seconds=2.0, service="below", backends=0),
        below=(below,),
        clients=ClientsConfig(count=1),
    )

    world.run(None)

    # What began in the third second may still have got through.
    seconds = world.stage.recorder.seconds
    assert sum(seconds[1].succeeded) > 0
    assert [sum(second.succeeded) for second in seconds[3:9]] == [0] * 6


def test_a_connection_that_breaks_before_it_is_known_is_opened_again() -> None:
    """The news of both are on their way at once, and may take 0.01 to 0.5 s."""
    crashes = [CrashFault(at_seconds=0.5 + 0.3 * turn, backends=0) for turn in range(10)]
    world = world_with(
        *crashes,
        seconds=20.0,
        network=NetworkConfig(delay_seconds=0.01, jitter_ratio=49.0),
        backends=replace(CALM.backends, down_seconds=0.05, warm_up_seconds=0.05),
        clients=ClientsConfig(count=20, start_seconds=0.0),
    )

    world.run(None)

    for client in world.clients:
        assert set(states(client).values()) == {State.HEALTHY}, client
        for machine in world.machines:
            assert machine.process is not None
            assert client in machine.process.clients


def test_late_news_of_a_connection_that_was_replaced_are_no_news() -> None:
    world = world_with(load=0.0, network=NetworkConfig(delay_seconds=0.2, jitter_ratio=0.0))
    client, machine = world.clients[0], world.machines[0]

    world.stage.events.run(0.1)
    client.connected(machine, ConnectionEvent.LOST)  # While the next one is being opened.
    world.stage.events.run(0.5)

    assert states(client)[machine.backend.address] is State.HEALTHY


def test_the_patience_with_one_connection_does_not_end_the_next() -> None:
    # Asked for at 0.0 and refused at 0.4, it is asked for again at 0.9 and opened at 1.3.  The
    # second that the first one had ends at 1.0.
    health = HealthConfig(backoff_first_seconds=0.5, backoff_jitter_ratio=0.0)
    world = world_with(
        CrashFault(at_seconds=0.0),
        load=0.0,
        network=NetworkConfig(delay_seconds=0.2, jitter_ratio=0.0),
        backends=replace(CALM.backends, count=1, warm_up_seconds=0.0),
        clients=ClientsConfig(count=1, start_seconds=0.0),
        client_task=ClientTaskConfig(membership=MembershipConfig(health=health)),
    )
    (client,) = world.clients

    world.stage.events.run(1.29)
    assert states(client) == {"service-0": State.REFUSING}
    world.stage.events.run(1.31)
    assert states(client) == {"service-0": State.HEALTHY}
