"""What every test begins with."""

from __future__ import annotations

import signal

import pytest

from evenly.runtime.memories import MEMORIES

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    """Forget what earlier tests have learnt of a port that this one may be given again."""
    MEMORIES.forget()
