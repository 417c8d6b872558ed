from __future__ import annotations

import dataclasses

import pytest

from evenly.core.criticality import Criticality
from evenly.core.request import Outcome, Reason, Rejection, Request

# Each ending, whether bytes came back (so the backend lives), and whether it weighs as an error.
ENDINGS = {
    Outcome.OK: (True, False),
    Outcome.ERROR: (True, True),
    Outcome.OVERLOADED: (True, True),  # a backend that refuses fast must not look idle
    Outcome.DONT_RETRY: (True, True),
    Outcome.OUT_OF_QUOTA: (True, False),  # the customer's doing, not the backend's
    Outcome.TIMEOUT: (False, True),
    Outcome.LOST: (False, True),
    Outcome.NOT_SENT: (False, True),
    Outcome.CANCELLED: (False, False),  # says nothing about the backend
}


def test_a_request_is_critical_and_without_customer_or_deadline_unless_told() -> None:
    request = Request()

    assert request.criticality is Criticality.CRITICAL
    assert request.customer == ""
    assert request.deadline_at is None


def test_a_request_carries_what_the_call_site_said() -> None:
    request = Request(criticality=Criticality.SHEDDABLE, customer="indexer", deadline_at=12.5)

    assert dataclasses.asdict(request) == {
        "criticality": Criticality.SHEDDABLE,
        "customer": "indexer",
        "deadline_at": 12.5,
    }


def test_requests_that_say_the_same_are_equal() -> None:
    assert Request(customer="indexer") == Request(customer="indexer")
    assert Request(customer="indexer") != Request(customer="crawler")


def test_a_request_has_no_room_for_a_misspelt_attribute() -> None:
    assert not hasattr(Request(), "__dict__")


def test_every_outcome_is_in_the_table() -> None:
    assert list(ENDINGS) == list(Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_which_outcomes_are_answers_and_which_count_as_errors(outcome: Outcome) -> None:
    assert (outcome.is_answer, outcome.is_error) == ENDINGS[outcome]


def test_a_rejection_is_a_value() -> None:
    rejection = Rejection(Reason.AT_LIMIT, retryable=True)

    assert rejection == Rejection(reason=Reason.AT_LIMIT, retryable=True)
    assert rejection != Rejection(reason=Reason.NO_BACKEND, retryable=True)
    assert rejection != Rejection(reason=Reason.AT_LIMIT, retryable=False)
    assert len({rejection, Rejection(Reason.AT_LIMIT, retryable=True)}) == 1


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_says_in_words_what_happened(reason: Reason) -> None:
    assert "backend" in reason.value
