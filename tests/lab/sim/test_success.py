"""Who was served: users, client tasks that send seldom, and what an ideal system would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenly.core.criticality import Criticality
from evenly.lab.sim.fault_config import CrashFault
from evenly.lab.sim.recorder import Second
from evenly.lab.sim.scenario import (
    BurstConfig,
    ClientsConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.success import (
    IDEAL,
    ideal_by_criticality,
    ideal_result,
    seldom_senders,
    success_by_client_rate,
    users_by_criticality,
)
from tests.lab.sim.made_page import made_result

MIX = {
    Criticality.CRITICAL_PLUS: 0.1,
    Criticality.CRITICAL: 0.3,
    Criticality.SHEDDABLE_PLUS: 0.3,
    Criticality.SHEDDABLE: 0.3,
}
MIXED = Scenario(title="mixed", workload=WorkloadConfig(criticalities=MIX))


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param(2.0, (1.0, 1.0, 1 / 3, 0.0), id="0.5 = 0.1 + 0.3 + 0.1"),
        pytest.param(5.0, (1.0, 1 / 3, 0.0, 0.0), id="0.2 = 0.1 + 0.1"),
        pytest.param(20.0, (0.5, 0.0, 0.0, 0.0), id="0.05"),
    ],
)
def test_the_ideal_serves_the_highest_first(load: float, expected: tuple[float, ...]) -> None:
    ideal = ideal_by_criticality(MIXED, load)

    assert list(ideal) == ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]
    assert tuple(ideal.values()) == pytest.approx(expected)


CALM_OVERLOAD_CALM = (
    PhaseConfig(seconds=5.0, load=0.7),
    PhaseConfig(seconds=20.0),
    PhaseConfig(seconds=5.0, load=0.7),
)


@pytest.mark.parametrize(
    ("scenario", "load"),
    [
        pytest.param(MIXED, 1.0, id="nothing has to be refused"),
        pytest.param(Scenario(title="one"), 2.0, id="one criticality"),
        pytest.param(
            replace(MIXED, phases=(*CALM_OVERLOAD_CALM, PhaseConfig(seconds=5.0, load=3.0))),
            2.0,
            id="two overloads",
        ),
        pytest.param(replace(MIXED, faults=(CrashFault(at_seconds=3.0),)), 2.0, id="a fault"),
        pytest.param(
            replace(
                MIXED,
                workload=replace(
                    MIXED.workload, bursts=BurstConfig(every_seconds=5.0, seconds=1.0, factor=2.0)
                ),
            ),
            2.0,
            id="bursts",
        ),
    ],
)
def test_there_is_no_ideal_where_it_would_not_be_simple(scenario: Scenario, load: float) -> None:
    assert ideal_by_criticality(scenario, load) == {}


def test_the_ideal_stands_beside_the_runs() -> None:
    made = made_result(load=2.0)
    ideal = {"CRITICAL": 0.5, "SHEDDABLE": 0.0}
    shown = ideal_result([made, replace(made, row=replace(made.row, ideal_by_criticality=ideal))])

    assert ideal_result([made]) is None
    assert shown is not None
    assert (shown.row.policy, shown.row.success_by_criticality) == (IDEAL, ideal)
    assert (shown.row.goodput_ratio, shown.row.errors_ratio) == (1.0, 0.5)
    assert (shown.row.p99_seconds, shown.row.violations) == (None, ())


def test_a_user_is_served_with_all_calls() -> None:
    seconds = [Second(), Second()]
    seconds[0].users = {Criticality.CRITICAL: [10, 9], Criticality.SHEDDABLE: [10, 0]}
    seconds[1].users = {Criticality.CRITICAL: [30, 21]}

    assert users_by_criticality(seconds) == {"CRITICAL": 30 / 40, "SHEDDABLE": 0.0}
    assert users_by_criticality([Second()]) == {}


def test_half_of_the_requests_are_of_those_that_send_seldom() -> None:
    # 1 + 2 + 2 of 10; the fourth would make it 7.
    assert seldom_senders([3.0, 1.0, 2.0, 2.0, 2.0]) == [False, True, True, True, False]
    assert seldom_senders([1.0, 9.0]) == [True, False]
    assert seldom_senders([2.0, 2.0]) == [False, False]  # All alike.


def test_seldom_and_often_are_compared_within_a_criticality() -> None:
    each = Second()
    each.offered[:] = [10, 40, 0, 8]
    each.succeeded[:] = [0, 25, 0, 8]
    each.seldom_offered[:] = [0, 20, 0, 8]  # Of the others one half is missing.
    each.seldom_succeeded[:] = [0, 10, 0, 8]

    assert success_by_client_rate([each]) == {"SHEDDABLE_PLUS": {"seldom": 0.5, "often": 0.75}}


def test_a_run_counts_users_and_client_tasks_that_send_seldom() -> None:
    scenario = Scenario(
        title="users",
        seconds=4.0,
        settle_seconds=1.0,
        workload=WorkloadConfig(criticalities=MIX, calls_per_user=3),
        clients=ClientsConfig(count=20, rate_sigma=1.0, start_seconds=0.0),
        backends=ServiceConfig(count=4),
    )
    row = simulate(scenario, policy="round_robin", load=0.3, seed=1).row

    assert row.users_by_criticality == dict.fromkeys(
        ("CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"), 1.0
    )
    assert row.success_by_client_rate["CRITICAL"] == {"seldom": 1.0, "often": 1.0}
    alike = replace(scenario, clients=ClientsConfig(count=20), workload=WorkloadConfig())
    row = simulate(alike, policy="round_robin", load=0.3, seed=1).row
    assert (row.users_by_criticality, row.success_by_client_rate) == ({}, {})
