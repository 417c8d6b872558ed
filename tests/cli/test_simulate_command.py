from __future__ import annotations

import json
import re
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from evenly.cli.main import app
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import SIMULATED_POLICIES, Scenario
from evenly.lab.sim.simulate import simulate

TINY = """\
title = "Three [backends]"
seconds = 2.0
settle_seconds = 0.5
policies = ["round_robin", "probing"]

[clients]
count = 2

[backends]
count = 3
"""
ALL_CRITICALITIES = (
    "workload.criticalities={CRITICAL_PLUS = 1, CRITICAL = 1, SHEDDABLE_PLUS = 1, SHEDDABLE = 1}"
)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def invoke(*arguments: str) -> Invoked:
    return CliRunner().invoke(app, ["simulate", *arguments, "--processes", "1"])


def run(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refusal(*arguments: str) -> str:
    """Return the last line of a refused command, which is the message."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return str(result.output.splitlines()[-1])


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    document = json.loads(run(*arguments, "--json", "-"))
    assert isinstance(document["rows"], list)
    return document["rows"]


def test_json_has_exactly_the_agreed_keys(tiny: str) -> None:
    document = json.loads(run(tiny, "--seed", "5", "--json", "-"))

    assert list(document) == ["scenario", "seed", "commit", "rows"]
    assert (document["scenario"], document["seed"]) == ("tiny", 5)
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?|evenly 0\..*", document["commit"])
    for row in document["rows"]:
        # Written out, because others read them: who renames a field must see it here.
        assert list(row) == [
            "policy", "seed", "load", "requests", "cpu_seconds_spent", "goodput_ratio",
            "errors_ratio", "p50_seconds", "p99_seconds", "p99_over_ideal", "cpu_p95_over_p5",
            "cpu_max_over_min", "wasted_ratio", "success_by_criticality", "ideal_by_criticality",
            "users_by_criticality", "success_by_client_rate", "attempts_per_request",
            "probes_per_request", "recovery_seconds", "violations",
        ]  # fmt: skip
        assert row["seed"] == 5
        assert list(row["success_by_criticality"]) == ["CRITICAL"]
        assert row["violations"] == []
        empty = ("ideal_by_criticality", "users_by_criticality", "success_by_client_rate")
        assert [row[key] for key in empty] == [{}, {}, {}]
    assert [row["policy"] for row in document["rows"]] == ["round_robin", "probing", "omniscient"]
    limit = document["rows"][2]["p99_seconds"]
    assert [row["p99_over_ideal"] for row in document["rows"]] == [
        row["p99_seconds"] / limit for row in document["rows"]
    ]


@pytest.mark.parametrize("processes", ["1", "3"])
def test_two_runs_write_the_same_bytes_but_for_the_cpu_time(
    tiny: str, tmp_path: Path, processes: str
) -> None:
    def written(name: str, *more: str) -> str:
        file = tmp_path / name
        command = ["simulate", tiny, "--seeds", "2", "--json", str(file), *more]
        assert CliRunner().invoke(app, command).exit_code == 0
        return re.sub(r'("cpu_seconds_spent": )\S+,', r"\1,", file.read_text())

    first = written("first.json", "--processes", "1")

    assert written("second.json", "--processes", processes) == first
    assert first.endswith("\n}\n")
    assert first.startswith('{\n  "scenario": "tiny",\n  "seed": 1,\n')


def test_standard_output_holds_nothing_but_json_and_the_table_goes_to_standard_error(
    tiny: str,
) -> None:
    result = invoke(tiny, "--json", "-")

    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr.startswith("Three [backends]\n")


def test_policies_loads_and_changes_replace_the_scenarios_own(tiny: str) -> None:
    rows = rows_of(
        tiny,
        *("--policy", "random", "--policy", "least_loaded"),
        *("--load", "0.9", "--load", "0.2"),
        *("--set", "ideal=false"),
    )

    assert [(row["load"], row["policy"]) for row in rows] == [
        (0.9, "random"),
        (0.9, "least_loaded"),
        (0.2, "random"),
        (0.2, "least_loaded"),
    ]
    assert {row["p99_over_ideal"] for row in rows} == {None}


def test_users_and_unequal_client_tasks_have_figures(tiny: str) -> None:
    (row,) = rows_of(
        tiny,
        *("--policy", "random", "--set", "ideal=false", "--load", "0.1"),
        *("--set", "clients.rate_sigma=1", "--set", "workload.calls_per_user=2"),
    )

    assert row["users_by_criticality"] == {"CRITICAL": 1.0}
    assert row["success_by_client_rate"] == {"CRITICAL": {"seldom": 1.0, "often": 1.0}}


def test_seeds_count_from_the_first(tiny: str) -> None:
    rows = rows_of(tiny, "--seed", "7", "--seeds", "3", "--policy", "omniscient")

    assert [row["seed"] for row in rows] == [7, 8, 9]


def test_the_page_and_the_rows_are_written(tiny: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(tiny, "--html", str(page), "--json", str(tmp_path / "rows.json"), "--load", "0.3")

    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "--seed 1 --load 0.3" in text
    # No draft stays behind.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "page.html", "rows.json", "tiny.toml",
    ]  # fmt: skip


def test_the_last_lines_repeat_the_run(tiny: str) -> None:
    first = run(tiny, "--seed", "3", "--load", "0.4", "--set", 'title="x y"')
    *_, command = first.splitlines()

    assert first.startswith(
        "x y\n2 client tasks, 3 backends, 2 s, measured from 1 to 2 s; load 0.4"
    )
    assert re.search(r"[\d,]+ requests simulated in [\d.]+ CPU seconds", " ".join(first.split()))
    assert command == f"  evenly simulate {tiny} --seed 3 --set 'title=\"x y\"' --load 0.4"


def test_one_is_not_several(tiny: str) -> None:
    text = run(tiny, "--set", "clients.count=1", "--set", "backends.count=1")

    assert "\n1 client task, 1 backend, 2 s" in text


@pytest.mark.parametrize("columns", [48, 60, 80, 120])
def test_no_terminal_is_too_narrow_for_a_figure(
    tiny: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = run(
        tiny,
        *("--load", "0.5", "--load", "3", "--seeds", "2"),
        *("--policy", "weighted_least_loaded", "--set", ALL_CRITICALITIES),
    )

    assert "…" not in text
    # The command is left to the terminal to wrap, so that it can be copied.
    assert max(len(line) for line in text.splitlines()[:-1]) <= columns
    for heading in ("p50", "ideal", "p95/p5", "max/min", "wasted", "goodput", "errors", "probes"):
        assert heading in text
    assert len(re.findall(r" (?:C\+|C|S\+|S)(?= |\n)", text)) == 8  # in both tables


def test_columns_are_for_what_varies(tiny: str) -> None:
    one = run(tiny, "--policy", "random")
    several = run(tiny, "--policy", "random", "--load", "0.3", "--load", "0.6", "--seeds", "2")

    assert not re.search(r"policy +(load|seed)", one)
    assert re.search(r"policy +load +seed", several)
    assert "recovery" not in one
    assert "success" not in one
    assert "Medians of 2 seeds" in several


def test_a_violation_makes_the_command_fail(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario: Scenario, **_: object) -> list[Result]:
        result = simulate(scenario, policy="random", load=0.5, seed=1)
        return [replace(result, row=replace(result.row, violations=("it broke",)))]

    # The simulator keeps its invariants, so that no scenario breaks one on demand.
    monkeypatch.setattr("evenly.cli.simulate.run_batch", broken)
    result = invoke(tiny)

    assert result.exit_code == 1
    assert "it broke" in result.stdout


def test_a_bare_name_finds_the_file_here_first(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run("tiny", "--policy", "random").startswith("Three [backends]")
    assert run("tiny.toml", "--policy", "random").endswith(
        "  evenly simulate tiny.toml --seed 1 --policy random\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "'--seed': must be a whole number in [0, 9223372036854775807], not -1"),
        (["--seeds", "0"], "'--seeds': must be a whole number in [1, 1000], not 0"),
        (["--seeds", "many"], "'--seeds': must be a whole number in [1, 1000], not 'many'"),
        (["--policy", "ring"], f"'--policy': must be one of {', '.join(SIMULATED_POLICIES)}, not"),
        (["--load", "full"], "'--load': must be a number, not 'full'"),
        (["--load", "nan"], "'--load': loads must be in [0, 1000], not nan"),
        (["--load", "-1"], "'--load': loads must be in [0, 1000], not -1"),
        (
            ["--set", "backends.count=0"],
            "'--set': backends.count must be a whole number in [1, 10000], not 0",
        ),
        (["--set", "backend.count=5"], "'--set': backend: unknown key; known are "),
        (["--set", "backends"], "'--set': a change must be key=value with a dotted key, not"),
        (
            ["--set", "phases=[{seconds = 1}, {seconds = 1, load = 1}]", "--set", "seconds=1"],
            "scenario with phases; change theirs: phases.0.seconds to phases.1.seconds",
        ),
        (
            ["--set", 'client_task."policy" . name=random'],
            "'--set': client_task.policy.name has no effect: every row has its own policy; use",
        ),
        (["--json", "/nowhere/at/all.json"], "'--json': must be a file in a folder that exists"),
        (["--html", "/nowhere/at/all.html"], "'--html': must be a file in a folder that exists"),
        (["--html", "x" * 300], "'--html': cannot write"),
        (["--json", "x", "--html", "./x"], "'--html': must be another file than that of --json"),
        (["--json", "-", "--html", "-"], "'--html': must be another file than that of --json"),
        (["--swarm", "5"], "'--swarm': draws its own scenarios: it takes --seed and --processes,"),
    ],
)
def test_wrong_input_is_refused_by_name(tiny: str, arguments: list[str], message: str) -> None:
    assert message in refusal(tiny, *arguments)


def test_a_scenario_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone.toml"

    assert refusal(str(gone)).endswith(f"'SCENARIO': there is no file {gone}")
    assert "and no shipped scenario of this name; there are " in refusal("no_such_scenario")
    assert "of this name (did you mean overload?); there are " in refusal("overlaod")
    assert "of this name (did you mean overload?); there are " in refusal("overlaod.toml")
    assert f"'SCENARIO': {tmp_path} is a folder; name a TOML file, or one of" in refusal(
        str(tmp_path)
    )


def test_a_swarm_says_what_it_does_not_take(tiny: str) -> None:
    assert refusal("--swarm", "5", tiny).endswith("--processes, not SCENARIO")
    assert refusal("--swarm", "5", "--seeds", "2", "--load", "1").endswith("not --seeds, --load")


def test_a_wrong_scenario_is_refused_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('title = "t"\nbackend = 3\n')

    assert f"'SCENARIO': {wrong}: backend: unknown key" in refusal(str(wrong))
    # The file is at fault still, whatever else is wrong.
    assert f"'SCENARIO': {wrong}: backend: unknown key" in refusal(str(wrong), "--set", "seconds=x")


def test_help_lists_the_policies() -> None:
    result = CliRunner().invoke(app, ["simulate", "--help"])

    for policy in SIMULATED_POLICIES:
        assert policy in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["batch", "swarm", "figures"])
def test_a_worker_that_dies_is_said_in_words(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenProcessPool

    runner, arguments = {
        "batch": ("evenly.cli.simulate.run_batch", ["simulate", tiny]),
        "swarm": ("evenly.cli.simulate_swarm.run_swarm", ["simulate", "--swarm", "2"]),
        "figures": ("evenly.lab.sim.figures.workers.produce", ["figures", "--out", str(tmp_path)]),
    }[command]
    monkeypatch.setattr(runner, broken)
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 1
    assert result.stderr == ("Error: a worker died, of memory perhaps: try fewer --processes.\n")
