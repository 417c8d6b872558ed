"""A backend that refuses for another reason than its queue says a queue that would refuse alike."""

from __future__ import annotations

import random

import pytest

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.request import Outcome, Request
from evenly.testing import ManualClock


def backend(cores: float = 2.0) -> tuple[BackendTask, ManualClock]:
    clock = ManualClock()
    config = BackendTaskConfig(cores=cores, runnable_slack=4.0, burst_seconds=0.0)
    return BackendTask(config, clock=clock, rng=random.Random(1), boot=1), clock


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param(0.5, 0.0, id="plenty: nothing is refused"),
        # SHEDDABLE's ramps: memory 0.88–0.91, runnable 1.5–2.0 per core; half-way is 1.75.
        pytest.param(0.895, 4.0 + 2.0 * 1.75, id="half of SHEDDABLE is refused"),
        # CRITICAL's: 0.94–0.97 and 2.75–4.0; half-way is 3.375.
        pytest.param(0.955, 4.0 + 2.0 * 3.375, id="half of CRITICAL is refused"),
        # CRITICAL_PLUS's end: 1.0 and 8.0.
        pytest.param(1.5, 4.0 + 2.0 * 8.0, id="everything is refused"),
    ],
)
def test_memory_is_told_as_a_queue(memory: float, expected: float) -> None:
    task, clock = backend()
    task.record_signal("runnable", 0.0)
    task.record_signal("memory", memory)
    clock.advance(0.01)

    assert task.report().runnable == pytest.approx(expected)


def test_requests_that_cost_next_to_nothing_make_no_queue_beyond_all_bounds() -> None:
    task, clock = backend()
    admission = task.admit(Request())
    assert isinstance(admission, Admission)
    admission.finish(Outcome.OK, 1e-12)
    task.record_signal("memory", 1.5)
    clock.advance(0.01)

    assert task.report().runnable == 1e9


def test_a_queue_of_its_own_that_is_longer_is_told_as_it_is() -> None:
    task, clock = backend()
    task.record_signal("memory", 0.895)
    task.record_signal("runnable", 50.0)
    clock.advance(0.01)

    assert task.report().runnable == 50.0


def test_what_the_queue_refuses_is_told_as_the_queue_is_now() -> None:
    task, clock = backend()
    task.record_signal("runnable", 50.0)
    clock.advance(1.0)
    task.record_signal("runnable", 1.0)  # Refused for its average still, but short by now.

    assert task.report().admits != 0b1111
    assert task.report().runnable == 1.0
