from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenly.errors import ConfigError
from evenly.lab.sim.load import load_scenario, parse_scenario

TEXT = """
title = "x"
phases = [{seconds = 30}, {seconds = 40, load = 3}]
workload = {criticalities = {CRITICAL = 1}}
backends = {count = 5}
below = [{name = "leaf"}]
faults = [{kind = "crash", at_seconds = 3}]

[backend_task]
quota = {limits = {"a.b" = 3}, default_limit = 1}
utilization = {signals = {}, ramps = [[1, 2], [2, 3], [3, 4], [4, 5]]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "overload.toml"
    path.write_text(TEXT)
    return path


def refusal(path: Path, *changes: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_scenario(path, changes)
    source, _, message = str(raised.value).partition(": ")
    assert source == str(path)
    return message


KINDS = "restart, crash, stall, slow, fast_fail, partition, loss, restart_clients, surge"
SERVICE_KEYS = (
    "accept_backlog, antagonists, cold_seconds, cold_speed_ratio, connect_cost_seconds, cores,"
    " cost, count, down_seconds, error_cost_ratio, io_seconds, name, probe_cost_seconds,"
    " reject_cost_ratio, restarts, speeds, warm_up_seconds"
)
CRITICALITIES = "CRITICAL, CRITICAL_PLUS, SHEDDABLE, SHEDDABLE_PLUS"
HUGE = "0x" + "f" * 5000  # 6,021 digits: Python refuses to write them out.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "backends.cuont=3",
            f"backends.cuont: unknown key; known are {SERVICE_KEYS} (did you mean count?)",
        ),
        ('backends."a b"=3', f'backends."a b": unknown key; known are {SERVICE_KEYS}'),
        (
            "workload.criticalities.CRITICL=1",
            (
                "workload.criticalities.CRITICL: unknown key;"
                f" known are {CRITICALITIES} (did you mean CRITICAL?)"
            ),
        ),
        ("backends.count=0", "backends.count must be a whole number in [1, 10000], not 0"),
        ("backends.cores=four", "backends.cores must be a whole number, not 'four'"),
        ("backends.cores=4.0", "backends.cores must be a whole number, not 4.0"),
        ("backends.cores=true", "backends.cores must be a whole number, not True"),
        ("backends.io_seconds=true", "backends.io_seconds must be a number, not True"),
        ("backends.io_seconds=nan", "backends.io_seconds must be in [0, 3600], not nan"),
        ("backends.io_seconds=inf", "backends.io_seconds must be in [0, 3600], not inf"),
        (
            f"backends.count={HUGE}",
            "backends.count must be a whole number of 64 bits, not something too large to show",
        ),
        (
            f"backends.io_seconds={2**63}",
            f"backends.io_seconds must be a number of 64 bits, not {2**63}",
        ),
        (f"clients.rate_sigma={2**63 - 1}", f"clients.rate_sigma must be in [0, 3], not {2.0**63}"),
        ("backends=3", "backends must be a table, not 3"),
        ("backends.antagonists=3", "backends.antagonists must be a table, not 3"),
        ("backends.cores=3\nx=1", "backends.cores must be a whole number, not '3\\nx=1'"),
        ("title=5", "title must be a string, not 5"),
        ("ideal=yes", "ideal must be true or false, not 'yes'"),
        ("loads=2", "loads must be an array, not 2"),
        ("backends.speeds=[1]", "backends.speeds must be an array of 2, not [1]"),
        (
            "backends.cost.kind=pareto",
            (
                "backends.cost.kind must be one of constant, exponential, lognormal,"
                " bounded_pareto, not 'pareto'"
            ),
        ),
        ("datacenters=[{}]", "datacenters.0.name is missing; it must be a string"),
        ("faults.0={kind='crash'}", "faults.0.at_seconds is missing; it must be a number"),
        ("faults.0.kind=storm", f"faults.0.kind must be one of {KINDS}, not 'storm'"),
        ("faults.0={at_seconds=3}", f"faults.0.kind is missing; it must be one of {KINDS}"),
        ("faults.0.kind=[]", f"faults.0.kind must be one of {KINDS}, not []"),
        ("faults=[3]", "faults.0 must be a table, not 3"),
        (
            "faults.0.ratio=0.5",
            (
                "faults.0.ratio: unknown key of the kind crash; known are"
                " at_seconds, backends, every_seconds, first, service"
            ),
        ),
        (
            "faults.0={kind='restart_clients', at_seconds=3, client=2}",
            (
                "faults.0.client: unknown key of the kind restart_clients; known are"
                " at_seconds, clients (did you mean clients?)"
            ),
        ),
        (
            "faults.0={kind='slow', at_seconds=3}",
            "faults.0.ratio is missing; it must be a number",
        ),
        (
            "faults.0={kind='slow', at_seconds=3, ratio=0}",
            "faults.0.ratio must be in [0.001, 1000], not 0.0",
        ),
        (
            "faults.0={kind='loss', at_seconds=3, ratio=1}",
            "faults.0.ratio must be in [0, 0.9], not 1.0",
        ),
        (
            "faults.0={kind='surge', at_seconds=3, customer='nobody', ratio=2}",
            "faults.0.customer must be one of the workload's (none), not 'nobody'",
        ),
        ("faults.0.first=-1", "faults.0.first must be a whole number in [0, 10000], not -1"),
        (
            "backend_task.utilization.ramps.1=[2, 1]",
            "backend_task.utilization.ramps.1.low must be below high, not 2.0 and 1.0",
        ),
        (
            "backend_task.utilization.ramps.1=[1, 2, 3]",
            (
                "backend_task.utilization.ramps.1 must be a table or an array [low, high],"
                " not [1, 2, 3]"
            ),
        ),
        ("settle_seconds=100", "settle_seconds must be in [0, 70], not 100.0"),
        ("below.1.count=2", "below.1 must be an index from 0 into below, which has 1 entry"),
        ("phases.2=5", "phases.2 must be an index from 0 into phases, which has 2 entries"),
        ("below.x=2", "below.x must be an index from 0 into below, which has 1 entry"),
        (
            "datacenters.0.name=x",
            (
                "datacenters.0 must be an index into datacenters, which has 0 entries in the file;"
                " give it whole: datacenters must be an array"
            ),
        ),
        (
            "backends.count.x=1",
            "backends.count.x: backends.count must be a table or an array, not 5",
        ),
        ("loads=[1", "loads must be a TOML value or a bare word, not '[1'"),
        ("title= ", "title must be a TOML value or a bare word, not ''"),
        ("title", "a change must be key=value with a dotted key, not 'title'"),
        ("title=", "a change must be key=value with a dotted key, not 'title='"),
        ("=1", "a change must be key=value with a dotted key, not '=1'"),
        ("#a=1", "a change must be key=value with a dotted key, not '#a=1'"),
        ("[a]\nb=1", "a change must be key=value with a dotted key, not '[a]\\nb=1'"),
        ("loads..x=1", "a change must be key=value with a dotted key, not 'loads..x=1'"),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(
    change: str, message: str, path: Path
) -> None:
    assert refusal(path, change) == message


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ("client_task.policy.name=x", "client_task.policy.name"),
        ("client_task.throttle.name=x", "client_task.throttle.name"),
        ('backend_task.quota.limits."a.b"=-1', 'backend_task.quota.limits."a.b"'),
        (
            'backend_task.quota.criticality_limits."a.b".CRITICAL=9',
            'backend_task.quota.criticality_limits."a.b".CRITICAL',
        ),
        ("workload.criticalities.SHEDDABLE=-1", "workload.criticalities.SHEDDABLE"),
    ],
)
def test_the_key_is_found_where_a_class_names_something_else(
    change: str, start: str, path: Path
) -> None:
    assert re.match(rf"{re.escape(start)}(: | must be )", refusal(path, change))


def test_a_key_that_cannot_be_told_is_left_at_its_table(path: Path) -> None:
    # Both 4.0: the message alone does not say which.
    message = refusal(
        path,
        'backend_task.quota.criticality_limits."a.b".CRITICAL=4',
        'backend_task.quota.criticality_limits."a.b".SHEDDABLE=4',
    )

    assert message.startswith("backend_task.quota: limit of 'a.b', ")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({1: 2}, "code: a scenario must be a table, not {1: 2}"),
        ({"backends": {None: 2}}, "code: backends must be a table, not {None: 2}"),
        ({"loads": {1: 2}}, "code: loads.1 must be an index into loads"),
    ],
)
def test_keys_that_no_file_can_have(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(message)}"):
        parse_scenario(table, source="code")


def test_what_is_shown_is_short(path: Path) -> None:
    assert refusal(path, f"backends.count='{'x' * 1000}'").endswith(f"not '{'x' * 76}...")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = \n", r"is not valid TOML: .* \(at line 2, column 5\)"),
        (b"\xff", r"is not valid TOML: 'utf-8' codec .*"),
        (b"a = " + b"[" * 5000, r"is not valid TOML: .* recursion .*"),
        (b"a = " + b"1" * 5000, r"is not valid TOML: .* 5000 digits.*"),
        (b"", r"title is missing; it must be a string"),
    ],
)
def test_a_file_that_is_no_scenario(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(content)

    assert re.fullmatch(message, refusal(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == "cannot be read: No such file or directory"
    assert refusal(tmp_path) == "cannot be read: Is a directory"


def test_a_very_deep_key_is_refused_too(path: Path) -> None:
    assert "recursion" in refusal(path, f"a{'.b' * 5000}=1")
