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


def test_the_package_runs_as_a_module() -> None:
    done = process("-m", "evenly", "--version")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("evenly 0.")
