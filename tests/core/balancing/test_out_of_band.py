"""When a backend is asked for its load out of band: not one of ours, and not one that has none."""

from __future__ import annotations

import random

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.out_of_band import OutOfBand
from evenly.core.client_task import ClientTask
from evenly.core.report import LoadReport
from evenly.testing import ManualClock
from tests.core.test_client_task import A, B, NoJitter, new_task

REPORT = LoadReport(boot=1, sequence=1, utilization=0.5, qps=100.0)


def plan_for(task: ClientTask, clock: ManualClock) -> OutOfBand:
    return OutOfBand(view_of(task), clock(), rng=NoJitter(0))


def view_of(task: ClientTask) -> BackendView:
    view = task._membership.view(A)
    assert view is not None
    return view


def test_who_says_nothing_in_our_words_is_asked_after_a_moment() -> None:
    clock = ManualClock()
    plan = plan_for(new_task(A, clock=clock), clock)

    assert plan.wait_seconds() == 1.0
    assert plan.may_ask(clock())


def test_one_of_ours_is_not_asked() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    plan = plan_for(task, clock)
    task.record_report(A, REPORT)

    assert not plan.may_ask(clock())
    assert plan.wait_seconds() is None


def test_who_is_found_to_be_one_of_ours_is_asked_no_more() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    plan = plan_for(task, clock)
    clock.advance(1.0)
    assert plan.may_ask(clock())
    task.record_report(A, REPORT, is_probe=True)

    assert plan.is_over
    plan.ended(is_offered=True)
    assert plan.wait_seconds() is None


def test_who_spoke_our_words_over_the_connection_before_is_looked_at_again() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    task.record_report(A, REPORT)
    clock.advance(1.0)
    plan = plan_for(task, clock)
    clock.advance(1.0)

    assert not plan.may_ask(clock())
    assert plan.wait_seconds() == 10.0
    clock.advance(57.9)  # 59.9 s after its last word.
    assert not plan.may_ask(clock())
    clock.advance(0.2)
    assert plan.may_ask(clock())


def test_where_it_is_not_offered_it_is_not_asked_for_again() -> None:
    clock = ManualClock()
    plan = plan_for(new_task(A, clock=clock), clock)
    plan.ended(is_offered=False)

    assert plan.is_over
    assert plan.wait_seconds() is None
    assert not plan.may_ask(clock())


def test_where_it_fails_it_is_asked_for_again_less_and_less_often() -> None:
    clock = ManualClock()
    plan = plan_for(new_task(A, clock=clock), clock)
    waits: list[float | None] = []
    for _ in range(13):
        assert plan.may_ask(clock())
        plan.ended(is_offered=True)
        waits.append(plan.wait_seconds())

    # gRPC's back-off: 1 s, times 1.6 each time, at most two minutes; 1.6 ** 11 is 176.
    assert waits == pytest.approx([*(1.6**times for times in range(11)), 120.0, 120.0])
    plan.heard()
    plan.ended(is_offered=True)
    assert plan.wait_seconds() == 1.0


def test_waits_are_spread() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock, rng=random.Random(1))
    plan = task.out_of_band(A)
    assert plan is not None
    waits = [plan.wait_seconds() for _ in range(100)]

    assert len(set(waits)) == len(waits)
    assert all(seconds is not None and 0.5 <= seconds <= 1.5 for seconds in waits)


def test_a_clock_that_steps_back_asks_nobody_too_soon() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    task.record_report(A, REPORT)
    clock.advance(1.0)
    plan = plan_for(task, clock)

    assert not plan.may_ask(clock() - 100.0)


def test_a_backend_that_left_is_not_asked() -> None:
    task = new_task(A, clock=ManualClock())
    task.update([B])

    assert task.out_of_band(A) is None
