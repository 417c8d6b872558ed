from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return what the fakes were told, without how they were started."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("FAKE_LOG", str(path))
    return lambda: [line for line in path.read_text().splitlines() if " start " not in line]


@pytest.fixture
def starts(log: object) -> Callable[[], list[dict[str, Any]]]:
    """Return the settings of all processes that were started, in order."""
    path = Path(os.environ["FAKE_LOG"])
    return lambda: [
        json.loads(line.partition(" start ")[2])
        for line in path.read_text().splitlines()
        if " start " in line
    ]
