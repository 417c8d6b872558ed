"""The gRPC examples do what their README says: real processes, real signals, counted requests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Only to end a test that hangs; on an idle machine hello takes 5 s, and the stack 30.
WAIT_SECONDS = 300.0
# A process that the machine leaves waiting sheds what has piled up meanwhile, as it should; other
# tests may run beside these.
MOST = 0.8

Row = dict[str, Any]


@contextmanager
def backend(kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a backend of hello; yield it and where it listens."""
    command = [sys.executable, "-m", f"examples.grpc.hello.backend{kind}", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def client(kind: str, *addresses: str, times: int) -> subprocess.Popen[str]:
    target = f"static:{','.join(addresses)}"
    command = [sys.executable, "-m", f"examples.grpc.hello.client{kind}", "--target", target]
    return subprocess.Popen(
        [*command, "--times", str(times)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def served(output: str) -> dict[str, int]:
    lines = [line.split(" served ") for line in output.splitlines()[1:]]
    return {address: int(count) for address, count in lines}


@pytest.fixture(params=["", "_threads"], ids=["asyncio", "threads"])
def kind(request: pytest.FixtureRequest) -> str:
    """Say which of the two hellos it is."""
    return str(request.param)


def test_hello_is_answered_by_both_backends_and_both_leave_cleanly(kind: str) -> None:
    with backend(kind) as (first, first_address), backend(kind) as (second, second_address):
        asking = client(kind, first_address, second_address, times=100)
        output, _ = asking.communicate(timeout=WAIT_SECONDS)
        first.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGTERM)

        assert asking.returncode == 0
        assert output.startswith("Hello, world!\n")
        assert served(output).keys() == {first_address, second_address}
        assert sum(served(output).values()) == 100
        assert first.wait(WAIT_SECONDS) == 0
        assert second.wait(WAIT_SECONDS) == 0


def test_hello_goes_on_when_a_backend_is_asked_to_leave_in_the_middle(kind: str) -> None:
    with backend(kind) as (first, first_address), backend(kind) as (_, second_address):
        # Its requests are 10 ms apart, and a lame duck leaves after a second without any.
        asking = client(kind, first_address, second_address, times=500)
        assert asking.stdout is not None
        greeting = asking.stdout.readline()
        first.send_signal(signal.SIGTERM)
        status = first.wait(WAIT_SECONDS)
        still_asking = asking.poll() is None
        output = greeting + asking.communicate(timeout=WAIT_SECONDS)[0]

        assert (status, asking.returncode) == (0, 0)
        assert still_asking
        assert sum(served(output).values()) == 500


@pytest.fixture(scope="module")
def story() -> dict[str, Any]:
    """Run the stack once; it stops its processes itself."""
    command = [sys.executable, "-m", "examples.grpc.stack.run", "--seconds", "3", "--json"]
    found = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=WAIT_SECONDS, check=True
    )
    told: dict[str, Any] = json.loads(found.stdout)
    return told


@pytest.fixture
def rows(story: dict[str, Any]) -> dict[str, Row]:
    return {row["story"]: row for row in story["rows"]}


def sent(row: Row) -> int:
    kinds = ("fresh", "old", "not_shown", "bought", "not_bought")
    return sum(row[kind] for kind in kinds)


def logged(row: Row) -> list[list[str]]:
    """Return layer, criticality and what happened of each line."""
    return [line.split(maxsplit=2) for line in row["log"]]


@pytest.mark.parametrize("name", ["serves", "serves again"])
def test_everyone_is_served_before_the_overload_and_after_it(
    rows: dict[str, Row], name: str
) -> None:
    row = rows[name]

    assert sent(row) == 62  # one show, one buy, then 3 s · 20 a second
    assert row["fresh"] >= MOST * 31
    assert row["bought"] >= MOST * 31
    assert row["old"] == 0


def test_the_criticality_that_the_frontend_gives_arrives_at_the_bottom(
    rows: dict[str, Row],
) -> None:
    layers = ["frontend", "a", "b", "db-frontend"]

    # Sorted, because they are read from five pipes.
    assert sorted(logged(rows["serves"])) == sorted(
        [
            *([layer, "SHEDDABLE", "Show tea"] for layer in layers),
            *([layer, "CRITICAL_PLUS", "Buy tea"] for layer in layers),
        ]
    )


def test_where_the_less_critical_is_refused_its_answers_are_degraded_and_marked(
    rows: dict[str, Row],
) -> None:
    row = rows["refuses SHEDDABLE"]

    assert row["fresh"] == 0
    assert row["old"] >= MOST * 31
    assert row["bought"] >= MOST * 31
    assert ["a", "SHEDDABLE", "degraded: yesterday's price of tea"] in logged(row)


def test_where_everything_is_refused_the_bottom_sees_fewer_requests_than_users_send(
    rows: dict[str, Row],
) -> None:
    row = rows["refuses everything"]

    assert row["fresh"] == row["bought"] == 0
    assert row["old"] > 0
    assert row["at_db_frontend"] <= sent(row)


def test_only_the_layer_right_above_tries_again(rows: dict[str, Row]) -> None:
    row = rows["refuses everything; throttles off"]
    attempts = [(layer, what) for layer, _, what in logged(row) if what.startswith("attempt")]

    # B has 3 retries to begin with, and earns one in ten requests: (62 + 3 + 6) / 62 = 1.15.  The
    # frontend and A have as many, and use none.
    assert row["at_b"] <= row["at_a"] <= sent(row)
    assert row["at_b"] < row["at_db_frontend"] <= 1.4 * sent(row)
    assert {layer for layer, _ in attempts} == {"b"}
    assert any(layer == "a" and "do not retry" in what for layer, _, what in logged(row))


def test_without_evenly_three_attempts_in_three_layers_are_27(rows: dict[str, Row]) -> None:
    row = rows["refuses everything; gRPC's retries"]

    assert row["not_bought"] == sent(row)
    assert row["at_db_frontend"] >= MOST * 27 * sent(row)


def test_every_layer_leaves_cleanly_at_sigterm(story: dict[str, Any]) -> None:
    assert story["exit_statuses"] == {"frontend": 0, "a": 0, "b": 0, "db-frontend": 0}
