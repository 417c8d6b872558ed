"""Nobody asks where to send a request when asking takes longer than the request."""

from __future__ import annotations

import random

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Rejection, Request
from evenly.testing import ManualClock

BACKENDS = [Backend(f"b{i}:1") for i in range(4)]
ROUND_TRIP_SECONDS = 0.01


def asked(*, latency_seconds: float, of_last: float | None = None) -> bool:
    """Ask once, answer after a round trip, let a second pass; return whether it asks again."""
    clock = ManualClock(1000.0)
    task = ClientTask(ClientTaskConfig(), clock=clock, rng=random.Random(1))
    task.update(BACKENDS)
    for backend in BACKENDS:
        task.record_connection(backend, ConnectionEvent.OPENED)
    first = task.begin(Request())
    assert isinstance(first, Ask)
    clock.advance(ROUND_TRIP_SECONDS)
    for backend in BACKENDS:
        told = of_last if of_last is not None and backend is BACKENDS[-1] else latency_seconds
        report = LoadReport(boot=1, latency_seconds=told)
        task.record_report(backend, report, is_probe=backend in first.backends)
    finish(first.resume())
    clock.advance(2.0)  # Facts are forgotten, and the periodic work is due.
    task.wake()
    return isinstance(task.begin(Request()), Ask)


def finish(answer: Attempt | Rejection) -> None:
    assert isinstance(answer, Attempt)
    answer.finish(Outcome.OK)


@pytest.mark.parametrize(
    ("latency_seconds", "expected"),
    [
        pytest.param(0.0, True, id="nobody says how long requests take"),
        pytest.param(0.001, False, id="a tenth of a round trip"),
        pytest.param(0.009, False, id="just below a round trip"),
        pytest.param(0.011, True, id="just above a round trip"),
        pytest.param(0.5, True, id="fifty round trips"),
    ],
)
def test_a_question_has_to_be_worth_its_wait(latency_seconds: float, expected: bool) -> None:
    assert asked(latency_seconds=latency_seconds) is expected


def test_one_that_says_milliseconds_for_seconds_makes_nobody_ask() -> None:
    assert not asked(latency_seconds=0.001, of_last=1.0)
    assert asked(latency_seconds=0.02, of_last=0.00002)
