from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from evenly.cli.main import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["figures", *arguments])


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("figures") / "new" / "folder"
    return out, run("--out", str(out), "--only", "20-5", "--seed", "7")


def test_a_figure_is_a_picture_its_numbers_and_a_page(drawn: tuple[Path, Result]) -> None:
    out, result = drawn

    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in out.iterdir())
    assert names == ["figure-20-5.json", "figure-20-5.png", "index.html"]
    assert (out / "figure-20-5.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_say_where_they_come_from(drawn: tuple[Path, Result]) -> None:
    out, _ = drawn
    document = json.loads((out / "figure-20-5.json").read_text(encoding="utf-8"))

    assert document["figure"] == "20-5"
    assert document["seed"] == 7
    assert document["commit"]
    assert document["numbers"]["deterministic"]["connections_by_backend"] == [10] * 300


def test_the_page_says_how_to_repeat_it(drawn: tuple[Path, Result]) -> None:
    out, _ = drawn
    page = (out / "index.html").read_text(encoding="utf-8")

    assert "evenly figures --out figures --seed 7 --only 20-5" in page
    assert "Figure 20-5." in page
    assert "Figure 20-4." not in page


def test_the_comparison_is_shown_and_where_to_look(drawn: tuple[Path, Result]) -> None:
    out, result = drawn

    # Lines about progress come before it where the machine is slow.
    assert re.search(
        rf"^Drawn: 1 figure in \d+ s; open {re.escape(str(out))}/index.html\n\Z",
        result.stderr,
        re.MULTILINE,
    )
    assert "exactly 10 each" in " ".join(result.stdout.split())


def test_refusals(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    assert "must be one of 20-1, 20-2" in refusal("--out", str(tmp_path), "--only", "20-9")
    assert "cannot write into" in refusal("--out", str(file))
    assert "'--seed': must be a whole number in [0, 9223372036854775807], not -1" in refusal(
        "--out", str(tmp_path), "--seed", "-1"
    )
    assert "--out" in refusal()
    assert list(tmp_path.iterdir()) == [file]
