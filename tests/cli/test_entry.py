"""How the command starts, with and without its extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_says_so_in_one_line(missing: str) -> None:
    done = process(
        "-c",
        f"import sys; sys.modules[{missing!r}] = None; from evenly.cli.entry import run; run()",
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == 'the evenly command needs typer and rich: pip install "evenly[cli]"\n'


def test_another_missing_module_is_not_taken_for_the_extra() -> None:
    done = process(
        "-c",
        "import sys; sys.modules['evenly.cli.subset_table'] = None\n"
        "from evenly.cli.entry import run; run()",
    )

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "evenly[cli]" not in done.stderr


def without_numpy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return process(
        "-c",
        "import sys; sys.modules['numpy'] = None\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "from evenly.cli.entry import run; run()",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("simulate", "--help"),
        ("figures", "--help"),
        ("subset", "--clients", "9", "--backends", "6", "--size", "3"),
    ],
    ids=" ".join,
)
def test_what_needs_no_simulator_runs_without_its_extra(arguments: tuple[str, ...]) -> None:
    done = without_numpy(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "overload"),
        ("simulate", "--swarm", "1"),
        ("simulate",),
        ("figures", "--out", "/nowhere/at/all"),
    ],
    ids=" ".join,
)
def test_without_the_simulators_extra_it_is_named(arguments: tuple[str, ...]) -> None:
    done = without_numpy(*arguments)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f'Error: evenly {arguments[0]} needs numpy: pip install "evenly[sim]"\n')


def test_the_package_runs_as_a_module() -> None:
    done = process("-m", "evenly", "--version")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("evenly 0.")
