"""The README's code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_readme_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)

    assert len(blocks) == 1
    exec(compile(blocks[0], str(README), "exec"), {})  # noqa: S102 -- it is our own README


def test_readme_links_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())

    missing = [target for target in targets if not (README.parent / target).exists()]
    assert len(targets) > 5
    assert missing == []
