from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.claim import believe
from evenly.core.criticality import Criticality
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import AttemptHistogramConfig
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.testing import ManualClock

# Some hundred sums of amounts below 1e4, each off by at most 1e4 · 1.1e-16.
NEAR = 1e-9
COMPUTE_UNITS = 0.5
QUOTA = QuotaConfig(
    limits={"a": 4.0, "b": 0.5},
    default_limit=1.0,
    criticality_limits={"a": {Criticality.SHEDDABLE: 1.0, Criticality.CRITICAL: 3.0}},
    first_cost_seconds=0.1,
)
SIGNALS = ("runnable", "cpu", "memory", "connections")

anything = st.one_of(
    st.none(),
    st.text(max_size=200),
    st.binary(max_size=200),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from(["CRITICAL_PLUS", b"SHEDDABLE", "ULTRA", "a", "x" * 1_000_000, "1e308", "-1"]),
    st.integers(10**300, 10**400),
    st.lists(st.integers(), max_size=2),
)
criticalities = st.sampled_from(Criticality)
customers = st.sampled_from(["a", "b", "", "invented", "another"])
attempts = st.one_of(st.integers(1, 4), st.integers(), st.integers(10**30, 10**31))
# What is left until the deadline.
times_left = st.one_of(st.none(), st.floats(-1.0, 5.0), st.floats())
lucks = st.one_of(st.none(), st.integers(0, 63).map(lambda step: step / 64))
lines = st.one_of(st.just(0.0), st.floats(0.0, 4.0))
costs = st.one_of(st.floats(0.0, 3.0), st.floats(), anything)
signals = st.one_of(st.floats(0.0, 40.0), st.floats(0.5, 1.5), st.floats(), anything)
picks = st.integers(0, 10**6)


@dataclass
class OddClock:
    """Be a clock that may step back."""

    now: float = 1_000.25

    def __call__(self) -> float:
        return self.now


@dataclass
class Account:
    """What a customer's bucket may ever have given out, from first principles."""

    limit: float
    earned: float
    rate: float
    active: int = 0
    charged: float = 0.0
    excess: float = 0.0
    largest_reservation: float = 0.0


@dataclass
class Held:
    """One admitted request."""

    admission: Admission
    account: Account
    reserved: float = field(default=0.0)


class Model(RuleBasedStateMachine):
    """Drive a backend task at random, beside the simplest model of what it must count."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = OddClock()
        self.latest = self.clock()
        config = BackendTaskConfig(
            cores=2,
            quota=QUOTA,
            cost=CostConfig(compute_units=COMPUTE_UNITS),
            attempts=AttemptHistogramConfig(first_attempts=20, min_arrivals=5),
            quiet_seconds=1.0,
            drain_seconds=10.0,
        )
        self.task = BackendTask(config, clock=self.clock, rng=random.Random(1), boot=1)
        self.held: list[Held] = []
        self.is_lame_duck = True
        self.is_leaving = False
        self.left_at = math.inf
        self.busy_at = self.clock()
        self.changes = 0
        self.runnable = 0.0
        self.runnable_at = -math.inf
        self.longest_seconds = 0.0
        self.accounts = {
            name: Account(limit, earned=limit, rate=limit)  # burst_seconds is 1
            for name, limit in {**QUOTA.limits, "": QUOTA.default_limit}.items()
        }

    def decide(self, request: Request, attempt: int, line: float = 0.0) -> Admission | Rejection:
        name = request.customer if request.customer in self.accounts else ""
        account = self.accounts[name]
        before = self.task.snapshot()
        wait_seconds = self.task._cut_line.wait_seconds
        answer = self.task.admit(request, attempt, line=line)
        self.busy_at = self.clock()
        after = self.task.snapshot()
        assert after.cut == before.cut  # One instant, one line.
        left = request.deadline_at
        is_expired = left is not None and not left > self.clock()
        if isinstance(answer, Admission):
            assert not is_expired
            # Who was admitted without any luck is above the line whatever it would have been.
            assert request.criticality + (answer.luck or 0.0) >= before.cut
            assert request.luck is None or answer.luck == request.luck
            reserved = (
                after.customers[name].reserved_seconds - before.customers[name].reserved_seconds
            )
            assert reserved >= -NEAR
            account.active += 1
            account.largest_reservation = max(
                account.largest_reservation, before.customers[name].expected_cost_seconds
            )
            self.held.append(Held(answer, account, before.customers[name].expected_cost_seconds))
            return answer
        assert (answer.reason is Reason.EXPIRED) == is_expired
        # A refusal leaves nothing behind but its count.
        assert after.active == before.active
        assert (
            abs(after.customers[name].reserved_seconds - before.customers[name].reserved_seconds)
            < NEAR
        )
        if answer.reason in (Reason.OVERLOADED, Reason.DONT_RETRY):
            assert answer.retryable is (answer.reason is Reason.OVERLOADED)
            is_late = left is not None and left - self.clock() < wait_seconds
            # Its least luck, where it had none, is the least that can be said.
            assert is_late or request.criticality + (request.luck or 0.0) < before.cut
        elif answer.reason is Reason.OUT_OF_QUOTA:
            if answer.retry_after_seconds is None:
                # Never is no number of seconds.  Nor is a debt of 40 steps · 1e6 s, the most
                # charged, at a rate of less than 4e7 / 1.8e308; a further limit has a quarter.
                assert account.rate < 1e-299
            else:
                assert 0.0 < answer.retry_after_seconds < math.inf
            assert not answer.retryable
        return answer

    @rule(
        criticality=criticalities,
        customer=customers,
        attempt=attempts,
        left=times_left,
        luck=lucks,
        line=lines,
    )
    def admit(
        self,
        *,
        criticality: Criticality,
        customer: str,
        attempt: int,
        left: float | None,
        luck: float | None,
        line: float,
    ) -> None:
        deadline_at = None if left is None else self.clock() + left
        request = Request(
            criticality=criticality, customer=customer, deadline_at=deadline_at, luck=luck
        )
        self.decide(request, attempt, line)

    @rule(levels=st.lists(st.integers(0, 255), min_size=2, max_size=4), line=lines)
    def admit_some_at_one_instant(self, levels: list[int], line: float) -> None:
        overloaded: list[int] = []
        admitted: list[int] = []
        for level in levels:
            criticality, luck = Criticality(level // 64), level % 64 / 64
            answer = self.decide(Request(criticality=criticality, luck=luck), 1, line)
            if isinstance(answer, Admission):
                admitted.append(level)
            elif answer.reason is not Reason.OUT_OF_QUOTA:
                overloaded.append(level)
        assert not admitted or not overloaded or max(overloaded) < min(admitted)

    @rule(
        criticality=criticalities,
        queue=st.sampled_from([0.0, 1.0, 5.0, 12.0, 50.0, 1e6]),
        times=st.integers(1, 5),
        cpu_seconds=st.sampled_from([0.0, 5e-324, 1e-6, 0.001, 0.01]),
        line=lines,
    )
    def work(
        self,
        *,
        criticality: Criticality,
        queue: float,
        times: int,
        cpu_seconds: float,
        line: float,
    ) -> None:
        """Let requests come and go for a while: by chance alone a queue hardly builds up."""
        for _ in range(20):
            self.record_signal("runnable", queue)
            for _ in range(times):
                self.decide(Request(criticality=criticality, customer="a"), 1, line)
            self.let_time_pass(0.01)
            if self.held:
                self.finish(len(self.held) - 1, Outcome.OK, cpu_seconds)

    @rule(criticality=criticalities, customer=customers)
    def admit_without_deadline(self, criticality: Criticality, customer: str) -> None:
        self.decide(Request(criticality=criticality, customer=customer), 1)

    @rule(
        criticality=anything,
        customer=anything,
        attempt=anything,
        deadline_ms=anything,
        peer_is_trusted=st.booleans(),
        first_attempt=st.sampled_from([0, 1]),
    )
    def admit_what_a_stranger_claims(
        self,
        *,
        criticality: object,
        customer: object,
        attempt: object,
        deadline_ms: object,
        peer_is_trusted: bool,
        first_attempt: int,
    ) -> None:
        request, number = believe(
            criticality=criticality,
            customer=customer,
            attempt=attempt,
            deadline_ms=deadline_ms,
            peer_is_trusted=peer_is_trusted,
            now=self.clock(),
            first_attempt=first_attempt,
        )
        assert 1 <= number <= (10 if peer_is_trusted else 1)
        self.decide(request, number)

    @precondition(lambda self: self.held)
    @rule(which=picks, outcome=st.sampled_from(Outcome), cpu_seconds=costs)
    def finish(self, which: int, outcome: Outcome, cpu_seconds: Any) -> None:
        held = self.held.pop(which % len(self.held))
        expected = self.expected_costs()
        held.admission.finish(outcome, cpu_seconds)
        if outcome is Outcome.CANCELLED:
            assert self.expected_costs() == expected
        now = self.busy_at = self.clock()
        self.longest_seconds = max(self.longest_seconds, now - held.admission.admitted_at)
        account = held.account
        account.active -= 1
        # A measurement that is none counts as 0; one of more than 1e6 s is not charged, but what
        # was expected is.
        is_measured = isinstance(cpu_seconds, int | float) and 0.0 <= cpu_seconds <= 1e12
        cost = cpu_seconds * COMPUTE_UNITS if is_measured else 0.0
        charged = cost if cost <= 1e6 else held.reserved
        account.charged += charged
        account.excess += max(0.0, charged - held.reserved)

    @rule(name=st.sampled_from(SIGNALS), value=signals)
    def record_signal(self, name: str, value: Any) -> None:
        self.task.record_signal(name, value)
        is_count = isinstance(value, int | float) and 0.0 <= value <= 1e9
        if name == "runnable" and is_count:
            self.runnable, self.runnable_at = value, self.clock()

    @rule(seconds=st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 10.0), st.just(1e6)))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.now += seconds
        # A second that has passed before is not paid for again.
        new_seconds = max(0.0, self.clock() - self.latest)
        self.latest = max(self.latest, self.clock())
        for account in self.accounts.values():
            account.earned += new_seconds * account.rate

    @rule(seconds=st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 10.0), st.just(1e6)))
    def let_the_clock_step_back(self, seconds: float) -> None:
        self.clock.now -= seconds

    @rule(limits=st.dictionaries(customers, st.one_of(st.floats(0.0, 5.0), st.floats())))
    def update_quotas(self, limits: dict[str, float]) -> None:
        self.task.update_quotas(limits)
        for name, limit in limits.items():
            account = self.accounts.get(name)
            if account is not None and 0.0 <= limit <= 1e9:
                account.rate = min(limit, account.limit)

    @rule()
    def announce_healthy(self) -> None:
        assert self.task.announce_healthy() is not self.is_leaving
        if not self.is_leaving:
            self.changes += self.is_lame_duck
            self.is_lame_duck = False

    @rule()
    def enter_lame_duck(self) -> None:
        self.task.enter_lame_duck()
        if not self.is_leaving:
            self.left_at = self.busy_at = self.clock()
        self.changes += not self.is_lame_duck
        self.is_lame_duck = self.is_leaving = True

    @invariant()
    def it_counts_what_the_model_counts(self) -> None:
        snapshot = self.task.snapshot()
        report = self.task.report()  # which refuses what is not finite
        assert snapshot.active == report.active == len(self.held)
        assert snapshot.is_lame_duck == report.lame_duck == self.is_lame_duck
        assert report.sequence == self.changes
        assert report.cut == snapshot.cut >= snapshot.utilization.cut
        assert 0.0 <= report.cut <= 4.0
        assert 0.0 <= self.task._cut_line.wait_seconds < math.inf
        for name, account in self.accounts.items():
            assert snapshot.customers[name].active == account.active

    @invariant()
    def it_reports_what_is_known(self) -> None:
        report = self.task.report()
        is_known = self.clock() - self.runnable_at <= 5.0
        own = self.runnable if is_known else len(self.held)
        # More than its queue only where something else refuses: then the queue that would, too.
        assert report.runnable == own or (report.runnable > own and report.cut > 0.0)
        cpu = self.task.snapshot().utilization.signals["cpu"].value
        if cpu:
            assert report.utilization == cpu
        else:
            assert 0.0 <= report.utilization <= (1.0 if is_known else 0.0)
        # An average of what was seen, scaled to those there are and one more, to within rounding.
        most = self.longest_seconds * (len(self.held) + 1)
        assert 0.0 <= report.latency_seconds <= most * (1.0 + NEAR)

    @invariant()
    def it_sheds_in_order(self) -> None:
        probabilities = self.task.snapshot().rejection_probabilities
        for criticality in Criticality:
            assert 0.0 <= probabilities[criticality] <= 1.0
            if probabilities[criticality] > 0.0:
                assert all(p == 1.0 for p in probabilities[:criticality])

    @invariant()
    def no_bucket_is_overdrawn_by_more_than_a_request(self) -> None:
        for name, customer in self.task.snapshot().customers.items():
            account = self.accounts[name]
            size = 1.0 + account.excess + account.largest_reservation
            most = account.largest_reservation + account.excess
            assert customer.level_seconds >= -most - NEAR * size
            # And seen from outside: what was charged, and is set aside, was earned before.
            given_out = account.charged + customer.reserved_seconds
            assert given_out <= account.earned + most + NEAR * (size + account.earned)

    @invariant()
    def it_is_drained_when_nobody_is_left_or_time_is_up(self) -> None:
        now = self.clock()
        if not self.is_leaving:
            assert not self.task.is_drained()
            assert self.task.next_wake_at() == math.inf
        elif self.held:
            assert self.task.is_drained() == (now >= self.left_at + 10.0)
        else:
            assert self.task.is_drained() == (now >= self.task.next_wake_at())
            assert self.task.next_wake_at() == min(self.left_at + 10.0, self.busy_at + 1.0)

    def expected_costs(self) -> list[float]:
        customers = self.task.snapshot().customers.values()
        return [customer.expected_cost_seconds for customer in customers]

    def teardown(self) -> None:
        for held in self.held:
            held.admission.finish(Outcome.OK)
        snapshot = self.task.snapshot()
        assert snapshot.active == 0
        for customer in snapshot.customers.values():
            assert (customer.active, customer.reserved_seconds) == (0, 0.0)
        self.clock.now = max(self.clock(), self.latest) + 100.0  # Nobody says anything any more.
        assert self.task.report().cut == 0.0


def test_any_story_keeps_the_invariants() -> None:
    run_state_machine_as_test(Model, settings=settings(max_examples=80, stateful_step_count=40))


@given(
    criticality=anything,
    customer=anything,
    attempt=anything,
    deadline_ms=anything,
    peer_is_trusted=st.booleans(),
    runnable=st.one_of(st.none(), signals),
)
def test_no_claim_raises_out_of_admit(
    *,
    criticality: object,
    customer: object,
    attempt: object,
    deadline_ms: object,
    peer_is_trusted: bool,
    runnable: Any,
) -> None:
    clock = ManualClock()
    config = BackendTaskConfig(quota=QUOTA)
    task = BackendTask(config, clock=clock, rng=random.Random(1), boot=1)
    if runnable is not None:
        task.record_signal("runnable", runnable)
    request, number = believe(
        criticality=criticality,
        customer=customer,
        attempt=attempt,
        deadline_ms=deadline_ms,
        peer_is_trusted=peer_is_trusted,
        now=clock(),
    )
    assert peer_is_trusted or number == 1
    answer = task.admit(request, number)

    if isinstance(answer, Rejection):
        assert task.report().active == 0
    else:
        assert peer_is_trusted or request.criticality <= Criticality.CRITICAL
        answer.finish(Outcome.OK)
        assert task.report().active == 0
