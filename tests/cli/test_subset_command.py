from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evenly.cli.main import app
from evenly.cli.subset import _drawing_into, _duration
from evenly.cli.subset_table import _percent

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
    """Return the last line of a refused command, which is the message."""
    result = CliRunner().invoke(app, ["subset", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return result.output.splitlines()[-1]


def words(*arguments: str) -> str:
    """Return what a command prints as one line, however it was wrapped."""
    return " ".join(run(*arguments).split())


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


def test_json_has_the_real_sizes_beside_the_rows() -> None:
    document = json.loads(run(*SMALL, "--compare", "--json"))

    # 60 / 8 = 7.5.
    assert document["subset_sizes"]["nested"] == {"min": 7, "max": 8}
    assert document["subset_sizes"]["random"] == {"min": 5, "max": 5}
    assert list(document["subset_sizes"]) == NAMES


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


@pytest.mark.parametrize("columns", [40, 60, 75, 76, 80])
@pytest.mark.parametrize("arguments", [["--compare"], ["--algorithm", "random"]])
def test_no_terminal_is_too_narrow_for_a_number(
    monkeypatch: pytest.MonkeyPatch, columns: int, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = run("--clients", "60", "--backends", "40", "--size", "10", *arguments)

    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text
    # The drawn distribution is the first to go.
    assert ("0         mean      twice" in text) == (columns >= 76)
    for heading in ("rolling", "spare", "restart"):
        assert heading in text


def test_where_every_client_holds_everything_no_algorithm_is_praised() -> None:
    text = words("--clients", "30", "--backends", "3", "--compare")

    assert text.startswith("30 clients, 3 backends: every client holds all of them")
    assert "All the same here. Every client holds all 3 backends" in text
    assert "one backend at a time" in text
    assert "*" not in text


def test_one_of_each_is_singular() -> None:
    text = words("--clients", "1", "--backends", "1")

    assert text.startswith("1 client, 1 backend: every client holds it")
    assert "nested: Every client holds the one backend" in text
    assert "Size 20, recommended: there is one backend, which every client holds;" in text
    assert not re.search(r"\b1 (clients|backends|connections)\b", text)


def test_the_least_possible_is_said_only_of_what_is_near_it() -> None:
    nested = words(*SMALL, "--algorithm", "nested")
    rocksteadier = words(*SMALL, "--algorithm", "rocksteadier")

    assert "as it ends each of them once, less is not possible" in nested
    assert "less is not possible" not in rocksteadier
    assert "100% would be the least" in rocksteadier


def test_advice_about_nested_is_for_those_who_asked_for_it() -> None:
    nested, other = words(*SMALL), words(*SMALL, "--algorithm", "random")

    assert "so 5 is rounded up to 7 to 8 (at most twice the size)" in nested
    assert "subsets halve at" in nested
    assert "rounded" not in other
    assert "subsets halve at" not in other
    assert "--compare" in other


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--seeds", "3"], "--seeds is ignored: only random draws, and it is not shown.\n"),
        (["--compare", "--algorithm", "random"], "--algorithm is ignored: --compare shows all of"),
        (["--compare", "--seeds", "3"], ""),
        (["--algorithm", "random", "--seeds", "3"], ""),
    ],
)
def test_what_is_ignored_is_said(arguments: list[str], note: str) -> None:
    result = CliRunner().invoke(app, ["subset", *SMALL, "--json", *arguments])

    assert result.exit_code == 0
    assert result.stderr.startswith(note)
    assert bool(result.stderr) == bool(note)


def test_a_long_wait_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 client tasks, for which there are 31 subsets each, at 1 s: about 21 minutes.
    monkeypatch.setattr("evenly.cli.subset._SUBSET_MICROSECONDS", 1e6)
    result = CliRunner().invoke(app, ["subset", *SMALL, "--json"])

    assert result.stderr == "A large fleet: this takes about 21 minutes.\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (11, "10 seconds"),
        (54, "50 seconds"),
        (56, "a minute"),
        (91, "2 minutes"),
        (89 * 60, "89 minutes"),
        (91 * 60, "2 hours"),
    ],
)
def test_durations_are_rough(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0, "0"), (0.00004, "<0.01%"), (0.00005, "0.01%"), (0.0345, "3.45%"), (1.714, "171%")],
)
def test_a_small_share_is_not_nothing(ratio: float, text: str) -> None:
    assert _percent(ratio) == text


def test_help_shows_ranges_and_no_types() -> None:
    result = CliRunner().invoke(app, ["subset", "--help"])

    assert "1 to 100000" in result.stdout
    assert "1 to 10000;" in result.stdout
    assert "<" not in result.stdout


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

    assert "on the first clients only, at least 480 of 600, in whole lots" in " ".join(text.split())


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "subset.png"
    run(*SMALL, "--compare", "--png", str(picture))

    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_a_picture_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    # Nobody, not even root, can open a file whose name is too long.
    picture = tmp_path / f"{'x' * 300}.png"
    result = CliRunner().invoke(app, ["subset", *SMALL, "--png", str(picture)])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Invalid value for '--png': cannot write" in result.stderr
    assert "File name too long" in result.stderr


def test_a_disk_that_fills_up_is_no_traceback() -> None:
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("there is no /dev/full here")

    assert refusal(*SMALL, "--png", str(full)) == (
        "Error: Invalid value for '--png': cannot write /dev/full: No space left on device"
    )


def test_a_picture_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    picture = tmp_path / "subset.png"
    _drawing_into(picture)

    assert not picture.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "0"], "'--size': must be a whole number in [1, 10000], not 0"),
        (["--clients", "0"], "'--clients': must be a whole number in [1, 100000], not 0"),
        (["--backends", "-3"], "'--backends': must be a whole number in [1, 100000], not -3"),
        (["--seeds", "0"], "'--seeds': must be a whole number in [1, 1000], not 0"),
        (["--size", "many"], "'--size': must be a whole number in [1, 10000], not 'many'"),
        (["--size", "2.5"], "'--size': must be a whole number in [1, 10000], not '2.5'"),
        (["--algorithm", "ring"], f"'--algorithm': must be one of {', '.join(NAMES)}, not 'ring'"),
        (["--png", "/nowhere/at/all.png"], "'--png': must be a file in a folder that exists, not"),
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
    assert """'--png': needs matplotlib: pip install "evenly[sim]"\n""" in done.stderr
