from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from evenly.core.claim import ATTEMPT_MAX
from evenly.core.overload.retry import (
    AttemptHistogram,
    AttemptHistogramConfig,
    RetryBudget,
    RetryConfig,
    may_retry,
)
from evenly.core.request import Outcome
from evenly.errors import ConfigError


def attempts_of(budget: RetryBudget | None, config: RetryConfig, reject: Callable[[], bool]) -> int:
    """Send one request to backends that reject it or not; return how often it was sent."""
    if budget is not None:
        budget.earn()
    attempt = 1
    while (
        reject()
        and may_retry(Outcome.OVERLOADED, idempotent=False)
        and attempt < config.attempts
        and (budget is None or budget.take())
    ):
        attempt += 1
    return attempt


def test_budget_starts_at_three_and_earns_a_tenth_per_request() -> None:
    budget = RetryBudget(RetryConfig())

    assert budget.balance == 3.0
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    for _ in range(9):
        budget.earn()
    assert budget.balance == 0.9
    assert not budget.take()
    budget.earn()
    assert budget.balance == 1.0  # exactly: ten times 0.1 as floats would not be enough
    assert budget.take()
    assert budget.balance == 0.0


def test_budget_is_capped() -> None:
    budget = RetryBudget(RetryConfig(max_balance=5.0))
    for _ in range(1000):
        budget.earn()

    assert budget.balance == 5.0


def test_a_retry_that_found_no_backend_is_given_back() -> None:
    budget = RetryBudget(RetryConfig(initial_balance=1.5))
    assert budget.take()
    budget.give_back()

    assert budget.balance == 1.5
    assert [budget.take(), budget.take()] == [True, False]


def test_what_is_given_back_to_a_full_budget_is_lost() -> None:
    budget = RetryBudget(RetryConfig(budget_ratio=0.5, initial_balance=5.0, max_balance=5.0))
    assert budget.take()
    budget.earn()  # 4.5: another request came in between
    budget.give_back()

    assert budget.balance == 5.0


def test_a_ratio_of_zero_allows_no_retry_after_the_first_ones() -> None:
    budget = RetryBudget(RetryConfig(budget_ratio=0.0, initial_balance=0.0))
    budget.earn()

    assert not budget.take()


def test_everything_rejected_without_a_client_budget_is_just_below_three_attempts() -> None:
    rng = random.Random(21)
    # The book's worst case: "accepting a small amount of requests and rejecting a large portion".
    sent = sum(attempts_of(None, RetryConfig(), lambda: rng.random() < 0.99) for _ in range(10_000))

    # 1 + 0.99 + 0.99² = 2.970; one standard deviation is 0.002.
    assert sent / 10_000 == pytest.approx(2.970, abs=0.01)
    assert sent / 10_000 < 3


@pytest.mark.parametrize("rejected_ratio", [0.99, 1.0])
def test_everything_rejected_with_the_client_budget(rejected_ratio: float) -> None:
    rng = random.Random(21)
    budget = RetryBudget(RetryConfig())
    sent = sum(
        attempts_of(budget, RetryConfig(), lambda: rng.random() < rejected_ratio)
        for _ in range(10_000)
    )

    # 10,000 first attempts, 1,000 earned retries and 3 to begin with.
    assert sent <= 11_003
    assert sent / 10_000 <= 1.11


class Layer:
    """Send what comes from above to the layer below, retrying by the rules given."""

    def __init__(self, below: Layer | None, *, budget: bool, passes_dont_retry: bool) -> None:
        self.below = below
        self.budget = RetryBudget(RetryConfig()) if budget else None
        self.passes_dont_retry = passes_dont_retry
        self.sent = 0

    def call(self) -> Outcome:
        if self.budget is not None:
            self.budget.earn()
        for attempt in (1, 2, 3):
            self.sent += 1
            outcome = Outcome.OVERLOADED if self.below is None else self.below.call()
            may = may_retry(outcome, idempotent=False) and attempt < 3
            if not may or (self.budget is not None and not self.budget.take()):
                break
        # Book: "Backend B has to return to Backend A either an “overloaded; don't retry” error …".
        return Outcome.DONT_RETRY if self.passes_dont_retry else Outcome.OVERLOADED


def bottom_load(requests: int, *, budget: bool, passes_dont_retry: bool) -> float:
    """Return what five retrying layers send to an overloaded bottom, per request at the top."""
    bottom = top = Layer(None, budget=budget, passes_dont_retry=passes_dont_retry)
    for _ in range(4):
        top = Layer(top, budget=budget, passes_dont_retry=passes_dont_retry)
    for _ in range(requests):
        top.call()
    return bottom.sent / requests


def test_five_layers() -> None:
    assert bottom_load(10, budget=False, passes_dont_retry=False) == 243.0  # 3⁵
    # 1.1⁵ = 1.611, and the three retries that each layer begins with: less than 0.01 of 10,000.
    assert bottom_load(10_000, budget=True, passes_dont_retry=False) == pytest.approx(
        1.61, abs=0.01
    )
    # Only the layer right above retries: one factor of three, and with its budget of 1.1.
    assert bottom_load(10, budget=False, passes_dont_retry=True) == 3.0
    assert bottom_load(10_000, budget=True, passes_dont_retry=True) == pytest.approx(1.1003)


@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.name)
def test_what_may_be_retried(outcome: Outcome) -> None:
    # What was not sent is no attempt, and what is sent in its place no retry.
    assert may_retry(outcome, idempotent=False) is (outcome.name == "OVERLOADED")
    assert may_retry(outcome, idempotent=True) is (outcome.name in {"OVERLOADED", "LOST"})


def histogram_of(first: int, second: int, third: int) -> AttemptHistogram:
    """Mix arrivals evenly, as they come when the situation lasts."""
    histogram = AttemptHistogram()
    arrivals = [1] * first + [2] * second + [3] * third
    random.Random(21).shuffle(arrivals)
    for attempt in arrivals:
        histogram.record(attempt)
    return histogram


# Figure 21-1's kind of situation: 1,000 first attempts, of which the fraction f of the backends
# that rejects sends 1000 f on to a second attempt and 1000 f² to a third.
@pytest.mark.parametrize(
    ("rejecting_ratio", "expected"),
    [
        pytest.param(0.0, False, id="nobody else rejects: task overloaded"),
        pytest.param(0.01, False, id="one in a hundred rejects: task overloaded"),
        pytest.param(0.04, False, id="one in twenty-five rejects: task overloaded"),
        pytest.param(0.1, True, id="one in ten rejects: don't retry"),
        pytest.param(0.5, True, id="half reject: don't retry"),
        pytest.param(1.0, True, id="all reject: don't retry"),
    ],
)
def test_histogram_in_the_situations_of_figure_21_1(rejecting_ratio: float, expected: bool) -> None:
    second = round(1000 * rejecting_ratio)
    third = round(1000 * rejecting_ratio**2)
    histogram = histogram_of(1000, second, third)

    snapshot = histogram.snapshot()
    assert snapshot.counts[:3] == (1000, second, third)
    assert snapshot.retries_are_widespread is expected
    assert histogram.retries_are_widespread is expected


def test_all_rejecting_shows_through_the_client_budgets() -> None:
    histogram = histogram_of(1000, 100, 0)  # 100 / 1100 = 9.1 %

    assert histogram.retries_are_widespread


@pytest.mark.parametrize(
    ("first", "retries", "expected"),
    [
        pytest.param(95, 5, False, id="exactly 5 %"),
        pytest.param(94, 6, True, id="more than 5 %"),
        pytest.param(0, 99, False, id="too few to tell"),
        pytest.param(0, 100, True, id="just enough to tell"),
    ],
)
def test_widespread_is_more_than_five_percent_of_a_hundred(
    first: int, retries: int, expected: bool
) -> None:
    assert histogram_of(first, retries, 0).retries_are_widespread is expected


@pytest.mark.parametrize(
    ("attempt", "counted_as"), [(-1, 1), (0, 1), (1, 1), (10, 10), (11, 10), (10**9, 10)]
)
def test_hostile_attempt_numbers_are_bounded(attempt: int, counted_as: int) -> None:
    histogram = AttemptHistogram()
    histogram.record(attempt)

    assert len(histogram.snapshot().counts) == ATTEMPT_MAX
    assert [number for number, n in enumerate(histogram.snapshot().counts, start=1) if n] == [
        counted_as
    ]


def test_history_is_a_thousand_first_attempts() -> None:
    histogram = AttemptHistogram()
    for _ in range(200):
        histogram.record(2)
    for _ in range(1000):
        histogram.record(1)
    assert histogram.snapshot().counts[:2] == (1000, 200)
    histogram.record(1)  # pushes the oldest first attempt out, and all that came before it
    assert histogram.snapshot().counts[:2] == (1000, 0)


def test_history_is_bounded_when_only_retries_arrive() -> None:
    histogram = AttemptHistogram()
    for _ in range(10_000):
        histogram.record(3)

    assert histogram.snapshot().counts[2] == 3000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("attempts", 11),
        ("budget_ratio", math.nan),
        ("budget_ratio", 1.1),
        ("initial_balance", math.nan),
        ("initial_balance", 101.0),
        ("max_balance", math.nan),
        ("max_balance", math.inf),
    ],
)
def test_wrong_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be"):
        RetryConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_attempts", 0),
        ("arrivals_per_first", 0),
        ("widespread_ratio", math.nan),
        ("widespread_ratio", -0.1),
        ("min_arrivals", 0),
        ("min_arrivals", 50.5),
    ],
)
def test_wrong_histogram_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be"):
        AttemptHistogramConfig(**{field: value})  # type: ignore[arg-type]


def test_a_history_too_short_for_the_fewest_arrivals_that_tell_is_refused() -> None:
    # With one arrival per first attempt, 99 would never reach 100, and never say "don't retry".
    with pytest.raises(ConfigError, match=r"min_arrivals must be in \[1, 99\], not 100"):
        AttemptHistogramConfig(first_attempts=99)

    histogram = AttemptHistogram(AttemptHistogramConfig(first_attempts=100, arrivals_per_first=1))
    for _ in range(100):
        histogram.record(2)
    assert histogram.retries_are_widespread
