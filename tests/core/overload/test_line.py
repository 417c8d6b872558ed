from __future__ import annotations

import math

import pytest

from evenly.core.overload.line import Line

FRESH_SECONDS = 2.0


def line_at(cut: float, now: float = 100.0) -> Line:
    line = Line(FRESH_SECONDS)
    line.record(cut, now)
    return line


def test_who_has_heard_nothing_holds_nothing_back() -> None:
    line = Line(FRESH_SECONDS)

    assert line.value == 0.0
    assert not line.is_raised
    assert not line.is_fresh(0.0)


@pytest.mark.parametrize(
    ("cut", "value"),
    [
        pytest.param(0.0, 0.0, id="nothing is refused"),
        pytest.param(0.02, 0.0, id="less than the margin"),
        pytest.param(1.5, 1.47, id="half of SHEDDABLE_PLUS, less 0.03"),
        pytest.param(4.0, 3.97, id="everything"),
    ],
)
def test_the_first_report_is_believed_at_once_less_a_margin(cut: float, value: float) -> None:
    line = line_at(cut)

    assert line.value == pytest.approx(value)
    assert line.last == cut
    assert line.is_raised is (cut > 0.0)
    assert line.is_fresh(100.0)


# A report speaks for the time since the one before: gain = 1 − exp(−seconds / 0.1).
@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        pytest.param(0.0, 3.0 * math.exp(-0.001) - 0.03, id="at once: as if 0.1 ms had passed"),
        pytest.param(0.01, 3.0 * math.exp(-0.1) - 0.03, id="10 ms"),
        pytest.param(0.1, 3.0 * math.exp(-1.0) - 0.03, id="0.1 s"),
        pytest.param(1.0, 0.0, id="1 s"),
        pytest.param(-5.0, 3.0 * math.exp(-0.001) - 0.03, id="the clock has stepped back"),
    ],
)
def test_the_line_is_the_average_over_a_tenth_of_a_second(seconds: float, value: float) -> None:
    line = line_at(3.0)
    line.record(0.0, 100.0 + seconds)

    assert line.value == pytest.approx(value, abs=1e-12)
    assert line.last == 0.0


def test_several_backends_that_report_in_turn_are_averaged() -> None:
    line = line_at(0.0)
    for tick in range(1, 1001):
        line.record(2.0 if tick % 2 else 1.0, 100.0 + tick * 0.001)

    assert line.value == pytest.approx(1.5 - 0.03, abs=0.01)


def test_reports_of_one_instant_count_each() -> None:
    line = line_at(0.0)
    for _ in range(100):
        line.record(2.0, 100.0)

    # A hundred of 0.1 ms are 10 ms.
    assert line.value == pytest.approx(2.0 * (1.0 - math.exp(-0.1)) - 0.03)


@pytest.mark.parametrize(
    ("pause", "value"),
    [
        pytest.param(2.0, 3.0 * math.exp(-20.0) + 1.0 * (1.0 - math.exp(-20.0)) - 0.03, id="2 s"),
        pytest.param(2.001, 1.0 - 0.03, id="longer: what was before is not averaged with it"),
        pytest.param(86_400.0, 1.0 - 0.03, id="a day"),
    ],
)
def test_after_a_silence_it_begins_anew(pause: float, value: float) -> None:
    line = line_at(3.0)
    line.record(1.0, 100.0 + pause)

    assert line.value == pytest.approx(value, rel=1e-12)


def test_what_was_heard_is_fresh_for_so_long() -> None:
    line = line_at(3.0)

    assert line.is_fresh(102.0)
    assert not line.is_fresh(102.001)
    line.record(3.0, 103.0)
    assert line.is_fresh(105.0)


# An average falls for ever: 2 · exp(−t / 0.1) is below 1 / 64 after 0.485 s.
def test_it_ends_when_hardly_anything_would_be_held_back() -> None:
    line = line_at(2.0)
    for tick in range(1, 49):
        line.record(0.0, 100.0 + tick * 0.01)
    was_raised = line.is_raised
    line.record(0.0, 100.49)

    assert (was_raised, line.is_raised) == (True, False)
    assert line.value == 0.0


def test_a_little_that_is_refused_is_not_nothing() -> None:
    line = line_at(2.0)
    for tick in range(1, 1001):
        line.record(0.01, 100.0 + tick * 0.01)

    assert line.is_raised
    assert line.value == 0.0  # 0.01 is within the margin: all are sent.


def test_while_it_rises_it_is_raised_with_the_first_word() -> None:
    line = line_at(0.0)
    line.record(1.0, 100.0)  # At the same instant: 1 − exp(−0.001) of it.

    assert line.is_raised
    assert line.value == 0.0
    assert line.last == 1.0
