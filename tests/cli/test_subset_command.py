from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evenly.cli.main import app

NAMES = ["random", "deterministic", "rendezvous", "rocksteadier", "nested"]
SMALL = ["--clients", "40", "--backends", "60", "--size", "5"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["subset", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def refusal(*arguments: str) -> str:
    """Return the message of a refused command, as one line without the frame around it."""
    result = CliRunner().invoke(app, ["subset", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())


def test_json_rows_have_exactly_the_agreed_keys() -> None:
    document = json.loads(run(*SMALL, "--compare", "--json"))

    assert [row["algorithm"] for row in document["rows"]] == NAMES
    for row in document["rows"]:
        assert list(row) == [
            "algorithm", "clients", "backends", "size", "min", "max", "mean", "churn",
        ]  # fmt: skip
        assert list(row["churn"]) == [
            "add_backend", "remove_backend", "restart_backend", "grow_backends",
            "shrink_backends", "grow_clients", "shrink_clients", "rolling_restart",
        ]  # fmt: skip
        assert (row["clients"], row["backends"], row["size"]) == (40, 60, 5)
        assert all(isinstance(share, float) for share in row["churn"].values())


def test_json_values() -> None:
    document = json.loads(run(*SMALL, "--algorithm", "nested", "--json"))

    # 60 / 5 = 12: lots of 8, 40 clients = 5 lots: every backend has 5 clients.
    (row,) = document["rows"]
    assert (row["min"], row["max"], row["mean"]) == (5, 5, 5.0)
    assert row["churn"] == {
        "add_backend": 5 / 300,
        "remove_backend": 0.0,
        "restart_backend": pytest.approx(5 / 300),
        # 66 backends: each of the 6 new ones has 5 clients.
        "grow_backends": 30 / 300,
        "shrink_backends": 0.0,
        "grow_clients": 0.0,
        "shrink_clients": 0.0,
        "rolling_restart": 1.0,
    }
    assert document["best"] == "nested"
    assert document["recommendation"]["size"] == 21
    assert document["chosen"]["size"] == 5
    assert set(document["churn_clients"]["nested"].values()) == {40}


def test_standard_output_holds_nothing_but_json() -> None:
    command = ["subset", *SMALL, "--json"]
    done = process(f"import sys; sys.argv[1:] = {command}; from evenly.cli.main import run; run()")

    assert done.returncode == 0
    assert isinstance(json.loads(done.stdout), dict)
    assert done.stderr == ""


def test_without_a_size_the_recommended_one_is_planned() -> None:
    document = json.loads(run("--clients", "40", "--backends", "60", "--json"))

    assert document["rows"][0]["size"] == document["recommendation"]["size"] == 21


def test_several_seeds_widen_the_extremes_of_random() -> None:
    def row(*more: str) -> dict[str, Any]:
        document = json.loads(run(*SMALL, "--algorithm", "random", "--json", *more))
        (only,) = document["rows"]
        assert isinstance(only, dict)
        return only

    one, many = row(), row("--seeds", "20")
    assert many["min"] <= one["min"]
    assert many["max"] > one["max"]
    assert many["churn"] == one["churn"]


def test_the_comparison_fits_a_pipe_of_eighty_columns() -> None:
    lines = run(*SMALL, "--compare").splitlines()

    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in "".join(lines)
    text = "\n".join(lines)
    assert "Good looks like this" in text
    for name in [*NAMES[:-1], "nested *"]:
        # Once for balance and once for churn.
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    assert "Best here (*): nested" in text
    assert "recommended:" in text
    assert "…" not in text


def test_a_single_algorithm_has_a_histogram() -> None:
    text = run("--clients", "10", "--backends", "12", "--size", "3", "--algorithm", "deterministic")

    # 6 backends with 2 clients and 6 with 3: two bars of the same, full length.
    bars = [line.split() for line in text.splitlines() if "█" * 40 in line]
    assert [bar[:2] for bar in bars] == [["2", "6"], ["3", "6"]]


def test_a_pipe_that_is_not_utf_8_gets_plain_characters() -> None:
    command = ["subset", *SMALL, "--algorithm", "random"]
    done = process(
        f"import sys; sys.argv[1:] = {command}; from evenly.cli.main import run; run()",
        PYTHONIOENCODING="ascii",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "####" in done.stdout


def test_few_clients_are_warned_of() -> None:
    assert "Warning for size 5: clients x size = 50" in " ".join(
        run("--clients", "10", "--backends", "60", "--size", "5").split()
    )


def test_a_sample_is_stated() -> None:
    # 20 batches · 1,000 backends = 20,000 looks a client: 10 million pay for 500 clients of 600,
    # or 15 lots of 32 (1000 / 20 = 50).
    text = run("--clients", "600", "--backends", "1000", "--size", "20")

    assert "Measured on whole lots of clients, at least 480 of 600" in " ".join(text.split())


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "subset.png"
    run(*SMALL, "--compare", "--png", str(picture))

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "0"], "--size must be a whole number in [1, 10000], not 0"),
        (["--clients", "0"], "--clients must be a whole number in [1, 100000], not 0"),
        (["--backends", "-3"], "--backends must be a whole number in [1, 100000], not -3"),
        (["--seeds", "0"], "--seeds must be a whole number in [1, 1000], not 0"),
        (["--algorithm", "ring"], f"--algorithm must be one of {', '.join(NAMES)}, not 'ring'"),
        (["--png", "/nowhere/at/all.png"], "--png must be a file in a folder that exists, not"),
        (["--size", "many"], "Invalid value for '--size'"),
    ],
)
def test_wrong_input_is_refused_by_name(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert result.exit_code == 0
    assert result.stdout.startswith("evenly 0.")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_names_it(missing: str) -> None:
    done = process(f"import sys; sys.modules[{missing!r}] = None; import evenly.cli.main")

    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        'ImportError: the evenly command needs typer and rich: pip install "evenly[cli]"'
    )


def test_without_matplotlib_a_picture_is_refused() -> None:
    done = process(
        "import sys; sys.modules['matplotlib'] = None\n"
        "sys.argv[1:] = ['subset', '--png', 'x.png']\n"
        "from evenly.cli.main import run; run()"
    )

    assert done.returncode == 2
    assert '--png needs matplotlib: pip install "evenly[sim]"' in " ".join(done.stderr.split())
