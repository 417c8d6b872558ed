from __future__ import annotations

import time

import pytest

from evenly.core.backend_task import Admission
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import NoBackend, Overloaded
from evenly.runtime.answer import LoadEntries, details, gave_up, is_refusal, passed_on
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.wire.load_header import parse_load


@pytest.mark.parametrize(
    ("given_seconds", "passed_seconds", "outcome"),
    [
        (None, 1.0, Outcome.CANCELLED),
        (60.0, 1.0, Outcome.CANCELLED),
        (60.0, 61.0, Outcome.TIMEOUT),
        # What remains is sent rounded: 2 % and 20 ms before our own clock says so.
        (60.0, 59.0, Outcome.TIMEOUT),
        (0.1, 0.09, Outcome.TIMEOUT),
    ],
)
def test_who_left_by_its_deadline_timed_out(
    given_seconds: float | None, passed_seconds: float, outcome: Outcome
) -> None:
    admitted_at = time.monotonic() - passed_seconds
    deadline_at = None if given_seconds is None else admitted_at + given_seconds
    admission = BackendRuntime().admit(Request())
    assert isinstance(admission, Admission)
    admission.admitted_at = admitted_at

    assert gave_up(admission, deadline_at) is outcome


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (Overloaded(), True),
        (NoBackend(), True),
        (ExceptionGroup("", [Overloaded(), ExceptionGroup("", [NoBackend()])]), True),
        (ExceptionGroup("", [Overloaded(), ValueError()]), False),
        (ValueError(), False),
        (None, False),
    ],
)
def test_a_refusal_is_a_rejection_or_a_group_of_nothing_else(
    error: BaseException | None, is_one: bool
) -> None:
    assert is_refusal(error) is is_one


def test_what_a_refusal_says_to_people() -> None:
    quota = Rejection(Reason.OUT_OF_QUOTA, retryable=False, retry_after_seconds=1.25)
    text = details(quota, Request(customer="shop"))

    assert text == (
        "evenly: the customer is out of quota; CRITICAL, customer 'shop', quota again in 1.25 s"
    )
    # Each layer adds its own: it stays short.
    assert len(passed_on(text, ValueError("x" * 10_000))) < len(text) + 250


def entries(runtime: BackendRuntime, **arguments: float) -> LoadEntries[str]:
    def orca(report: LoadReport, memory: float) -> str:
        return f"orca {report.sequence}"

    return LoadEntries(runtime, load=str, orca=orca, **arguments)


def test_a_report_is_made_once_while_it_is_fresh_and_anew_when_the_state_changes() -> None:
    runtime = BackendRuntime()
    made = entries(runtime, fresh_seconds=3600.0)
    first = made.entries(True)

    assert made.entries(True) is first
    runtime.announce_healthy()
    second = made.entries(True)
    assert [parse_load(text) is not None for text in (*first, *second)] == [True, True]
    assert ";s=l;" in first[0]
    assert ";s=h;" in second[0]
    assert made.entries(False) == (*second, "orca 1")
    assert made.entries(False) is made.entries(False)


def test_a_report_that_is_not_fresh_is_made_anew() -> None:
    runtime = BackendRuntime()
    made = entries(runtime, fresh_seconds=0.0)
    before = made.entries(True)
    runtime.admit(Request())

    assert ";c=0;" in before[0]
    assert ";c=1;" in made.entries(True)[0]


def test_a_client_of_ours_is_told_nothing_twice_over_one_connection() -> None:
    runtime = BackendRuntime()
    made = entries(runtime, fresh_seconds=60.0)
    first = made.news_for("ipv4:10.0.0.1:1")

    assert len(first) == 1
    assert made.news_for("ipv4:10.0.0.1:1") == ()
    assert made.news_for("ipv4:10.0.0.1:2") == first
    runtime.announce_healthy()
    assert made.news_for("ipv4:10.0.0.1:1") not in ((), first)


def test_what_is_not_fresh_is_told_again() -> None:
    made = entries(BackendRuntime(), fresh_seconds=0.0)

    assert all(made.news_for("ipv4:10.0.0.1:1") for _ in range(3))


def test_who_wants_orca_always_is_told_always() -> None:
    made = entries(BackendRuntime(BackendConfig(orca="always")), fresh_seconds=60.0)

    assert all(len(made.news_for("ipv4:10.0.0.1:1")) == 2 for _ in range(3))
