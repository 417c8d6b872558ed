"""The HTTP examples do what their README says: real processes, real signals, counted requests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Only to end a test that hangs.
WAIT_SECONDS = 120.0


@contextmanager
def backend() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a backend; yield it and where it listens."""
    command = [sys.executable, "-m", "examples.http.backend", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split("/")[-1].strip()
        finally:
            process.kill()


def client(kind: str, *options: str, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"examples.http.client_{kind}", "--times", str(times)]
    return subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def served(output: str) -> dict[str, int]:
    lines = [line.split(" served ") for line in output.splitlines()[1:]]
    return {address: int(count) for address, count in lines}


@pytest.mark.parametrize("kind", ["httpx", "session"])
def test_hello_is_answered_by_both_backends_and_both_leave_cleanly(kind: str) -> None:
    with backend() as (first, first_address), backend() as (second, second_address):
        target = f"static:{first_address},{second_address}"
        asking = client(kind, "--target", target, times=100)
        output, _ = asking.communicate(timeout=WAIT_SECONDS)
        first.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGTERM)

        assert asking.returncode == 0
        assert output.startswith("Hello, world!\n")
        assert served(output).keys() == {first_address, second_address}
        assert sum(served(output).values()) == 100
        assert first.wait(WAIT_SECONDS) == 0
        assert second.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("kind", ["httpx", "session"])
def test_hello_goes_on_when_a_backend_is_asked_to_leave_in_the_middle(kind: str) -> None:
    with backend() as (first, first_address), backend() as (_, second_address):
        target = f"static:{first_address},{second_address}"
        # Its requests are 10 ms apart, and a lame duck leaves after a second without any.
        asking = client(kind, "--target", target, times=400)
        assert asking.stdout is not None
        greeting = asking.stdout.readline()
        first.send_signal(signal.SIGTERM)
        status = first.wait(WAIT_SECONDS)
        still_asking = asking.poll() is None
        output = greeting + asking.communicate(timeout=WAIT_SECONDS)[0]

        assert (status, asking.returncode) == (0, 0)
        assert still_asking
        assert sum(served(output).values()) == 400


def test_a_client_without_evenly_is_greeted_and_told_of_the_load() -> None:
    with backend() as (_, address):
        options = ["--url", f"http://{address}", "--criticality", "SHEDDABLE"]
        asking = client("aiohttp", *options, times=20)
        output, _ = asking.communicate(timeout=WAIT_SECONDS)

    greeting, load, *ends = output.splitlines()
    assert asking.returncode == 0
    assert greeting == "Hello, world!"
    assert load.startswith("TEXT cpu_utilization=")
    assert ends == ["20 × served"]
