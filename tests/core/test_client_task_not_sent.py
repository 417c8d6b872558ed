"""An attempt that was never sent is none: it goes elsewhere, free of charge and a few times."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.errors import UsageError
from evenly.testing import ManualClock

NOT_SENT = Outcome.NOT_SENT
OVERLOADED = Outcome.OVERLOADED
BACKENDS = tuple(Backend(f"b{number}:1") for number in range(8))


class Numbers(Observer):
    """Write down the attempts' numbers, and which retries the budget refused."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.refused = 0

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun.append(number)

    def retry_refused(self, request: Request) -> None:
        self.refused += 1


class Service:
    """One client task with eight healthy backends."""

    def __init__(
        self,
        retry: RetryConfig | None = None,
        *,
        throttle: str = "adaptive",
        backends: tuple[Backend, ...] = BACKENDS,
    ) -> None:
        self.clock = ManualClock(1_000.0)
        self.numbers = Numbers()
        self.task = ClientTask(
            ClientTaskConfig(
                policy=PolicyConfig(name="round_robin"),
                throttle=ThrottleConfig(name=throttle),
                retry=retry or RetryConfig(),
            ),
            clock=self.clock,
            rng=random.Random(1),
            observer=self.numbers,
        )
        self.task.update(backends)
        for backend in backends:
            self.task.record_connection(backend, ConnectionEvent.OPENED)

    @property
    def balance(self) -> float:
        return self.task.snapshot().retry_balance

    def begin(self, request: Request | None = None, previous: Attempt | None = None) -> Attempt:
        answer = self.task.begin(request or Request(), previous)
        assert isinstance(answer, Attempt)
        return answer

    def follow(
        self, outcomes: Iterable[Outcome], request: Request | None = None
    ) -> tuple[Attempt, Next]:
        """Let a request's attempts end so, one after the other; return the last and its verdict."""
        attempt: Attempt | None = None
        verdict = Next.RETRY
        for outcome in outcomes:
            assert verdict is Next.RETRY
            attempt = self.begin(request, attempt)
            verdict = attempt.finish(outcome)
        assert attempt is not None
        return attempt, verdict


def test_what_was_not_sent_goes_elsewhere_three_times() -> None:
    service = Service()
    last, verdict = service.follow([NOT_SENT] * 4)

    assert verdict is Next.GIVE_UP
    assert len(set(last.tried)) == 4
    with pytest.raises(UsageError, match="nothing allows this retry"):
        service.task.begin(Request(), last)


def test_it_costs_nothing_and_the_request_earns_once() -> None:
    service = Service()
    service.follow([NOT_SENT, NOT_SENT, NOT_SENT, Outcome.OK])

    assert service.balance == 3.1  # 3 to begin with and 0.1 for the request
    assert service.numbers.begun == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "retry",
    [
        pytest.param(RetryConfig(attempts=1), id="retries are off"),
        pytest.param(RetryConfig(initial_balance=0.0, budget_ratio=0.0), id="nothing to pay with"),
    ],
)
def test_it_needs_no_retries(retry: RetryConfig) -> None:
    service = Service(retry)
    before = service.balance
    last, verdict = service.follow([NOT_SENT, NOT_SENT, NOT_SENT, Outcome.OK])

    assert verdict is Next.DONE
    assert (last.number, service.numbers.refused) == (1, 0)
    assert service.balance == before + retry.budget_ratio


def test_with_retries_off_what_was_refused_stays_refused() -> None:
    service = Service(RetryConfig(attempts=1))

    assert service.follow([NOT_SENT, OVERLOADED])[1] is Next.GIVE_UP


@pytest.mark.parametrize(
    ("outcomes", "numbers", "balance"),
    [
        pytest.param(
            [NOT_SENT, OVERLOADED, OVERLOADED, OVERLOADED],
            [1, 1, 2, 3],
            3.1 - 2.0,
            id="the first is sent at the second try, and three attempts are made",
        ),
        pytest.param(
            [OVERLOADED, NOT_SENT, NOT_SENT, OVERLOADED, OVERLOADED],
            [1, 2, 2, 2, 3],
            3.1 - 2.0,
            id="the second at the third",
        ),
        pytest.param(
            [NOT_SENT, OVERLOADED, NOT_SENT, OVERLOADED, NOT_SENT, OVERLOADED],
            [1, 1, 2, 2, 3, 3],
            3.1 - 2.0,
            id="each of the three at its second",
        ),
    ],
)
def test_attempts_are_counted_that_were_sent(
    outcomes: list[Outcome], numbers: list[int], balance: float
) -> None:
    service = Service()
    last, verdict = service.follow(outcomes)

    assert verdict is Next.GIVE_UP
    assert service.numbers.begun == numbers
    assert last.number == 3
    assert service.balance == pytest.approx(balance)


# Three in all, not three for each attempt: a request must not go round a service that is gone.
@pytest.mark.parametrize(
    "outcomes",
    [
        [NOT_SENT, NOT_SENT, NOT_SENT, NOT_SENT],
        [OVERLOADED, NOT_SENT, NOT_SENT, NOT_SENT, NOT_SENT],
        [NOT_SENT, NOT_SENT, OVERLOADED, NOT_SENT, NOT_SENT],
        [NOT_SENT, OVERLOADED, NOT_SENT, OVERLOADED, NOT_SENT, NOT_SENT],
    ],
)
def test_a_request_goes_elsewhere_three_times_in_all(outcomes: list[Outcome]) -> None:
    service = Service()
    assert outcomes.count(NOT_SENT) == 4

    assert service.follow(outcomes)[1] is Next.GIVE_UP


def test_at_most_six_tries_are_made_of_a_request() -> None:
    service = Service(RetryConfig(budget_ratio=1.0, initial_balance=100.0), throttle="off")
    rng = random.Random(7)
    most = 0
    for _ in range(300):
        attempt: Attempt | None = None
        verdict = Next.RETRY
        tries = 0
        while verdict is Next.RETRY:
            attempt = service.begin(previous=attempt)
            verdict = attempt.finish(rng.choice([NOT_SENT, OVERLOADED]))
            tries += 1
        most = max(most, tries)

    assert most == 3 + 3  # attempts, and what was not sent


@pytest.mark.parametrize(
    ("outcomes", "balance"),
    [
        pytest.param([NOT_SENT] * 4, 3.1, id="nothing was paid"),
        pytest.param([OVERLOADED, *[NOT_SENT] * 4], 3.1, id="the retry was never made"),
        pytest.param(
            [OVERLOADED, OVERLOADED, *[NOT_SENT] * 4], 2.1, id="one was made, and one not"
        ),
    ],
)
def test_what_a_retry_that_was_never_made_cost_is_given_back(
    outcomes: list[Outcome], balance: float
) -> None:
    service = Service()
    assert service.follow(outcomes)[1] is Next.GIVE_UP

    assert service.balance == pytest.approx(balance)


@pytest.mark.parametrize(
    ("outcomes", "balance"),
    [
        pytest.param([NOT_SENT], 3.1, id="nothing was paid"),
        pytest.param([OVERLOADED], 3.1, id="the retry finds nobody"),
        pytest.param([OVERLOADED, NOT_SENT], 3.1, id="the retry was not sent, and finds nobody"),
        pytest.param([OVERLOADED, OVERLOADED, NOT_SENT], 2.1, id="the second was not sent"),
        pytest.param([NOT_SENT, OVERLOADED], 3.1, id="what was sent late"),
    ],
)
def test_where_nobody_is_left_the_same_is_given_back(
    outcomes: list[Outcome], balance: float
) -> None:
    service = Service()
    last, verdict = service.follow(outcomes)
    assert verdict is Next.RETRY
    service.task.update([])

    assert service.task.begin(Request(), last) == Rejection(Reason.NO_BACKEND, retryable=False)
    assert service.balance == pytest.approx(balance)


@pytest.mark.parametrize(
    ("outcomes", "throttled"),
    [
        pytest.param([NOT_SENT] * 4, 0.0, id="never sent: that says nothing"),
        pytest.param([NOT_SENT, Outcome.DONT_RETRY], 1 / 2, id="rejected in the end"),
        pytest.param([NOT_SENT, Outcome.OK], 0.0, id="accepted in the end"),
    ],
)
def test_a_throttle_counts_how_a_request_ended(outcomes: list[Outcome], throttled: float) -> None:
    service = Service()
    service.follow(outcomes)

    probabilities = service.task.snapshot().throttle.rejection_probabilities
    assert probabilities[Request().criticality] == throttled


@pytest.mark.parametrize(
    ("seconds_left", "expected"),
    [
        pytest.param(0.01, Next.RETRY, id="time left"),
        pytest.param(0.0, Next.GIVE_UP, id="passed just now"),
    ],
)
@pytest.mark.parametrize("is_retry", [False, True])
def test_nobody_waits_after_the_deadline(
    seconds_left: float, is_retry: bool, expected: Next
) -> None:
    service = Service()
    request = Request(deadline_at=service.clock() + 1.0 + seconds_left)
    previous = service.follow([OVERLOADED], request)[0] if is_retry else None
    attempt = service.begin(request, previous)
    service.clock.advance(1.0)

    assert attempt.finish(NOT_SENT) is expected
    # Paid is what is still to be made.
    is_paid = is_retry and expected is Next.RETRY
    assert service.balance == pytest.approx(2.1 if is_paid else 3.1)


def test_it_goes_back_where_it_was_if_there_is_no_other() -> None:
    service = Service(backends=BACKENDS[:1])
    last, _ = service.follow([NOT_SENT, NOT_SENT, NOT_SENT])

    assert service.begin(previous=last).backend == BACKENDS[0]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param(NOT_SENT, Next.GIVE_UP, id="a part of its body is gone"),
        pytest.param(OVERLOADED, Next.GIVE_UP, id="overloaded"),
        pytest.param(Outcome.LOST, Next.GIVE_UP, id="lost"),
        pytest.param(Outcome.OK, Next.DONE, id="answered"),
        pytest.param(Outcome.CANCELLED, Next.DONE, id="cancelled"),
    ],
)
def test_what_is_final_is_not_sent_again(outcome: Outcome, expected: Next) -> None:
    service = Service()
    request = Request(idempotent=True)
    attempt = service.begin(request)

    assert attempt.finish(outcome, is_final=True) is expected
    assert service.balance == pytest.approx(3.1)
    assert service.numbers.refused == 0  # The budget was not asked.
    with pytest.raises(UsageError, match="nothing allows this retry"):
        service.task.begin(request, attempt)


def test_a_retry_that_is_final_and_was_not_sent_is_given_back() -> None:
    service = Service()
    first, _ = service.follow([OVERLOADED])
    second = service.begin(previous=first)
    assert service.balance == pytest.approx(2.1)

    assert second.finish(NOT_SENT, is_final=True) is Next.GIVE_UP
    assert service.balance == pytest.approx(3.1)
