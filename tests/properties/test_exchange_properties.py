"""Whatever happens to requests, each ends once, has one attempt at a time, and leaves no count."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.exchange import Connect, Ended, Exchange, Park, Requests, Step
from evenly.core.observer import Observer
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Request
from evenly.testing import ManualClock

BACKENDS = [Backend(f"b{number}:1") for number in range(3)]
indices = st.integers(min_value=0, max_value=1_000)


class Counted(Observer):
    """Counts attempts from outside: the core must agree with it."""

    def __init__(self) -> None:
        self.begun = 0
        self.finished = 0

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun += 1

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.finished += 1


class Exchanges(RuleBasedStateMachine):
    """Several requests of one client task, over a transport that does whatever it likes."""

    @initialize(
        policy=st.sampled_from(["least_loaded", "probing"]),
        active_limit=st.integers(min_value=1, max_value=2),
        is_discovered=st.booleans(),
        seed=st.integers(min_value=0, max_value=2**16),
    )
    def start(self, policy: str, active_limit: int, is_discovered: bool, seed: int) -> None:
        self.clock = ManualClock()
        self.counted = Counted()
        config = ClientTaskConfig(
            policy=PolicyConfig(name=policy),
            active_limit=active_limit,
            membership=MembershipConfig(client_index=0, subset_size=3),
        )
        self.task = ClientTask(
            config, clock=self.clock, rng=random.Random(seed), observer=self.counted
        )
        self.requests = Requests(
            self.task, clock=self.clock, patience_seconds=0.25, is_discovered=is_discovered
        )
        self.is_discovered = is_discovered
        self.is_closed = False
        self.steps: dict[Exchange, Step | Connect] = {}
        """Those under way, with what each was last told to do."""
        self.ends: dict[Exchange, Ended | None] = {}
        """Those that are over; `None` was cancelled."""
        self.patient: set[Exchange] = set()
        self.attempts: set[int] = set()
        if is_discovered:
            self.task.update(BACKENDS)

    def take(self, exchange: Exchange, step: Step | Connect) -> None:
        """Note what a request is to do; it may not be over yet."""
        assert exchange not in self.ends
        if isinstance(step, Ended):
            assert exchange.is_over
            assert (step.outcome is None) is not (step.rejection is None)
            self.steps.pop(exchange, None)
            self.ends[exchange] = step
            return
        assert not (self.is_closed and isinstance(step, Ask | Park))
        if isinstance(step, Attempt):
            assert step is exchange.attempt
            assert step.outcome is None
        self.steps[exchange] = step

    def pick(self, number: int, kind: type[Step | Connect]) -> Exchange | None:
        found = [one for one, step in self.steps.items() if isinstance(step, kind)]
        return found[number % len(found)] if found else None

    @precondition(lambda self: len(self.steps) < 8)
    @rule(is_patient=st.booleans(), seconds=st.sampled_from([None, 0.5, 5.0]), again=st.booleans())
    def begin(self, is_patient: bool, seconds: float | None, again: bool) -> None:
        deadline_at = None if seconds is None else self.clock() + seconds
        request = Request(deadline_at=deadline_at, idempotent=again)
        exchange = Exchange(self.requests, request, is_patient)
        if is_patient:
            self.patient.add(exchange)
        self.take(exchange, exchange.begin())

    @rule(number=indices)
    def probed(self, number: int) -> None:
        exchange = self.pick(number, Ask)
        if exchange is not None:
            self.take(exchange, exchange.probed())

    @rule(number=indices)
    def connect(self, number: int) -> None:
        exchange = self.pick(number, Attempt)
        if exchange is not None:
            self.take(exchange, exchange.connect())

    @rule(number=indices, verb=st.sampled_from(["connected", "waited", "not_sent"]))
    def after_connecting(self, number: int, verb: str) -> None:
        exchange = self.pick(number, Connect)
        if exchange is not None:
            self.take(exchange, getattr(exchange, verb)())

    @rule(number=indices, is_final=st.booleans())
    def not_sent(self, number: int, is_final: bool) -> None:
        exchange = self.pick(number, Attempt)
        if exchange is not None:
            self.take(exchange, exchange.not_sent(is_final=is_final))

    @rule(
        number=indices,
        outcome=st.sampled_from([one for one in Outcome if one is not Outcome.NOT_SENT]),
        is_final=st.booleans(),
    )
    def ended(self, number: int, outcome: Outcome, is_final: bool) -> None:
        exchange = self.pick(number, Attempt)
        if exchange is not None:
            self.take(exchange, exchange.ended(outcome, is_final=is_final))

    @rule(number=indices)
    def expire(self, number: int) -> None:
        if self.steps:
            exchange = list(self.steps)[number % len(self.steps)]
            self.take(exchange, exchange.expire())

    @rule(number=indices)
    def cancel(self, number: int) -> None:
        if self.steps:
            exchange = list(self.steps)[number % len(self.steps)]
            exchange.cancel()
            assert exchange.is_over
            del self.steps[exchange]
            self.ends[exchange] = None

    @precondition(lambda self: not self.is_closed)
    @rule()
    def discovered(self) -> None:
        self.task.update(BACKENDS)
        was_discovered, self.is_discovered = self.is_discovered, True
        steps = self.requests.discovered()
        for exchange, step in steps:
            self.take(exchange, step)
        if not was_discovered:
            assert all(one in self.patient for one in self.waiting())

    @rule()
    def unpark(self) -> None:
        line = self.waiting()
        found = self.requests.next_parked()
        if found is not None:
            exchange, step = found
            assert self.is_discovered
            assert exchange is line[0]  # They stand in the order in which they were begun.
            assert not isinstance(step, Park)
            self.take(exchange, step)

    @rule()
    def close(self) -> None:
        self.is_closed = True
        for exchange, step in self.requests.close():
            self.take(exchange, step)
        assert not self.waiting()

    @rule(number=indices, event=st.sampled_from(ConnectionEvent))
    def connection(self, number: int, event: ConnectionEvent) -> None:
        self.task.record_connection(BACKENDS[number % 3], event)

    @rule()
    def connect_all(self) -> None:
        """Otherwise hardly anyone is healthy."""
        for backend in BACKENDS:
            self.task.record_connection(backend, ConnectionEvent.OPENED)

    @rule(number=indices, lame_duck=st.booleans(), cut=st.sampled_from([0.0, 2.5, 3.0, 4.0]))
    def report(self, number: int, lame_duck: bool, cut: float) -> None:
        self.clock.advance(0.001)
        sequence = int(self.clock() * 1e4)
        report = LoadReport(boot=1, sequence=sequence, lame_duck=lame_duck, cut=cut)
        self.task.record_report(BACKENDS[number % 3], report, is_probe=True)

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.task.wake()
        self.task.take_connections()

    def waiting(self) -> list[Exchange]:
        return [one for one, step in self.steps.items() if isinstance(step, Park)]

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "task"):
            return
        sent = [one for one, step in self.steps.items() if isinstance(step, (Attempt, Connect))]
        assert self.task.snapshot().active == len(sent)
        assert self.counted.begun - self.counted.finished == len(sent)
        assert self.requests.parked == len(self.waiting())
        for exchange, step in self.steps.items():
            assert not exchange.is_over
            assert (exchange.attempt is not None) is isinstance(step, (Attempt, Connect))
        for exchange in self.ends:
            assert exchange.is_over
            assert exchange.attempt is None

    def teardown(self) -> None:
        if hasattr(self, "task"):
            for exchange in list(self.steps):
                exchange.cancel()
            assert self.task.snapshot().active == 0
            assert self.requests.parked == 0
            assert self.counted.begun == self.counted.finished


TestExchanges = Exchanges.TestCase
TestExchanges.settings = settings(max_examples=100, stateful_step_count=30)
