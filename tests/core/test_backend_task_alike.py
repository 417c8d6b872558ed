"""A backend that refuses for another reason than its queue says a queue that would refuse alike."""

from __future__ import annotations

import random

import pytest

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.request import Outcome, Request
from evenly.testing import ManualClock


def backend(cores: float = 2.0, **settings: bool) -> tuple[BackendTask, ManualClock]:
    clock = ManualClock()
    config = BackendTaskConfig(cores=cores, **settings)  # type: ignore[arg-type]  # booleans
    return BackendTask(config, clock=clock, rng=random.Random(1), boot=1), clock


# Nothing was served yet, so n* = 1.25 · 2 + 1 = 3.5, and the queue is told as (1 + cut) · n*.
@pytest.mark.parametrize(
    ("memory", "cut", "expected"),
    [
        pytest.param(0.5, 0.0, 0.0, id="plenty: nothing is refused"),
        # SHEDDABLE's ramp is 0.88–0.91.
        pytest.param(0.895, 0.5, 1.5 * 3.5, id="half of SHEDDABLE is refused"),
        # CRITICAL's is 0.94–0.97.
        pytest.param(0.955, 2.5, 3.5 * 3.5, id="half of CRITICAL is refused"),
        pytest.param(1.5, 4.0, 5.0 * 3.5, id="everything is refused"),
    ],
)
def test_memory_is_told_as_a_queue(memory: float, cut: float, expected: float) -> None:
    task, clock = backend()
    task.record_signal("runnable", 0.0)
    task.record_signal("memory", memory)
    clock.advance(0.01)

    assert task.report().cut == pytest.approx(cut)
    assert task.report().runnable == pytest.approx(expected)


@pytest.mark.parametrize("cpu_seconds", [1e-12, 5e-324])
def test_requests_that_cost_next_to_nothing_make_no_queue_beyond_all_bounds(
    cpu_seconds: float,
) -> None:
    task, clock = backend()
    admission = task.admit(Request())
    assert isinstance(admission, Admission)
    admission.finish(Outcome.OK, cpu_seconds)
    task.record_signal("memory", 1.5)
    clock.advance(0.01)

    # A report refuses what is beyond its own bounds, and would not come about.
    assert task.report().runnable <= 1e15


def test_a_queue_of_its_own_that_is_longer_is_told_as_it_is() -> None:
    task, clock = backend()
    task.record_signal("memory", 0.895)
    task.record_signal("runnable", 50.0)
    clock.advance(0.01)

    assert task.report().runnable == 50.0


def overloaded(**settings: bool) -> tuple[BackendTask, ManualClock]:
    """Return one that serves 200 a second on two cores and has been asked for 400."""
    task, clock = backend(**settings)
    for _ in range(300):
        task.record_signal("runnable", 12.0)
        clock.advance(0.01)
        for luck in (0.98, 0.98, 0.0, 0.0):
            answer = task.admit(Request(luck=luck))
            if isinstance(answer, Admission) and luck:
                answer.finish(Outcome.OK, 0.01)
    return task, clock


def test_what_the_queue_refuses_is_told_as_the_queue_is_now() -> None:
    task, clock = overloaded()
    task.record_signal("runnable", 1.0)  # Refused by demand still, but short by now.
    clock.advance(0.01)

    assert task.report().cut > 2.0
    assert task.report().runnable == 1.0


def test_memory_that_refuses_less_than_the_queue_does_is_not_told() -> None:
    task, clock = overloaded()
    task.record_signal("runnable", 1.0)
    task.record_signal("memory", 0.895)
    clock.advance(0.01)

    assert task.report().cut > 2.0
    assert task.report().runnable == 1.0
