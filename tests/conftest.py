"""What every test begins with."""

from __future__ import annotations

import pytest

from evenly.runtime.memories import MEMORIES


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    """Forget what earlier tests have learnt of a port that this one may be given again."""
    MEMORIES.forget()
