from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import evenly
import evenly.config
import evenly.grpc
import evenly.grpc.sync
import evenly.testing

ROOT = Path(__file__).parents[1]
MODULES = (evenly, evenly.config, evenly.grpc, evenly.grpc.sync, evenly.testing)
NAMES = [f"{module.__name__}.{name}" for module in MODULES for name in module.__all__]


def run(code: str) -> str:
    """Run Python code in a process of its own; return what it prints."""
    # -I keeps the environment and this directory out; start-up hooks of site-packages are done.
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    return found.stdout


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_lists_exactly_the_public_names(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("evenly.")
    }

    assert sorted(module.__all__) == sorted(public)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented_and_type_checked(name: str) -> None:
    documented = (ROOT / "docs" / "api.md").read_text()
    typed = (ROOT / "tests" / "typing" / "api.py").read_text()

    whole = rf"\b{re.escape(name)}\b"
    assert re.search(whole, documented)
    assert re.search(whole, typed)


def test_importing_evenly_imports_no_third_party_package() -> None:
    printed = run(
        "import sys; before = set(sys.modules); import evenly;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'evenly'}))"
    )

    assert printed.split() == []


@pytest.mark.parametrize("module", ["evenly.grpc", "evenly.grpc.sync"])
@pytest.mark.parametrize("package", ["grpc", "grpc_health", "xds"])
def test_without_a_package_of_the_extra_the_import_error_names_it(
    module: str, package: str
) -> None:
    printed = run(f"""
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
try:
    importlib.import_module({module!r})
except ImportError as error:
    print(error)
""")

    assert 'pip install "evenly[grpc]"' in printed
    assert package in printed
