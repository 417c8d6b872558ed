"""What every test begins with."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from evenly.runtime.memories import MEMORIES

# A busy machine is slow, and that is no fault of what is tested.
settings.register_profile(
    "evenly", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("evenly")

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    """Forget what earlier tests have learnt of a port that this one may be given again."""
    MEMORIES.forget()
