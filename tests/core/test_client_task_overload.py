from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.responsive_throttle import ResponsiveThrottleConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.report import LoadReport
from evenly.core.request import Cause, Next, Outcome, Reason, Rejection, Request
from evenly.errors import UsageError
from evenly.testing import ManualClock

A, B, C = Backend("a:1"), Backend("b:1"), Backend("c:1")
CRITICAL = Criticality.CRITICAL
THROTTLED = Rejection(Reason.THROTTLED, retryable=False, cause=Cause.REJECTIONS)
NO_QUOTA = Rejection(Reason.THROTTLED, retryable=False, cause=Cause.QUOTA)
NO_BACKEND = Rejection(Reason.NO_BACKEND, retryable=False)
NOTHING = 0.0
"""The cut of a backend that refuses nothing, ..."""
CUT = 3.0
"""... of one that refuses all but CRITICAL_PLUS, ..."""
ALL = 4.0
"""... and of one that refuses everything."""


class Draw(random.Random):
    """Draw the same number every time: so the level of CRITICAL is 2.5."""

    value = 0.5

    def random(self) -> float:
        return self.value


class CountingClock:
    """Count how often the time is asked for."""

    def __init__(self) -> None:
        self.readings = 0
        self._clock = ManualClock()

    def __call__(self) -> float:
        self.readings += 1
        return self._clock()

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


@dataclass
class Seen(Observer):
    """Write down what a client task tells about retries and refusals."""

    events: list[str] = field(default_factory=list)

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.events.append(f"attempt {number}")

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.events.append(f"{outcome.name} after {seconds:g} s")

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.events.append(reason.name)

    def retry_refused(self, request: Request) -> None:
        self.events.append("no retry left")

    def asked(self, count: int) -> None:
        self.events.append(f"asked {count}")


@dataclass
class Service:
    """One client task of a service with some backends, all of them healthy."""

    backends: tuple[Backend, ...] = (A, B, C)
    throttle: str = "responsive"
    retry: RetryConfig = field(default_factory=RetryConfig)
    policy: str = "round_robin"
    send_anyway_seconds: float = 2.0
    observer: Observer = NO_OBSERVER
    clock: ManualClock | CountingClock = field(default_factory=ManualClock)
    rng: Draw = field(default_factory=lambda: Draw(0))
    task: ClientTask = field(init=False)

    def __post_init__(self) -> None:
        responsive = ResponsiveThrottleConfig(send_anyway_seconds=self.send_anyway_seconds)
        config = ClientTaskConfig(
            policy=PolicyConfig(name=self.policy),
            throttle=ThrottleConfig(name=self.throttle, responsive=responsive),
            retry=self.retry,
        )
        self.task = ClientTask(config, clock=self.clock, rng=self.rng, observer=self.observer)
        self.task.update(self.backends)
        self.task.take_connections()
        for backend in self.backends:
            self.task.record_connection(backend, ConnectionEvent.OPENED)

    def begin(self, request: Request | None = None, previous: Attempt | None = None) -> Attempt:
        answer = self.task.begin(request or Request(), previous)
        assert isinstance(answer, Attempt)
        return answer

    def ask(self, request: Request | None = None) -> Ask:
        answer = self.task.begin(request or Request())
        assert isinstance(answer, Ask)
        return answer

    def end(self, outcome: Outcome, request: Request | None = None) -> Next:
        """Let one request pass and end so."""
        return self.begin(request).finish(outcome)

    def reject(self) -> None:
        """Let a CRITICAL request be rejected by a backend that says where it cuts."""
        attempt = self.begin()
        self.clock.advance(1.0)
        self.hear(attempt.backend, CUT, is_probe=False)
        attempt.finish(Outcome.DONT_RETRY)

    def hear(self, backend: Backend, cut: float, *, is_probe: bool = True) -> None:
        report = LoadReport(boot=1, cut=cut)
        self.task.record_report(backend, report, is_probe=is_probe)

    @property
    def throttled(self) -> float:
        """How likely a CRITICAL request is throttled."""
        return self.task.snapshot().throttle.rejection_probabilities[CRITICAL]

    @property
    def balance(self) -> float:
        return self.task.snapshot().retry_balance


# Throttling


def test_a_throttled_request_never_leaves_this_process() -> None:
    seen = Seen()
    service = Service(observer=seen)
    service.reject()
    assert service.throttled == pytest.approx(0.97)  # 3 less the margin: all but 3 % of CRITICAL
    balance = service.balance

    assert service.task.begin(Request()) == THROTTLED  # 2.5 is below 2.97
    assert service.task.snapshot().active == 0
    assert service.balance == balance  # What is not sent earns no retries.
    assert seen.events == ["attempt 1", "DONT_RETRY after 1 s", "THROTTLED"]


@pytest.mark.parametrize(
    ("cut", "level", "is_sent"),
    [
        pytest.param(2.5, 2.5, True, id="at the cut"),
        pytest.param(2.53, 2.515625, True, id="within the margin"),
        pytest.param(2.53, 2.484375, False, id="below the line"),
        pytest.param(2.53, 1.984375, False, id="a lower criticality, however lucky"),
        pytest.param(2.53, 3.0, True, id="a higher one, however unlucky"),
    ],
)
def test_what_is_below_the_line_is_throttled(cut: float, level: float, is_sent: bool) -> None:
    service = Service()
    service.hear(A, cut, is_probe=False)
    request = Request(criticality=Criticality(int(level)), luck=level - int(level))

    answer = service.task.begin(request)
    assert isinstance(answer, Attempt) if is_sent else answer == THROTTLED


def test_who_has_no_luck_draws_it_once_and_in_trouble_only() -> None:
    service = Service()
    calm = Request()
    service.begin(calm)
    assert calm.luck is None

    service.hear(A, CUT, is_probe=False)
    troubled = Request()
    assert service.task.begin(troubled) == THROTTLED
    assert troubled.luck == 0.5
    service.rng.value = 0.99
    assert service.task.begin(troubled) == THROTTLED  # It is still 2.5.
    assert isinstance(service.task.begin(Request()), Attempt)  # 2.99 is not below 2.97.


def test_a_retry_has_the_luck_of_its_first_attempt() -> None:
    service = Service()
    service.hear(A, 1.0, is_probe=False)
    first = service.begin()
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    service.rng.value = 0.9

    assert service.begin(Request(), previous=first).request.luck == 0.5


def test_an_attempt_says_the_line_that_its_client_task_applies() -> None:
    service = Service()
    assert service.begin().line == 0.0
    service.hear(A, 1.53, is_probe=False)

    assert service.begin().line == pytest.approx(1.5)
    service.clock.advance(2.1)
    service.begin(Request(criticality=Criticality.CRITICAL_PLUS))
    assert service.begin().line == 0.0  # Nothing is held back any more.


# Repick: a backend that is known to refuse a request is passed over.


def sent_to(service: Service, request: Request, count: int = 12) -> set[str]:
    """Return where requests go, one at a time, retold to begin with the same luck."""
    addresses: set[str] = set()
    for _ in range(count):
        attempt = service.begin(request)
        addresses.add(attempt.backend.address)
        attempt.finish(Outcome.CANCELLED)
    return addresses


def test_a_backend_that_would_refuse_is_passed_over() -> None:
    service = Service()
    for backend, cut in ((A, 2.75), (C, NOTHING), (B, NOTHING)):
        service.hear(backend, cut, is_probe=False)
        service.clock.advance(0.05)  # so that the line is far below 2.5

    assert sent_to(service, Request(luck=0.5)) == {"b:1", "c:1"}
    assert sent_to(service, Request(luck=0.75)) == {"a:1", "b:1", "c:1"}


def test_where_all_would_refuse_one_of_them_gets_it() -> None:
    service = Service()
    for backend in (A, B, C):
        service.hear(backend, 2.52, is_probe=False)

    assert sent_to(service, Request(luck=0.5)) == {"a:1", "b:1", "c:1"}  # above the line of 2.49


@pytest.mark.parametrize(("seconds", "is_passed_over"), [(0.3, True), (0.31, False)])
def test_what_was_heard_long_ago_is_no_reason_to_pass_over(
    seconds: float, is_passed_over: bool
) -> None:
    service = Service()
    service.hear(A, 2.75, is_probe=False)
    service.clock.advance(seconds)
    for backend in (B, C):
        service.hear(backend, 0.1, is_probe=False)

    assert ("a:1" not in sent_to(service, Request(luck=0.5))) is is_passed_over


def test_one_that_refuses_among_three_holds_nothing_back_and_is_passed_over() -> None:
    service = Service()
    for backend, cut in ((B, NOTHING), (C, NOTHING), (A, CUT)):
        service.hear(backend, cut, is_probe=False)
    service.clock.advance(0.02)
    service.hear(A, CUT, is_probe=False)

    assert service.task.line == 0.0
    assert sent_to(service, Request(luck=0.0)) == {"b:1", "c:1"}
    service.hear(B, CUT, is_probe=False)  # Now it is two of three.
    service.clock.advance(0.02)
    service.hear(B, CUT, is_probe=False)
    assert service.task.line > 0.0


def test_without_a_throttle_a_backend_that_would_refuse_is_passed_over_too() -> None:
    service = Service(throttle="off")
    service.hear(A, 2.75, is_probe=False)

    assert sent_to(service, Request(luck=0.5)) == {"b:1", "c:1"}


# The level is 2.5 where nothing else is said.
@pytest.mark.parametrize(
    ("cut", "errors"),
    [
        pytest.param(2.75, 0, id="below its cut-line: told, and passed over from now on"),
        pytest.param(2.25, 1, id="above it: too late, or for nothing that is told"),
        pytest.param(NOTHING, 1, id="it says that it refuses nothing"),
    ],
)
def test_a_refusal_weighs_as_load_unless_its_cut_line_says_why(cut: float, errors: int) -> None:
    service = Service()
    attempt = service.begin(Request(luck=0.5))
    service.hear(attempt.backend, cut, is_probe=False)
    attempt.finish(Outcome.OVERLOADED, is_final=True)

    shown = {one.address: one for one in service.task.snapshot().backends}
    assert shown[attempt.backend.address].errors == errors


def test_who_was_refused_without_luck_had_too_little_of_it() -> None:
    service = Service()
    attempt = service.begin(Request())
    service.hear(attempt.backend, 2.25, is_probe=False)
    attempt.finish(Outcome.OVERLOADED, is_final=True)

    # Half of the quarter below the cut-line: the next backend is not asked for another draw.
    assert attempt.request.luck == 0.125


def test_a_request_throttled_by_the_books_equation_counts_once() -> None:
    service = Service(throttle="adaptive")
    assert service.end(Outcome.DONT_RETRY) is Next.GIVE_UP
    assert service.throttled == 1 / 2  # (1 − 2 · 0) / (1 + 1)
    service.end(Outcome.DONT_RETRY)  # The draw is not below a half.
    assert service.throttled == 2 / 3

    assert service.task.begin(Request()) == THROTTLED
    assert service.throttled == 3 / 4
    assert service.task.begin(Request()) == THROTTLED
    assert service.throttled == 4 / 5


def test_a_request_counts_once_however_often_it_was_tried() -> None:
    service = Service(throttle="adaptive")
    first = service.begin()
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    assert service.throttled == 0.0  # It goes on.
    second = service.begin(previous=first)
    second.finish(Outcome.OVERLOADED)
    third = service.begin(previous=second)
    assert third.finish(Outcome.OVERLOADED) is Next.GIVE_UP

    assert service.throttled == 1 / 2  # One request, no accept.


def test_a_request_that_a_retry_saved_is_an_accept() -> None:
    service = Service(throttle="adaptive")
    first = service.begin()
    first.finish(Outcome.OVERLOADED)
    assert service.begin(previous=first).finish(Outcome.OK) is Next.DONE

    assert service.throttled == 0.0
    service.end(Outcome.DONT_RETRY)
    service.end(Outcome.DONT_RETRY)
    service.end(Outcome.DONT_RETRY)
    assert service.throttled == (4 - 2 * 1) / 5


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param(Outcome.OK, 0.0, id="accepted"),
        pytest.param(Outcome.ERROR, 0.0, id="failed, but accepted"),
        pytest.param(Outcome.OUT_OF_QUOTA, 0.0, id="the customer's affair"),
        pytest.param(Outcome.DONT_RETRY, 1 / 2, id="rejected"),
        pytest.param(Outcome.TIMEOUT, 1 / 2, id="without accept"),
        pytest.param(Outcome.LOST, 0.0, id="health's affair"),
        pytest.param(Outcome.CANCELLED, 0.0, id="cancelled"),
    ],
)
def test_what_an_end_says_to_the_throttle(outcome: Outcome, expected: float) -> None:
    service = Service(throttle="adaptive")
    service.end(outcome)

    assert service.throttled == expected


def test_a_cancelled_request_counts_as_nothing() -> None:
    service = Service(throttle="adaptive")
    for _ in range(5):
        assert service.end(Outcome.CANCELLED) is Next.DONE
    service.end(Outcome.DONT_RETRY)

    assert service.throttled == 1 / 2  # One request, not six of them, nor an accept.


def test_a_customer_out_of_quota_is_throttled_alone() -> None:
    service = Service()
    attempt = service.begin(Request(customer="a"))
    service.clock.advance(1.0)
    assert attempt.finish(Outcome.OUT_OF_QUOTA) is Next.GIVE_UP
    assert service.task.snapshot().throttle.throttled_customers == ("a",)
    # Its own throttle was made that instant: no gap, so a weight of 7/8 and a factor of 1:
    # q = exp(−7/8 · 0.25 / 2) = 0.90, above the draw.  A second refusal after 1 s, with 8 times the
    # step and a weight of 57/64, makes it 0.90 · exp(−8 · 57/64 · 0.25 / 2) = 0.37.
    attempt = service.begin(Request(customer="a"))
    service.clock.advance(1.0)
    attempt.finish(Outcome.OUT_OF_QUOTA)

    assert service.task.begin(Request(customer="a")) == NO_QUOTA
    service.begin(Request(customer="b"))


def test_reports_lift_the_throttle() -> None:
    service = Service()
    service.reject()
    assert service.throttled == pytest.approx(0.97)

    service.clock.advance(0.1)
    service.hear(A, NOTHING, is_probe=False)
    # The average over 0.1 s: 3 / e − 0.03 = 1.07.
    assert service.task.snapshot().throttle.line == pytest.approx(3.0 / math.e - 0.03)
    assert service.throttled == 0.0


def test_late_reports_and_strangers_say_nothing_to_the_throttle() -> None:
    service = Service()
    service.task.record_report(A, LoadReport(boot=1, sequence=5, cut=CUT))
    service.clock.advance(0.5)
    service.task.record_report(A, LoadReport(boot=1, sequence=4, cut=NOTHING))
    service.task.record_report(Backend("stranger:1"), LoadReport(boot=1, cut=NOTHING))

    assert service.throttled == pytest.approx(0.97)


# Asking first: the last that was heard is a no, and no answer of its own is recent.


def asking(**settings: float) -> Service:
    service = Service(send_anyway_seconds=settings.get("send_anyway_seconds", 2.0))
    service.reject()
    service.clock.advance(2.1)
    return service


def test_it_asks_two_backends_where_all_it_knows_is_an_old_rejection() -> None:
    seen = Seen()
    service = Service(observer=seen, send_anyway_seconds=10.0)
    service.reject()
    service.clock.advance(1.9)
    assert service.task.begin(Request()) == THROTTLED  # An answer is believed that long.
    service.clock.advance(0.2)

    ask = service.ask()
    assert len(set(ask.backends)) == 2
    assert ask.wait_seconds == 0.05
    assert seen.events[-1] == "asked 2"
    assert service.task.snapshot().active == 0


def test_asks_go_round() -> None:
    service = asking()
    asked = [service.ask().backends for _ in range(3)]

    assert sorted(backend.address for pair in asked for backend in pair) == [
        "a:1", "a:1", "b:1", "b:1", "c:1", "c:1",
    ]  # fmt: skip


def test_it_asks_the_best_tier() -> None:
    service = asking()
    service.task.record_serving(A, serving=False)  # a lame duck
    assert {backend for _ in range(3) for backend in service.ask().backends} == {B, C}

    service.task.record_serving(B, serving=False)
    assert service.ask().backends == (C,)
    service.task.record_serving(C, serving=False)
    assert len(service.ask().backends) == 2  # Lame ducks are better than nobody.


def test_it_asks_nobody_where_there_is_nobody() -> None:
    service = asking()
    service.task.update([])

    assert service.task.begin(Request()) == NO_BACKEND


@pytest.mark.parametrize(
    ("answers", "is_sent"),
    [
        pytest.param((NOTHING, NOTHING), True, id="both admit"),
        pytest.param((CUT, NOTHING), True, id="the second admits"),
        pytest.param((2.5, CUT), True, id="the first admits"),
        pytest.param((2.51, CUT), False, id="neither admits it"),
        pytest.param((NOTHING,), True, id="one answers and admits"),
        pytest.param((ALL,), False, id="one answers and does not"),
    ],
)
def test_what_backends_answer_is_done(answers: tuple[float, ...], is_sent: bool) -> None:
    service = asking()
    ask = service.ask()
    service.clock.advance(0.01)
    for backend, cut in zip(ask.backends, answers, strict=False):
        service.hear(backend, cut)
    answer = ask.resume()

    if is_sent:
        assert isinstance(answer, Attempt)
        assert (answer.number, service.task.snapshot().active) == (1, 1)
        # What is below the lower of the two would not have been sent.
        assert answer.line == min(answers)
    else:
        assert answer == THROTTLED
        assert service.task.snapshot().active == 0


def test_other_backends_answers_do_not_decide() -> None:
    service = asking(send_anyway_seconds=10.0)
    ask = service.ask()
    (other,) = {A, B, C} - set(ask.backends)
    service.hear(other, NOTHING)

    # As if nobody had answered: the line is what all have said.  3 · exp(−21) of it is left.
    assert isinstance(ask.resume(), Attempt)
    service = asking(send_anyway_seconds=10.0)
    ask = service.ask()
    (other,) = {A, B, C} - set(ask.backends)
    service.hear(other, ALL)
    assert ask.resume() == THROTTLED


@pytest.mark.parametrize(("send_anyway_seconds", "is_sent"), [(2.0, True), (10.0, False)])
def test_where_nobody_answers_it_decides_as_ever(send_anyway_seconds: float, is_sent: bool) -> None:
    service = asking(send_anyway_seconds=send_anyway_seconds)
    ask = service.ask()
    service.clock.advance(ask.wait_seconds)
    answer = ask.resume()

    # The last report is 2.15 s old: it holds for 10 s, and for 2 s it does not.
    assert isinstance(answer, Attempt) is is_sent
    assert is_sent or answer == THROTTLED


def test_requests_that_come_meanwhile_ask_too() -> None:
    service = asking()
    first, second = service.ask(), service.ask()
    for backend in (*first.backends, *second.backends):
        service.hear(backend, NOTHING)

    assert isinstance(first.resume(), Attempt)
    assert isinstance(second.resume(), Attempt)
    service.begin()  # It knows now, and need not ask.


def test_who_asked_once_is_believed_for_two_seconds() -> None:
    service = asking()
    ask = service.ask()
    for backend in ask.backends:
        service.hear(backend, CUT)
    assert ask.resume() == THROTTLED

    service.clock.advance(1.9)
    assert service.task.begin(Request()) == THROTTLED
    service.clock.advance(0.2)
    service.ask()


def test_an_ask_that_is_dropped_counts_as_nothing() -> None:
    service = asking()
    before = service.task.snapshot()
    service.ask()

    after = service.task.snapshot()
    assert (after.active, after.throttle, after.retry_balance) == (
        before.active, before.throttle, before.retry_balance,
    )  # fmt: skip


def test_resuming_twice_is_a_mistake() -> None:
    service = asking()
    ask = service.ask()
    ask.resume()
    with pytest.raises(UsageError, match=r"resume\(\)"):
        ask.resume()


def test_a_report_of_a_cut_is_a_rejection_that_nobody_paid_for() -> None:
    service = Service()
    service.hear(A, CUT)
    service.clock.advance(2.1)

    service.ask()
    service.begin(Request(criticality=Criticality.CRITICAL_PLUS))


def test_a_request_asks_once_though_the_policy_would_like_to_ask_as_well() -> None:
    service = Service(policy="probing")
    service.hear(A, CUT)
    service.clock.advance(2.1)
    ask = service.ask()

    assert isinstance(ask.resume(), Attempt)


# Asked for the policy: it wants to know how busy they are, and hears whether they would refuse.


def asked_by_policy(throttle: str = "responsive") -> tuple[Service, Ask]:
    """Return a client task that has heard of no refusal, nor anything else for 2.1 s, and asks."""
    service = Service(policy="probing", throttle=throttle)
    service.clock.advance(2.1)
    ask = service.ask()
    service.clock.advance(0.01)
    return service, ask


@pytest.mark.parametrize(
    ("answers", "is_sent"),
    [
        pytest.param((NOTHING, NOTHING), True, id="both admit"),
        pytest.param((CUT, NOTHING), True, id="the second admits"),
        pytest.param((2.51, CUT), False, id="neither admits it"),
        pytest.param((ALL,), False, id="one answers and does not"),
        pytest.param((), True, id="nobody answers"),
    ],
)
def test_who_seldom_sends_does_as_those_say_that_the_policy_asked(
    answers: tuple[float, ...], is_sent: bool
) -> None:
    service, ask = asked_by_policy()
    for backend, cut in zip(ask.backends, answers, strict=False):
        service.hear(backend, cut)
    answer = ask.resume()

    if is_sent:
        assert isinstance(answer, Attempt)
    else:
        assert answer == THROTTLED
        assert service.task.snapshot().active == 0
        assert service.balance == 3.0  # What is not sent earns no retries.


def test_the_order_of_the_answers_makes_no_difference_to_a_request_that_was_asked_for() -> None:
    service, ask = asked_by_policy()
    service.hear(ask.backends[1], CUT)
    service.hear(ask.backends[0], NOTHING)
    assert isinstance(ask.resume(), Attempt)

    # The last that was heard is a no, but one of the two admits.
    service, ask = asked_by_policy()
    service.hear(ask.backends[1], NOTHING)
    service.hear(ask.backends[0], CUT)
    assert isinstance(ask.resume(), Attempt)


@pytest.mark.parametrize("policy", ["probing", "round_robin"], ids=["by policy", "by throttle"])
def test_what_one_admits_is_not_sent_to_the_other_that_refuses(policy: str) -> None:
    for is_first in (True, False):
        service = Service(backends=(A, B), policy=policy)
        service.hear(A, CUT if policy == "round_robin" else NOTHING)
        service.clock.advance(2.1)
        ask = service.ask()
        yes, no = ask.backends if is_first else reversed(ask.backends)
        # By its queue alone the policy would take the one that refuses.
        service.task.record_report(yes, LoadReport(boot=1, runnable=5.0), is_probe=True)
        service.hear(no, CUT)
        answer = ask.resume()

        assert isinstance(answer, Attempt)
        assert answer.backend == yes


def test_a_criticality_that_both_admit_is_sent_where_another_is_refused() -> None:
    for criticality, is_sent in ((Criticality.CRITICAL_PLUS, True), (CRITICAL, False)):
        service = Service(policy="probing")
        service.clock.advance(2.1)
        ask = service.ask(Request(criticality=criticality))
        for backend in ask.backends:
            service.hear(backend, CUT)

        assert isinstance(ask.resume(), Attempt) is is_sent


@pytest.mark.parametrize(
    ("seconds", "is_sent"),
    [
        pytest.param(1.9, True, id="an answer of its own is 1.9 s old: as the line says"),
        pytest.param(2.1, False, id="2.1 s"),
    ],
)
def test_who_had_an_answer_lately_goes_by_that(seconds: float, is_sent: bool) -> None:
    service, first = asked_by_policy()
    attempt = first.resume()
    assert isinstance(attempt, Attempt)
    service.hear(attempt.backend, NOTHING, is_probe=False)
    attempt.finish(Outcome.OK)
    service.clock.advance(seconds)
    ask = service.ask()
    for backend in ask.backends:  # Two at once raise an average over 0.1 s by little.
        service.hear(backend, ALL)

    assert isinstance(ask.resume(), Attempt) is is_sent


# It was admitted before a third backend's word; those asked have said nothing.
def test_a_request_that_nobody_answered_for_is_not_decided_twice() -> None:
    service = Service(policy="probing")
    service.clock.advance(2.1)
    ask = service.ask()
    (other,) = {A, B, C} - set(ask.backends)
    service.hear(other, ALL)

    assert isinstance(ask.resume(), Attempt)


# Out of quota twice, a second apart: q of this customer is 0.37, below the draw.  One goes out by
# luck; drawn for again, it would not.
def test_the_customers_throttle_decides_once() -> None:
    service = Service(policy="probing")
    request = Request(customer="a")
    for _ in range(2):
        answer = service.task.begin(request)
        attempt = answer.resume() if isinstance(answer, Ask) else answer
        assert isinstance(attempt, Attempt)
        service.clock.advance(1.0)
        attempt.finish(Outcome.OUT_OF_QUOTA)
    assert service.task.begin(request) == NO_QUOTA
    service.clock.advance(2.1)
    service.rng.value = 0.3
    ask = service.ask(request)
    service.rng.value = 0.5
    yes, no = ask.backends
    service.hear(yes, NOTHING)
    service.hear(no, CUT)

    assert isinstance(ask.resume(), Attempt)


@pytest.mark.parametrize("throttle", ["off", "adaptive"])
def test_the_other_throttles_do_not_listen_to_answers(throttle: str) -> None:
    service, ask = asked_by_policy(throttle)
    for backend in ask.backends:
        service.hear(backend, ALL)

    assert isinstance(ask.resume(), Attempt)


def test_a_resumed_request_reads_the_clock_once() -> None:
    for answers in ((), (NOTHING, NOTHING), (ALL, ALL)):
        for policy in ("probing", "round_robin"):  # Asked by the policy, or by the throttle.
            clock = CountingClock()
            service = Service(policy=policy, clock=clock)
            service.hear(A, CUT if policy == "round_robin" else NOTHING)
            clock.advance(2.1)
            ask = service.ask()
            for backend, cut in zip(ask.backends, answers, strict=False):
                service.hear(backend, cut)
            before = clock.readings
            ask.resume()

            assert clock.readings == before + 1


@pytest.mark.parametrize("throttle", ["off", "adaptive"])
def test_the_other_throttles_never_ask(throttle: str) -> None:
    service = Service(throttle=throttle)
    service.end(Outcome.DONT_RETRY)
    service.clock.advance(2.1)

    service.begin()


# Retries


def test_a_retry_costs_one_and_a_request_earns_a_tenth() -> None:
    service = Service()
    assert service.balance == 3.0
    first = service.begin()
    assert service.balance == 3.1
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    assert service.balance == 2.1

    second = service.begin(previous=first)
    assert service.balance == 2.1  # A retry earns nothing.
    assert second.number == 2
    assert second.backend != first.backend
    assert second.finish(Outcome.OK) is Next.DONE
    assert service.balance == 2.1


def test_the_budget_refuses() -> None:
    seen = Seen()
    retry = RetryConfig(initial_balance=0.0)
    service = Service(retry=retry, throttle="off", observer=seen)
    # Ten requests earn one retry: the tenth has it.
    assert [service.end(Outcome.OVERLOADED) for _ in range(11)] == [
        *[Next.GIVE_UP] * 9,
        Next.RETRY,
        Next.GIVE_UP,
    ]
    assert seen.events.count("no retry left") == 10


def test_a_retry_that_the_budget_refuses_ends_the_request() -> None:
    service = Service(retry=RetryConfig(initial_balance=0.0), throttle="adaptive")
    assert service.end(Outcome.OVERLOADED) is Next.GIVE_UP

    assert service.throttled == 1 / 2


def test_three_attempts_and_no_more() -> None:
    seen = Seen()
    service = Service(observer=seen)
    first = service.begin()
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    second = service.begin(previous=first)
    assert second.finish(Outcome.OVERLOADED) is Next.RETRY
    third = service.begin(previous=second)
    assert third.finish(Outcome.OVERLOADED) is Next.GIVE_UP

    assert {first.backend, second.backend, third.backend} == {A, B, C}
    assert service.balance == pytest.approx(3.1 - 2.0)  # The third verdict cost nothing.
    assert "no retry left" not in seen.events
    with pytest.raises(UsageError, match="nothing allows this retry"):
        service.task.begin(Request(), third)


@pytest.mark.parametrize(
    ("outcome", "idempotent", "expected"),
    [
        pytest.param(Outcome.OVERLOADED, False, Next.RETRY, id="this task is overloaded"),
        pytest.param(Outcome.LOST, True, Next.RETRY, id="lost, and twice does no harm"),
        pytest.param(Outcome.LOST, False, Next.GIVE_UP, id="lost, and may have been done"),
        pytest.param(Outcome.DONT_RETRY, True, Next.GIVE_UP, id="all are overloaded"),
        pytest.param(Outcome.OUT_OF_QUOTA, True, Next.GIVE_UP, id="out of quota"),
        pytest.param(Outcome.TIMEOUT, True, Next.GIVE_UP, id="no time left"),
        pytest.param(Outcome.ERROR, True, Next.GIVE_UP, id="an answer"),
        pytest.param(Outcome.CANCELLED, True, Next.DONE, id="nobody waits"),
    ],
)
def test_which_ends_are_retried(outcome: Outcome, idempotent: bool, expected: Next) -> None:
    service = Service()
    attempt = service.begin(Request(idempotent=idempotent))

    assert attempt.finish(outcome) is attempt.next is expected
    assert service.balance == pytest.approx(2.1 if expected is Next.RETRY else 3.1)
    if expected is not Next.RETRY:
        with pytest.raises(UsageError, match="nothing allows this retry"):
            service.task.begin(attempt.request, attempt)


@pytest.mark.parametrize(
    ("seconds_left", "expected"),
    [
        pytest.param(0.01, Next.RETRY, id="time left"),
        pytest.param(0.0, Next.GIVE_UP, id="passed just now"),
        pytest.param(-0.5, Next.GIVE_UP, id="passed"),
    ],
)
def test_nobody_waits_for_a_retry_after_the_deadline(seconds_left: float, expected: Next) -> None:
    service = Service()
    attempt = service.begin(Request(deadline_at=service.clock() + 1.0 + seconds_left))
    service.clock.advance(1.0)

    assert attempt.finish(Outcome.OVERLOADED) is expected
    assert service.balance == pytest.approx(2.1 if expected is Next.RETRY else 3.1)


@pytest.mark.parametrize("seconds_left", [0.0, -1.0, math.nan])
def test_a_request_whose_deadline_has_passed_is_not_sent(seconds_left: float) -> None:
    service = Service()
    answer = service.task.begin(Request(deadline_at=service.clock() + seconds_left))

    assert answer == Rejection(Reason.EXPIRED, retryable=False)


def test_a_retry_that_finds_no_backend_gets_its_token_back() -> None:
    service = Service()
    attempt = service.begin()
    assert attempt.finish(Outcome.OVERLOADED) is Next.RETRY
    assert service.balance == pytest.approx(2.1)
    service.task.update([])

    assert isinstance(service.task.begin(attempt.request, attempt), Rejection)
    assert service.balance == pytest.approx(3.1)


def test_a_verdict_allows_one_retry() -> None:
    service = Service()
    first = service.begin()
    first.finish(Outcome.OVERLOADED)
    service.begin(previous=first)

    with pytest.raises(UsageError, match=r"nothing allows this retry: <Attempt 1 at"):
        service.task.begin(Request(), first)
    assert service.task.snapshot().active == 1


def test_a_retry_is_neither_throttled_nor_asks() -> None:
    service = Service()
    first = service.begin()
    service.clock.advance(1.0)
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    service.hear(A, CUT)
    assert service.task.begin(Request()) == THROTTLED
    service.clock.advance(2.1)
    service.ask()

    assert service.begin(previous=first).number == 2


@pytest.mark.parametrize(
    ("outcome", "luck", "expected"),
    [
        pytest.param(Outcome.OVERLOADED, 0.5, Next.GIVE_UP, id="below: others would refuse it too"),
        pytest.param(Outcome.OVERLOADED, 0.75, Next.RETRY, id="above the line"),
        pytest.param(Outcome.LOST, 0.5, Next.RETRY, id="lost: that was no refusal"),
    ],
)
def test_what_is_refused_below_the_line_is_not_retried(
    outcome: Outcome, luck: float, expected: Next
) -> None:
    service = Service()
    attempt = service.begin(Request(idempotent=True, luck=luck))
    service.hear(attempt.backend, 2.7, is_probe=False)

    assert attempt.finish(outcome) is expected
    assert service.balance == pytest.approx(2.1 if expected is Next.RETRY else 3.1)


def test_a_retry_that_finds_no_backend_ends_the_request() -> None:
    seen = Seen()
    service = Service(throttle="adaptive", observer=seen)
    first = service.begin()
    first.finish(Outcome.OVERLOADED)
    service.task.update([])

    assert service.task.begin(Request(), first) == NO_BACKEND
    assert service.throttled == 1 / 2  # The backend's rejection is how it ended.
    assert seen.events[-1] == "NO_BACKEND"
    with pytest.raises(UsageError, match="nothing allows this retry"):
        service.task.begin(Request(), first)


def test_a_request_that_found_no_backend_says_nothing_to_the_throttle() -> None:
    service = Service(backends=(), throttle="adaptive")
    assert service.task.begin(Request()) == NO_BACKEND

    assert (service.throttled, service.balance) == (0.0, 3.0)


def test_a_retry_is_of_the_same_request() -> None:
    service = Service()
    first = service.begin(Request(criticality=Criticality.SHEDDABLE))
    first.finish(Outcome.OVERLOADED)

    with pytest.raises(UsageError, match="another request than that of <Attempt 1"):
        service.task.begin(Request(criticality=Criticality.CRITICAL_PLUS), first)
    assert service.begin(Request(criticality=Criticality.SHEDDABLE), previous=first).number == 2


# In front of backends that do not report


def reasons_of(service: Service, requests: list[tuple[Request, Outcome, float]]) -> list[str]:
    """Send requests one after another that end so after so many seconds; return why not."""
    texts: list[str] = []
    for made, outcome, seconds in requests:
        left = made.deadline_at
        request = made if left is None else made.until(service.clock() + left)
        answer = service.task.begin(request)
        if isinstance(answer, Ask):
            answer = answer.resume()
        service.clock.advance(seconds)
        if isinstance(answer, Attempt):
            answer.finish(outcome)
        else:
            assert isinstance(answer, Rejection)
            texts.append(answer.text)
    return texts


TIGHT = (Request(deadline_at=0.003), Outcome.TIMEOUT, 0.003)
SLOW = (Request(deadline_at=1.0), Outcome.TIMEOUT, 1.0)


@pytest.mark.parametrize("deadline", [None, 0.02, 1.0])
@pytest.mark.parametrize("policy", ["round_robin", "probing"])
def test_a_deadline_too_tight_refuses_no_other_request(deadline: float | None, policy: str) -> None:
    service = Service(policy=policy)
    assert reasons_of(service, [TIGHT] * 100)
    ordinary = (Request(deadline_at=deadline), Outcome.OK, 0.005)

    assert reasons_of(service, [ordinary] * 200) == []


def test_one_method_of_ten_that_always_times_out_refuses_nothing() -> None:
    good = (Request(deadline_at=1.0), Outcome.OK, 0.01)

    assert reasons_of(Service(), ([SLOW] + [good] * 9) * 100) == []


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (
            [SLOW] * 30,
            f"this client task throttles itself, because {Cause.TIMEOUTS.value}",
        ),
        (
            [(Request(), Outcome.DONT_RETRY, 0.1)] * 30,
            "this client task throttles itself, because backends have been rejecting",
        ),
        (
            [(Request(), Outcome.OUT_OF_QUOTA, 0.1)] * 30,
            "this client task throttles itself, because the customer has been out of quota",
        ),
    ],
    ids=["timeouts", "rejections", "quota"],
)
def test_a_throttled_request_says_what_really_happened(
    ends: list[tuple[Request, Outcome, float]], text: str
) -> None:
    seen = Seen()
    texts = reasons_of(Service(observer=seen), ends)

    assert set(texts) == {text}
    assert seen.events.count("THROTTLED") == len(texts)  # To observers it is one reason.
