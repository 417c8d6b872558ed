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


def test_the_architecture_fits_into_one_reading() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()

    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 115] == []


def test_every_decision_is_dated_and_every_page_of_them_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    index = pages.pop([page.name for page in pages].index("README.md")).read_text()
    entries = {page.name: re.findall(r"^## (.+)", page.read_text(), re.MULTILINE) for page in pages}

    assert sorted(re.findall(r"^\| \[\w+\]\(([\w-]+\.md)\)", index, re.MULTILINE)) == sorted(
        entries
    )
    for headings in entries.values():
        assert headings
        assert [each for each in headings if not re.search(r"\(20\d\d-\d\d-\d\d", each)] == []


def test_no_text_refers_to_a_document_outside_the_repository() -> None:
    kinds = {".py", ".md", ".toml", ".js", ".html", ".css"}
    folders = ("src", "tests", "docs", "bench", "examples", "scenarios")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    outside = re.compile(r"\b(?:DESIGN|FIELD|HOUSE_RULES)\b|design note|\b[Ii]ssue #?\d")

    assert [
        str(path.relative_to(ROOT))
        for path in files
        if (path.suffix in kinds or path.name == "Makefile")
        and path != Path(__file__)
        and outside.search(path.read_text())
    ] == []
