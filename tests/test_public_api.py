from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import evenly
import evenly.testing

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", [evenly, evenly.testing], ids=lambda module: module.__name__)
def test_all_lists_exactly_the_public_names(module: object) -> None:
    listed = getattr(module, "__all__")  # noqa: B009 -- mypy knows no __all__ on a plain object
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("evenly.")
    }

    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize("name", evenly.__all__)
def test_every_public_name_is_documented_and_type_checked(name: str) -> None:
    documented = (ROOT / "docs" / "api.md").read_text()
    typed = (ROOT / "tests" / "typing" / "api.py").read_text()

    assert f"evenly.{name}" in documented
    assert re.search(rf"\bevenly\.{name}\b", typed)


def test_importing_evenly_imports_no_third_party_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import evenly;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'evenly'}))"
    )
    # -S and -I keep site-packages' own start-up hooks out of the comparison.
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == []
