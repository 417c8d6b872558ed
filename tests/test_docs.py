"""The documents tell the truth where a machine can check: links, paths, the README's code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def test_readme_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)

    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102 -- it is our own README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|bench|docs|examples)/[\w/.-]+)`", page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_to_run_exist(page: Path) -> None:
    modules = re.findall(r"python -m ((?:examples|bench|evenly)[\w.]*)", page.read_text())

    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_the_change_that_the_readme_shows_is_the_one_that_the_example_makes() -> None:
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    added = re.findall(r"^\+.*?(evenly\.grpc\.\w+\()", "".join(diffs), flags=re.MULTILINE)
    example = ROOT / "examples" / "grpc" / "hello"
    marked = [
        line
        for name in ("client.py", "backend.py")
        for line in (example / name).read_text().splitlines()
        if "# CHANGED" in line
    ]

    assert len(added) == len(marked) == 3
    assert all(call in line for call, line in zip(added, marked, strict=True))


def test_every_page_is_linked_from_the_readme_or_the_api_page() -> None:
    linked = (ROOT / "README.md").read_text() + (ROOT / "docs" / "api.md").read_text()

    missing = [page.name for page in ROOT.glob("docs/*.md") if page.name not in linked]
    assert missing == []
