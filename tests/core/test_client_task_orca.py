"""What a stock backend says in ORCA makes its weight, and nothing else."""

from __future__ import annotations

from evenly.core.balancing.health import State
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTask
from evenly.core.report import LoadReport
from evenly.core.request import Outcome
from evenly.testing import ManualClock
from tests.core.test_client_task import LOST, OPENED, REFUSED, A, B, begin, new_task, shown

AT_ONCE = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0)
BUSY = LoadReport(utilization=0.8, qps=100.0)
IDLE = LoadReport(utilization=0.2, qps=100.0)


def weighted(clock: ManualClock) -> ClientTask:
    return new_task(A, B, policy="weighted_round_robin", clock=clock, weights=AT_ONCE)


def told(task: ClientTask, clock: ManualClock, seconds: int = 30) -> None:
    for _ in range(seconds):
        task.record_orca(A, BUSY)
        task.record_orca(B, IDLE)
        clock.advance(1.0)
        task.wake()
        begin(task).finish(Outcome.OK)


def test_weights_follow_it() -> None:
    clock = ManualClock()
    task = weighted(clock)
    told(task, clock)

    assert shown(task, B).weight > 2.0 * shown(task, A).weight
    assert shown(task, A).utilization == BUSY.utilization


def test_it_says_nothing_of_what_is_admitted() -> None:
    clock = ManualClock()
    task = weighted(clock)
    before = task.snapshot().throttle
    told(task, clock, seconds=1)

    assert task.snapshot().throttle == before


def test_it_does_not_say_that_a_backend_accepts_connections() -> None:
    clock = ManualClock()
    task = weighted(clock)
    task.record_connection(A, REFUSED)
    task.record_orca(A, IDLE)

    assert shown(task, A).state is State.REFUSING


def test_our_own_words_outrank_it_while_they_are_fresh() -> None:
    clock = ManualClock()
    task = weighted(clock)
    task.record_report(A, BUSY)
    view = task._membership.view(A)
    assert view is not None
    assert not task.wants_orca(view)
    clock.advance(1.0)
    assert task.wants_orca(view)
    task.record_orca(A, IDLE)
    assert not task.wants_orca(view)


def test_what_was_said_before_the_connection_was_lost_may_be_anothers() -> None:
    clock = ManualClock()
    task = weighted(clock)
    told(task, clock)
    task.record_connection(A, LOST)
    clock.advance(5.0)
    task.wake()
    task.record_connection(A, OPENED)

    assert shown(task, A).utilization is None


def test_a_backend_that_left_is_not_learnt_of() -> None:
    clock = ManualClock()
    task = weighted(clock)
    task.update([B])
    task.record_orca(A, BUSY)

    assert [one.address for one in task.snapshot().backends] == [B.address]
