"""The documents tell the truth where a machine can check: links, paths, the README's code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_readme_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)

    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102 -- it is our own README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|bench|docs)/[\w/.-]+)`", page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_linked_from_the_readme_or_the_api_page() -> None:
    linked = (ROOT / "README.md").read_text() + (ROOT / "docs" / "api.md").read_text()

    missing = [page.name for page in ROOT.glob("docs/*.md") if page.name not in linked]
    assert missing == []
