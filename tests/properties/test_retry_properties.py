from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenly.core.overload.retry import (
    AttemptHistogram,
    AttemptHistogramConfig,
    RetryBudget,
    RetryConfig,
)

# True: a request; False: a retry is wanted; None: the last paid retry found no backend.
steps = st.lists(st.sampled_from([True, False, None]), max_size=300)


@given(steps=steps)
def test_retries_are_at_most_a_tenth_of_the_requests_and_three(steps: list[bool | None]) -> None:
    budget = RetryBudget(RetryConfig())
    requests = retries = 0
    for is_request in steps:
        if is_request:
            budget.earn()
            requests += 1
        elif is_request is None:
            if retries:
                budget.give_back()
                retries -= 1
        elif budget.take():
            retries += 1
        assert 10 * retries <= requests + 30  # in whole numbers: exact
        assert 0.0 <= budget.balance <= 100.0


@given(
    steps=steps,
    ratio=st.integers(min_value=0, max_value=1000),
    initial=st.integers(min_value=0, max_value=5000),
    room=st.integers(min_value=0, max_value=5000),
)
def test_a_budget_is_never_overdrawn_and_never_refuses_what_it_has(
    steps: list[bool | None], ratio: int, initial: int, room: int
) -> None:
    # In thousandths, which a model in whole numbers follows exactly.
    most = initial + room
    budget = RetryBudget(
        RetryConfig(
            budget_ratio=ratio / 1000, initial_balance=initial / 1000, max_balance=most / 1000
        )
    )
    balance = initial
    for is_request in steps:
        if is_request:
            budget.earn()
            balance = min(most, balance + ratio)
        elif is_request is None:
            budget.give_back()
            balance = min(most, balance + 1000)
        else:
            assert budget.take() is (balance >= 1000)
            balance -= 1000 if balance >= 1000 else 0
        assert budget.balance == balance / 1000


@given(
    attempts=st.lists(
        st.one_of(st.integers(min_value=1, max_value=3), st.integers(), st.just(10**9)),
        max_size=200,
    ),
    first_attempts=st.integers(min_value=1, max_value=20),
    min_ratio=st.floats(min_value=0.0, max_value=1.0),
    arrivals_per_first=st.integers(min_value=1, max_value=4),
)
def test_histogram_against_a_list(
    attempts: list[int], first_attempts: int, arrivals_per_first: int, min_ratio: float
) -> None:
    min_arrivals = max(1, round(min_ratio * first_attempts))
    histogram = AttemptHistogram(
        AttemptHistogramConfig(
            first_attempts=first_attempts,
            arrivals_per_first=arrivals_per_first,
            min_arrivals=min_arrivals,
            widespread_ratio=0.25,  # a power of two: no rounding to argue about
        )
    )
    history: list[int] = []
    for attempt in attempts:
        histogram.record(attempt)
        history.append(min(10, max(1, attempt)))
        # The longest recent history that keeps both bounds.
        history = next(
            history[start:]
            for start in range(len(history) + 1)
            if history[start:].count(1) <= first_attempts
            and len(history) - start <= first_attempts * arrivals_per_first
        )
        snapshot = histogram.snapshot()
        assert snapshot.counts == tuple(history.count(number) for number in range(1, 11))
        retries = len(history) - history.count(1)
        assert snapshot.retries_are_widespread is (
            len(history) >= min_arrivals and retries / len(history) > 0.25
        )
