from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import UsageError

# Each ending, whether bytes came back (so the backend lives), whether it weighs as an error, and
# whether the backend refused before it did anything.
ENDINGS = {
    Outcome.OK: (True, False, False),
    Outcome.ERROR: (True, True, False),
    Outcome.OVERLOADED: (True, True, True),  # a backend that refuses fast must not look idle
    Outcome.DONT_RETRY: (True, True, True),
    Outcome.OUT_OF_QUOTA: (True, False, True),  # the customer's doing, not the backend's
    Outcome.TIMEOUT: (False, True, False),
    Outcome.LOST: (False, True, False),
    Outcome.NOT_SENT: (False, True, False),
    Outcome.CANCELLED: (False, False, False),  # says nothing about the backend
}


def test_a_request_is_critical_and_without_customer_or_deadline_unless_told() -> None:
    request = Request()

    assert request.criticality is Criticality.CRITICAL
    assert request.customer == ""
    assert request.deadline_at is None


def test_a_request_is_not_idempotent_unless_told() -> None:
    # The dangerous answer has to be given: repeating what is not does the work twice.
    assert not Request().idempotent
    assert Request(idempotent=True) != Request()


def test_a_request_has_no_luck_until_somebody_needs_it() -> None:
    assert Request().luck is None


def test_a_request_with_another_deadline_has_the_same_luck() -> None:
    assert Request(luck=0.25).until(9.0).luck == 0.25
    assert Request().until(9.0).luck is None


# Luck comes later: a retry is of the same request, whether or not its first attempt drew one.
@pytest.mark.parametrize("other", [Request(luck=0.5), Request(luck=0.25), Request()])
def test_requests_that_ask_for_the_same_are_the_same_whatever_their_luck(other: Request) -> None:
    assert Request(luck=0.25).is_same(other)
    assert other.is_same(Request(luck=0.25))


@pytest.mark.parametrize(
    "other",
    [
        Request(criticality=Criticality.SHEDDABLE),
        Request(customer="a"),
        Request(deadline_at=1.0),
        Request(idempotent=True),
    ],
)
def test_requests_that_ask_for_something_else_are_not(other: Request) -> None:
    assert not Request().is_same(other)


def test_a_request_carries_what_the_call_site_said() -> None:
    request = Request(
        criticality=Criticality.SHEDDABLE,
        customer="indexer",
        deadline_at=12.5,
        idempotent=True,
        luck=0.25,
    )

    assert dataclasses.asdict(request) == {
        "criticality": Criticality.SHEDDABLE,
        "customer": "indexer",
        "deadline_at": 12.5,
        "idempotent": True,
        "luck": 0.25,
    }


def test_requests_that_say_the_same_are_equal() -> None:
    assert Request(customer="indexer") == Request(customer="indexer")
    assert Request(customer="indexer") != Request(customer="crawler")


def test_a_request_has_no_room_for_a_misspelt_attribute() -> None:
    assert not hasattr(Request(), "__dict__")


def test_every_outcome_is_in_the_table() -> None:
    assert list(ENDINGS) == list(Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_which_outcomes_are_answers_errors_and_rejections(outcome: Outcome) -> None:
    assert (outcome.is_answer, outcome.is_error, outcome.is_rejection) == ENDINGS[outcome]


def test_a_rejection_is_a_value() -> None:
    rejection = Rejection(Reason.AT_LIMIT, retryable=True)

    assert rejection == Rejection(reason=Reason.AT_LIMIT, retryable=True)
    assert rejection != Rejection(reason=Reason.NO_BACKEND, retryable=True)
    assert rejection != Rejection(reason=Reason.AT_LIMIT, retryable=False)
    assert len({rejection, Rejection(Reason.AT_LIMIT, retryable=True)}) == 1


def test_the_reasons_are_those_of_client_tasks_and_then_of_backends() -> None:
    by_client_task = ["EXPIRED", "THROTTLED", "NO_BACKEND", "NO_CONNECTION", "AT_LIMIT"]
    by_backend = ["OUT_OF_QUOTA", "OVERLOADED", "DONT_RETRY"]

    # Two with the same words would be one, and missing from the list.
    assert [reason.name for reason in Reason] == by_client_task + by_backend


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_says_in_words_what_happened(reason: Reason) -> None:
    assert len(reason.value.split()) >= 4
    assert reason.name not in reason.value


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (Reason.EXPIRED, Outcome.TIMEOUT),
        (Reason.OUT_OF_QUOTA, Outcome.OUT_OF_QUOTA),
        (Reason.OVERLOADED, Outcome.OVERLOADED),
        (Reason.DONT_RETRY, Outcome.DONT_RETRY),
    ],
)
def test_what_a_backend_refuses_ends_an_attempt(reason: Reason, outcome: Outcome) -> None:
    assert Rejection(reason, retryable=False).outcome is outcome


@pytest.mark.parametrize("reason", [Reason.THROTTLED, Reason.NO_BACKEND, Reason.AT_LIMIT])
def test_what_never_left_has_no_outcome(reason: Reason) -> None:
    with pytest.raises(UsageError, match=reason.name):
        _ = Rejection(reason, retryable=False).outcome


@pytest.mark.parametrize("reason", Reason)
def test_who_is_patient_waits_only_for_want_of_a_backend(reason: Reason) -> None:
    is_worth_waiting = reason in (Reason.NO_BACKEND, Reason.AT_LIMIT)

    assert Rejection(reason, retryable=False).is_for_want_of_backend is is_worth_waiting


@given(
    criticality=st.sampled_from(Criticality),
    customer=st.text(max_size=3),
    deadline_at=st.none() | st.floats(allow_nan=False),
    idempotent=st.booleans(),
)
def test_until_changes_the_deadline_and_nothing_else(
    criticality: Criticality, customer: str, deadline_at: float | None, idempotent: bool
) -> None:
    request = Request(
        criticality=criticality, customer=customer, deadline_at=1.0, idempotent=idempotent
    )

    assert request.until(deadline_at) == dataclasses.replace(request, deadline_at=deadline_at)
    assert request.deadline_at == 1.0
