from __future__ import annotations

import math

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.doubts import Doubts
from evenly.core.report import LoadReport
from tests.core.balancing.views import START, new_view


def heard_view(name: str) -> BackendView:
    view = new_view(name)
    view.reports_since = START - 60.0
    return view


def say(
    doubts: Doubts, view: BackendView, *, eps: float, qps: float = 14.0, at: float = 0.0
) -> None:
    """Let one of five backends report."""
    report = LoadReport(qps=qps, eps=eps)
    doubts.record_report(view, report, min(1.0, eps / (qps + 0.01)), 4, START + at)


def test_the_first_error_of_a_backend_is_news_and_fades() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=1.0)

    assert doubts.of(view, START) == 1.0
    assert doubts.of(view, START + 7.0) == pytest.approx(math.exp(-1.0))
    assert doubts.of(view, START - 7.0) == 1.0  # A clock may step back.
    assert doubts.of(view, START + 33.0) == 0.0  # exp(−33 / 7) = 0.009 is forgotten.


def test_no_errors_are_no_news() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=0.0)
    say(doubts, view, eps=0.19)  # What is left of an error of 1.7 s ago.

    assert doubts.of(view, START) == 0.0


def test_where_others_fail_too_errors_are_ordinary() -> None:
    doubts = Doubts()
    views = [heard_view(name) for name in "abcde"]
    for view in views:
        say(doubts, view, eps=1.0)

    # (1 − others that have failed / 4)²
    strengths = [doubts.of(view, START) for view in views]
    assert strengths == [1.0, 0.75**2, 0.5**2, 0.25**2, 0.0]


def test_what_failed_lately_is_no_news() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=1.0)
    say(doubts, view, eps=0.0, at=1.0)  # All that it had since went well.
    say(doubts, view, eps=1.0, at=29.0)
    assert doubts.of(view, START + 29.0) == 0.0

    say(doubts, view, eps=1.0, at=59.1)
    assert doubts.of(view, START + 59.1) == 1.0


# Nothing went well between 1 and 5 s: that was no ordinary error, and does not excuse another's.
def test_a_fault_makes_no_errors_ordinary() -> None:
    doubts = Doubts()
    first, second = heard_view("a"), heard_view("b")
    say(doubts, first, eps=1.0)
    say(doubts, first, eps=1.0, qps=1.2, at=5.0)
    say(doubts, second, eps=1.0, at=6.0)
    assert doubts.of(second, START + 6.0) == 1.0

    say(doubts, first, eps=0.0, at=10.0)  # It is repaired, and fails again.
    assert doubts.of(first, START + 10.0) == 0.0
    say(doubts, first, eps=1.0, at=20.0)
    assert doubts.of(first, START + 20.0) == pytest.approx(0.75**2)  # b's was ordinary so far.


def test_of_one_never_heard_before_nobody_knows_what_is_ordinary() -> None:
    doubts, view = Doubts(), new_view("a")
    say(doubts, view, eps=1.0)

    assert doubts.of(view, START) == 0.0


# Of 14 requests in the last second one failed; each second leaves 1 / e of both.
def test_only_answers_that_went_well_refute_a_doubt() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=1.0)
    say(doubts, view, eps=0.01, qps=0.14, at=4.6)  # Nobody has sent to it since.
    assert doubts.of(view, START + 4.6) > 0.5

    say(doubts, view, eps=0.01, qps=1.0, at=4.7)
    assert doubts.of(view, START + 4.7) == 0.0


def test_another_error_begins_it_anew() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=1.0)
    say(doubts, view, eps=1.01, qps=1.14, at=5.0)

    assert doubts.of(view, START + 5.0) == 1.0


def test_one_that_left_is_forgotten() -> None:
    doubts, view = Doubts(), heard_view("a")
    say(doubts, view, eps=1.0)
    doubts.remove(view)

    assert doubts.of(view, START) == 0.0


def test_alone_it_is_not_in_doubt() -> None:
    doubts, view = Doubts(), heard_view("a")
    doubts.record_report(view, LoadReport(qps=14.0, eps=1.0), 0.07, 0, START)

    assert doubts.of(view, START) == 0.0
