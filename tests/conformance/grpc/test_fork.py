"""A process that has used a channel forks: both sides go on.

Plain gRPC's child does not always: with `GRPC_ENABLE_FORK_SUPPORT=1` it did so 8 times of 15 on a
busy machine, where evenly's did 15 times.  So plain gRPC is no truth here, and is not asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_parent_and_child_go_on_with_a_channel_that_was_used() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.conformance.grpc.fork_main", "evenly"],
        cwd=ROOT,
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
