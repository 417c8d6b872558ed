"""The example of a transport does what its README says: real processes, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Only to end a test that hangs.
WAIT_SECONDS = 120.0


@contextmanager
def backend() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a backend; yield it and where it listens."""
    command = [sys.executable, "-m", "examples.lines.greet_backend", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def test_no_request_fails_when_a_backend_is_asked_to_leave_in_the_middle() -> None:
    with backend() as (first, first_address), backend() as (second, second_address):
        command = [sys.executable, "-m", "examples.lines.greet_client", "--times", "400"]
        target = f"static:{first_address},{second_address}"
        asking = subprocess.Popen(
            [*command, "--target", target], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout is not None
        greeting = asking.stdout.readline()
        # Its requests are 10 ms apart, and a lame duck leaves after a second without any.
        first.send_signal(signal.SIGTERM)
        status = first.wait(WAIT_SECONDS)
        still_asking = asking.poll() is None
        output = greeting + asking.communicate(timeout=WAIT_SECONDS)[0]
        second.send_signal(signal.SIGTERM)

        assert output == "Hello, world!\n400 served\n"
        assert still_asking
        assert (status, asking.returncode, second.wait(WAIT_SECONDS)) == (0, 0, 0)
