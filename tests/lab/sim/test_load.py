from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.overload.utilization_config import Ramp, UtilizationConfig
from evenly.lab.sim.fault_config import CrashFault, StallFault
from evenly.lab.sim.load import load_scenario, parse_scenario, to_table, to_toml
from evenly.lab.sim.scenario import (
    ClientsConfig,
    CustomerConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import AntagonistConfig, RequestCostConfig, ServiceConfig

TEXT: Final = """
title = "Two services"
loads = [1, 2.5]
phases = [{seconds = 30}, {seconds = 40.0, load = 3}]

[workload]
criticalities = {CRITICAL_PLUS = 1, SHEDDABLE = 0.5}
customers = [{name = "a.b", share = 2}]

[backends]
count = 5
speeds = [0.5, 1]
antagonists = {}
cost = {kind = "lognormal"}

[[below]]
name = "leaf"

[[faults]]
kind = "crash"
at_seconds = 3

[backend_task.quota]
limits = {"a.b" = 3}
default_limit = 1
criticality_limits = {"a.b" = {CRITICAL = 2}}
keep_ratios = [0.4, 0.3, 0.2, 0]

[backend_task.utilization]
signals = {}
ramps = [[1, 2], {low = 2, high = 3}, [3, 4], [4, 5]]
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenarios") / "overload.toml"
    path.write_text(TEXT)
    return path


def test_a_file_becomes_the_scenario_that_it_describes(path: Path) -> None:
    scenario = load_scenario(path)

    assert scenario == Scenario(
        title="Two services",
        loads=(1.0, 2.5),
        phases=(PhaseConfig(seconds=30.0), PhaseConfig(seconds=40.0, load=3.0)),
        workload=WorkloadConfig(
            criticalities={Criticality.CRITICAL_PLUS: 1.0, Criticality.SHEDDABLE: 0.5},
            customers=(CustomerConfig(name="a.b", share=2.0),),
        ),
        backends=ServiceConfig(
            count=5,
            speeds=(0.5, 1.0),
            antagonists=AntagonistConfig(),
            cost=RequestCostConfig(kind="lognormal"),
        ),
        below=(ServiceConfig(name="leaf"),),
        faults=(CrashFault(at_seconds=3.0),),
        backend_task=scenario.backend_task,
    )
    assert scenario.backend_task.utilization == UtilizationConfig(
        signals={}, ramps=(Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0), Ramp(4.0, 5.0))
    )
    assert scenario.backend_task.quota == QuotaConfig(
        limits={"a.b": 3.0},
        default_limit=1.0,
        criticality_limits={"a.b": {Criticality.CRITICAL: 2.0}},
        keep_ratios=(0.4, 0.3, 0.2, 0.0),
    )
    assert [type(load) for load in scenario.loads] == [float, float]


def test_only_the_title_is_required() -> None:
    assert parse_scenario({"title": "x"}, source="here") == Scenario(title="x")


def test_code_may_give_none_and_tuples() -> None:
    table = {"title": "x", "loads": (1, 2), "backends": {"antagonists": None}}

    assert parse_scenario(table, source="here") == Scenario(title="x", loads=(1.0, 2.0))


def test_changes_apply_in_order_to_keys_in_the_file_and_others(path: Path) -> None:
    scenario = load_scenario(
        path,
        [
            "backends.count=7",
            "backends.count = 50",
            "clients.count=3",
            "client_task.throttle.name=off",
            "client_task.policy.name='random'",
            "below.0.count=3",
            "below.0.cost.kind=constant",
            "phases.1.load=4",
            "workload.criticalities.CRITICAL_PLUS=0.25",
            'backend_task.quota.limits."a.b"=2.5',
            "loads=[1.2, 2]",
            "faults=[]",
            "ideal=false",
            "title=A story = a tale",
        ],
    )

    assert scenario.backends.count == 50
    assert scenario.backends.speeds == (0.5, 1.0)
    assert scenario.clients == ClientsConfig(count=3)
    assert scenario.client_task.throttle.name == "off"
    assert scenario.client_task.policy.name == "random"
    assert scenario.below == (
        ServiceConfig(name="leaf", count=3, cost=RequestCostConfig(kind="constant")),
    )
    assert [phase.load for phase in scenario.phases] == [None, 4.0]
    assert scenario.workload.criticalities == {
        Criticality.CRITICAL_PLUS: 0.25,
        Criticality.SHEDDABLE: 0.5,
    }
    assert scenario.backend_task.quota is not None
    assert scenario.backend_task.quota.limits == {"a.b": 2.5}
    assert scenario.loads == (1.2, 2.0)
    assert scenario.faults == ()
    assert not scenario.ideal
    assert scenario.title == "A story = a tale"


def test_a_scenario_becomes_the_table_that_describes_it_without_defaults() -> None:
    scenario = Scenario(
        title="x",
        loads=(0.7,),
        workload=WorkloadConfig(criticalities={Criticality.SHEDDABLE: 1.0}),
        backends=ServiceConfig(count=5, cores=4, antagonists=AntagonistConfig()),
        below=(ServiceConfig(name="leaf", speeds=(0.5, 1.0)),),
    )

    assert to_table(scenario) == {
        "title": "x",
        "workload": {"criticalities": {"SHEDDABLE": 1.0}},
        "backends": {"count": 5, "antagonists": {}},
        "below": [{"name": "leaf", "speeds": [0.5, 1.0]}],
    }


def test_toml_has_a_section_for_each_table() -> None:
    scenario = Scenario(
        title='"Quoted" \x7f',
        ideal=False,
        clients=ClientsConfig(start_seconds=1e-05),
        backends=ServiceConfig(
            cost=RequestCostConfig(kind="constant"), antagonists=AntagonistConfig()
        ),
        faults=(CrashFault(at_seconds=3.0), StallFault(at_seconds=4)),
    )

    assert to_toml(scenario) == (
        'title = "\\"Quoted\\" \\u007f"\n'
        "ideal = false\n"
        "\n[clients]\nstart_seconds = 1e-05\n"
        '\n[backends]\ncost = {kind = "constant"}\nantagonists = {}\n'
        '\n[[faults]]\nkind = "crash"\nat_seconds = 3.0\n'
        '\n[[faults]]\nkind = "stall"\nat_seconds = 4\n'
    )


def test_what_is_written_loads_again(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(scenario))

    assert load_scenario(copy) == scenario
    assert parse_scenario(to_table(scenario), source="table") == scenario
