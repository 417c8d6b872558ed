from __future__ import annotations

import math

import pytest

from evenly.core.overload.runnable import Runnable


def new_queue(cores: float = 4.0, busy_seconds: float = 1.0) -> Runnable:
    return Runnable(cores, busy_seconds, 100.0)


def test_what_is_recorded_holds_until_the_next_and_is_averaged_over_50_ms() -> None:
    queue = new_queue()
    queue.record(2.0, 100.0)
    queue.record(6.0, 100.005)
    # 2 for 5 ms and 6 for 5 ms are 4 for 10 ms.
    queue.fold(100.01)
    assert queue.count == 6.0
    assert queue.mean == pytest.approx(4.0 * (1.0 - math.exp(-0.2)))

    queue.fold(101.0)
    assert queue.mean == pytest.approx(6.0)


def test_a_fold_returns_for_how_many_core_seconds_the_cores_were_busy() -> None:
    queue = new_queue()
    queue.record(3.0, 100.0)
    queue.record(40.0, 101.0)
    # Three cores for a second and all four for half a second.
    assert queue.fold(101.5) == pytest.approx(3.0 + 2.0)
    assert queue.fold(101.5) == 0.0
    assert queue.fold(102.0) == pytest.approx(2.0)


@pytest.mark.parametrize("count", [math.nan, math.inf, -1.0, 1e10, "9", None], ids=repr)
def test_what_can_be_no_count_is_ignored(count: object) -> None:
    queue = new_queue()
    assert queue.record(3.0, 100.0)
    assert not queue.record(count, 101.0)  # type: ignore[arg-type]  # a reader that misbehaves

    assert queue.count == 3.0


def test_a_reader_that_fell_silent_is_unknown_after_five_seconds() -> None:
    queue = new_queue()
    assert not queue.is_known(100.0)
    assert queue.reported(7, 100.0) == 7.0  # All that are active may run.
    queue.record(3.0, 100.0)
    queue.fold(100.01)

    assert queue.is_known(105.0)
    assert queue.reported(7, 105.0) == 3.0
    assert queue.busy_ratio(105.0) == pytest.approx(3 / 4)
    assert not queue.is_known(105.001)
    assert (queue.reported(7, 105.001), queue.busy_ratio(105.001)) == (7.0, 0.0)


def test_what_was_before_a_silence_did_not_hold_all_the_while() -> None:
    queue = new_queue()
    queue.record(400.0, 100.0)
    queue.fold(101.0)
    queue.record(1.0, 160.0)

    assert queue.mean == 0.0
    assert queue.fold(160.01) == pytest.approx(0.01)
    assert queue.mean == pytest.approx(1.0 - math.exp(-0.2))
    assert queue.busy_ratio(160.01) == pytest.approx(1 / 4)  # and nothing of the four before


# However seldom somebody asks: a second that is over counts when it is.
def test_the_busy_part_is_averaged_by_the_time_that_it_held() -> None:
    queue = new_queue()
    queue.record(0.0, 100.0)
    queue.fold(100.5)
    queue.record(2.0, 100.5)
    queue.fold(101.5)

    assert queue.busy_ratio(101.5) == pytest.approx(0.5 * (1.0 - math.exp(-1.0)))


def test_a_clock_that_steps_back_counts_as_no_time_and_freezes_nothing() -> None:
    queue = new_queue()
    queue.record(4.0, 100.0)
    queue.fold(101.0)
    queue.record(2.0, 50.0)
    assert queue.fold(50.0) == 0.0

    assert queue.fold(51.0) == pytest.approx(2.0)
    assert queue.mean == pytest.approx(2.0)
