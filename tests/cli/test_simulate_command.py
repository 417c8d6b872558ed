from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from evenly.cli.main import app
from evenly.cli.simulate_files import write_output
from evenly.cli.simulate_progress import RowLog
from evenly.sim.batch import plan_rows
from evenly.sim.result import Result, Row
from evenly.sim.scenario import SIMULATED_POLICIES, Scenario
from evenly.sim.simulate import simulate
from evenly.testing import ManualClock

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
        assert list(row) == [field.name for field in fields(Row)]
        assert row["seed"] == 5
        assert list(row["success_by_criticality"]) == ["CRITICAL"]
        assert row["violations"] == []
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
        "x y\n2 client tasks, 3 backends, 2 s, measured from 0.5 s on; load 0.4"
    )
    assert re.search(r"[\d,]+ requests simulated in [\d.]+ CPU seconds", " ".join(first.split()))
    assert command == f"  evenly simulate {tiny} --seed 3 --set 'title=\"x y\"' --load 0.4"


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


def test_a_log_gets_a_line_per_row_only_when_it_takes_long() -> None:
    clock = ManualClock()
    file = StringIO()
    scenario = Scenario(title="t", ideal=False)
    rows = plan_rows(scenario, seeds=[1], policies=["random", "probing"], loads=[0.5])
    log = RowLog(Console(file=file), rows, clock=clock)
    log(0, 0.5)
    clock.advance(9.0)
    log(0, 1.0)
    clock.advance(3.0)
    log(1, 0.9)
    log(1, 1.0)

    assert file.getvalue() == "2 of 2 after 12 s: probing, load 0.5, seed 1\n"


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
        (["--set", "backends.count=0"], "backends.count must be a whole number in [1, 10000]"),
        (["--json", "/nowhere/at/all.json"], "'--json': must be a file in a folder that exists"),
        (["--html", "/nowhere/at/all.html"], "'--html': must be a file in a folder that exists"),
        (["--html", "x" * 300], "'--html': cannot write"),
    ],
)
def test_wrong_input_is_refused_by_name(tiny: str, arguments: list[str], message: str) -> None:
    assert message in refusal(tiny, *arguments)


def test_a_scenario_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone.toml"

    assert refusal(str(gone)).endswith(f"'SCENARIO': there is no file {gone}")
    assert "and no shipped scenario of this name; there are " in refusal("no_such_scenario")


def test_a_wrong_scenario_is_refused_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('title = "t"\nbackend = 3\n')

    assert f"'SCENARIO': {wrong}: " in refusal(str(wrong))


def test_without_its_extra_the_command_says_so_in_one_line(tiny: str) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        f"sys.argv[1:] = ['simulate', {tiny!r}]\n"
        "from evenly.cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == 'evenly simulate needs numpy: pip install "evenly[sim]"\n'


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_output(file, "--json", "\ud800")

    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    write_output(link, "--json", "after")

    assert link.is_symlink()
    assert file.read_text() == "after"
