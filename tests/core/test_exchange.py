from __future__ import annotations

import random

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.exchange import Connect, Ended, Exchange, Park, Requests, Step
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.retry import RetryConfig
from evenly.core.request import Outcome, Reason, Request
from evenly.errors import UsageError
from evenly.testing import ManualClock

A, B = Backend("a:1"), Backend("b:1")
PATIENCE = 0.25


class World:
    """One client task whose backends are connected when the test says so."""

    def __init__(
        self,
        *backends: Backend,
        policy: str = "least_loaded",
        active_limit: int = 100,
        is_discovered: bool = True,
        initial_balance: float = 3.0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.clock = ManualClock()
        config = ClientTaskConfig(
            policy=PolicyConfig(name=policy),
            active_limit=active_limit,
            retry=RetryConfig(initial_balance=initial_balance),
        )
        self.task = ClientTask(config, clock=self.clock, rng=random.Random(1), observer=observer)
        self.requests = Requests(
            self.task,
            clock=self.clock,
            patience_seconds=PATIENCE,
            is_discovered=is_discovered,
        )
        self.task.update(backends)
        self.task.take_connections()
        for backend in backends:
            self.opened(backend)

    def opened(self, backend: Backend) -> None:
        self.task.record_connection(backend, ConnectionEvent.OPENED)

    def refused(self, backend: Backend) -> None:
        self.task.record_connection(backend, ConnectionEvent.LOST)
        self.task.record_connection(backend, ConnectionEvent.REFUSED)

    def exchange(
        self,
        *,
        is_patient: bool = False,
        seconds: float | None = None,
        idempotent: bool = False,
    ) -> Exchange:
        deadline_at = None if seconds is None else self.clock() + seconds
        request = Request(deadline_at=deadline_at, idempotent=idempotent)
        return Exchange(self.requests, request, is_patient)

    @property
    def active(self) -> int:
        return self.task.snapshot().active


def attempt_of(step: Step | Connect | None) -> Attempt:
    assert isinstance(step, Attempt)
    return step


def rejected(step: Step) -> Reason:
    assert isinstance(step, Ended)
    assert step.rejection is not None
    assert step.outcome is None
    return step.rejection.reason


def test_a_request_is_sent_and_answered() -> None:
    world = World(A)
    exchange = world.exchange()

    attempt = attempt_of(exchange.begin())
    assert (attempt.backend, world.active) == (A, 1)

    assert exchange.ended(Outcome.OK) == Ended(Outcome.OK)
    assert (exchange.is_over, world.active) == (True, 0)


def test_a_refused_request_is_sent_elsewhere() -> None:
    world = World(A, B)
    exchange = world.exchange()

    first = attempt_of(exchange.begin())
    second = attempt_of(exchange.ended(Outcome.OVERLOADED))

    assert {first.backend, second.backend} == {A, B}
    assert (second.number, world.active) == (2, 1)
    assert exchange.ended(Outcome.OK) == Ended(Outcome.OK)


def test_what_must_not_be_sent_again_is_not() -> None:
    world = World(A, B)
    exchange = world.exchange()
    exchange.begin()

    assert exchange.ended(Outcome.OVERLOADED, is_final=True) == Ended(Outcome.OVERLOADED)


def test_a_failure_stands_when_the_next_attempt_cannot_be_sent() -> None:
    world = World(A, B)
    exchange = world.exchange()
    exchange.begin()
    attempt_of(exchange.ended(Outcome.OVERLOADED))
    world.refused(A)
    world.refused(B)

    assert exchange.not_sent() == Ended(Outcome.OVERLOADED)
    assert world.active == 0


def test_a_patient_request_does_not_wait_when_a_failure_stands() -> None:
    world = World(A, B)
    exchange = world.exchange(is_patient=True)
    exchange.begin()
    attempt_of(exchange.ended(Outcome.OVERLOADED))
    world.refused(A)
    world.refused(B)

    assert exchange.not_sent() == Ended(Outcome.OVERLOADED)
    assert world.requests.parked == 0


def test_what_was_not_sent_goes_elsewhere_without_a_retry_being_paid_for() -> None:
    world = World(A, B, initial_balance=0.0)
    exchange = world.exchange()

    first = attempt_of(exchange.begin())
    world.refused(first.backend)
    second = attempt_of(exchange.not_sent())

    assert second.backend is not first.backend
    assert second.number == 1


def test_a_request_that_cannot_be_sent_says_so() -> None:
    world = World(A)
    exchange = world.exchange()
    exchange.begin()
    world.refused(A)

    assert rejected(exchange.not_sent()) is Reason.NO_CONNECTION


def test_there_is_no_backend() -> None:
    assert rejected(World().exchange().begin()) is Reason.NO_BACKEND


def test_what_is_refused_here_is_seen_once() -> None:
    refused: list[Reason] = []

    class Seen(Observer):
        def request_refused(self, request: Request, reason: Reason) -> None:
            refused.append(reason)

    world = World(A, observer=Seen())
    late, stands, final, alone = (world.exchange(seconds=1.0) for _ in range(4))
    for exchange in (late, stands, final, alone):
        exchange.begin()
    late.connect()
    late.expire()
    stands.ended(Outcome.ERROR)
    world.refused(A)
    final.not_sent(is_final=True)
    alone.not_sent()  # Sent elsewhere, but there is nobody.

    assert refused == [Reason.EXPIRED, Reason.NO_CONNECTION, Reason.NO_BACKEND]


# Waiting for a connection.


def test_a_request_waits_for_its_connection() -> None:
    world = World(A)
    exchange = world.exchange()
    attempt = attempt_of(exchange.begin())

    assert exchange.connect() == Connect(attempt, world.clock() + PATIENCE)
    assert exchange.connected() is attempt
    assert exchange.ended(Outcome.OK) == Ended(Outcome.OK)


def test_patience_ends_only_where_another_connection_stands() -> None:
    world = World(A, B)
    exchange = world.exchange()
    attempt = attempt_of(exchange.begin())
    other = B if attempt.backend == A else A
    world.refused(other)
    exchange.connect()
    world.clock.advance(PATIENCE)

    assert exchange.waited() == Connect(attempt, world.clock() + PATIENCE)

    world.opened(other)
    assert attempt_of(exchange.waited()).backend == other
    assert world.active == 1


def test_a_deadline_that_passes_before_the_connection_stands_is_no_time_out() -> None:
    world = World(A)
    exchange = world.exchange(seconds=1.0)
    attempt = attempt_of(exchange.begin())
    exchange.connect()

    assert rejected(exchange.expire()) is Reason.EXPIRED
    assert attempt.outcome is Outcome.NOT_SENT
    assert world.active == 0


def test_a_deadline_that_passes_while_it_is_sent_is_a_time_out() -> None:
    world = World(A)
    exchange = world.exchange(seconds=1.0)
    attempt = attempt_of(exchange.begin())

    assert exchange.expire() == Ended(Outcome.TIMEOUT)
    assert attempt.outcome is Outcome.TIMEOUT


def test_a_deadline_that_passes_between_begun_and_sent_is_no_time_out() -> None:
    """Threads: the step that begins an attempt is known, and nobody has sent it yet."""
    world = World(A, B)
    exchange = world.exchange(seconds=1.0)
    attempt = attempt_of(exchange.begin())

    assert rejected(exchange.expire(is_sent=False)) is Reason.EXPIRED
    assert attempt.outcome is Outcome.NOT_SENT
    assert world.active == 0


def test_a_failure_stands_when_time_is_up_before_the_next_attempt_is_sent() -> None:
    world = World(A, B)
    exchange = world.exchange(seconds=1.0)
    exchange.begin()
    exchange.ended(Outcome.OVERLOADED)
    exchange.connect()

    assert exchange.expire() == Ended(Outcome.OVERLOADED)
    assert world.active == 0


# Waiting for a backend.


def test_before_the_backends_are_known_every_request_waits_in_its_order() -> None:
    world = World(A, active_limit=1, is_discovered=False)
    patient, second, third = (world.exchange(is_patient=one) for one in (True, True, False))
    assert all(isinstance(one.begin(), Park) for one in (patient, second, third))
    assert world.requests.next_parked() is None

    went_on = world.requests.discovered()

    assert [one for one, _ in went_on] == [patient, third]
    assert attempt_of(went_on[0][1]).backend == A
    assert rejected(went_on[1][1]) is Reason.AT_LIMIT
    assert world.requests.parked == 1


def test_patient_requests_wait_in_line_and_nobody_patient_overtakes_them() -> None:
    world = World(A, active_limit=1)
    serving = world.exchange()
    serving.begin()
    first, second = world.exchange(is_patient=True), world.exchange(is_patient=True)
    assert isinstance(first.begin(), Park)
    assert world.requests.next_parked() is None

    serving.ended(Outcome.OK)
    assert isinstance(second.begin(), Park)  # Though there is room: `first` is before it.

    assert world.requests.next_parked() == (first, first.attempt)
    assert world.requests.next_parked() is None
    first.ended(Outcome.OK)
    assert world.requests.next_parked() == (second, second.attempt)


def test_a_patient_request_that_could_not_be_sent_waits_before_all_others() -> None:
    world = World(A)
    first, second = world.exchange(is_patient=True), world.exchange(is_patient=True)
    first.begin()
    world.refused(A)
    assert isinstance(second.begin(), Park)

    assert isinstance(first.not_sent(), Park)
    world.opened(A)

    assert world.requests.next_parked() == (first, first.attempt)


def test_a_request_that_is_begun_anew_earns_retries_once() -> None:
    world = World(A, initial_balance=0.0)
    exchange = world.exchange(is_patient=True)
    exchange.begin()
    world.refused(A)
    exchange.not_sent()
    world.opened(A)
    world.requests.next_parked()

    assert world.task.snapshot().retry_balance == pytest.approx(0.1)


def test_those_that_could_not_be_sent_together_wait_in_the_order_in_which_they_began() -> None:
    world = World(A)
    began = [world.exchange(is_patient=True) for _ in range(3)]
    for exchange in began:
        exchange.begin()
        exchange.connect()
    world.refused(A)
    for exchange in began:
        assert isinstance(exchange.not_sent(), Park)
    world.opened(A)

    assert [found[0] for found in iter(world.requests.next_parked, None)] == began


def test_those_who_gave_up_do_not_fill_the_line() -> None:
    world = World()
    head = world.exchange(is_patient=True)
    head.begin()
    for _ in range(1_000):
        exchange = world.exchange(is_patient=True)
        exchange.begin()
        exchange.cancel()

    assert world.requests.parked == 1
    assert len(world.requests._heap) < 100


def test_a_patient_request_that_cannot_be_sent_again_does_not_wait() -> None:
    world = World(A)
    exchange = world.exchange(is_patient=True)
    exchange.begin()
    world.refused(A)

    assert rejected(exchange.not_sent(is_final=True)) is Reason.NO_CONNECTION


def test_who_gives_up_leaves_the_line() -> None:
    world = World()
    first, second = world.exchange(is_patient=True), world.exchange(is_patient=True, seconds=1.0)
    first.begin()
    second.begin()

    first.cancel()
    assert rejected(second.expire()) is Reason.EXPIRED

    assert world.requests.parked == 0
    assert first.is_over


def test_who_waits_when_the_service_is_closed_is_told() -> None:
    world = World()
    exchange = world.exchange(is_patient=True)
    exchange.begin()

    ((waited, step),) = world.requests.close()

    assert waited is exchange
    assert rejected(step) is Reason.NO_BACKEND
    assert world.requests.parked == 0


def test_a_closed_service_has_no_backend_for_what_asks_or_begins() -> None:
    world = World(A)
    asking = world.exchange()
    asking._go_on(Ask(world.task._resume, asking.request, (), wait_seconds=1.0, now=0.0))

    assert world.requests.close() == []

    assert rejected(asking.probed()) is Reason.NO_BACKEND
    assert rejected(world.exchange(is_patient=True).begin()) is Reason.NO_BACKEND


@pytest.mark.parametrize("is_patient", [False, True])
def test_what_is_not_sent_when_the_service_is_closed_is_not_begun_again(is_patient: bool) -> None:
    world = World(A, B)
    exchange = world.exchange(is_patient=is_patient)
    exchange.begin()
    exchange.connect()

    world.requests.close()

    assert rejected(exchange.not_sent()) is Reason.NO_CONNECTION
    assert world.active == 0


def test_what_fails_when_the_service_is_closed_has_failed() -> None:
    world = World(A, B)
    exchange = world.exchange(idempotent=True)
    exchange.begin()

    world.requests.close()

    assert exchange.ended(Outcome.LOST) == Ended(Outcome.LOST)


# Asking.


def asking(world: World, *, is_patient: bool = False) -> Exchange:
    exchange = world.exchange(is_patient=is_patient)
    assert isinstance(exchange.begin(), Ask)
    return exchange


def test_a_request_goes_on_after_probes() -> None:
    world = World(A, B, policy="probing")
    exchange = asking(world)
    assert world.active == 0

    attempt_of(exchange.probed())
    assert world.active == 1


def test_a_request_that_is_cancelled_while_it_asks_counts_nothing() -> None:
    world = World(A, B, policy="probing")
    exchange = asking(world)

    exchange.cancel()

    assert world.active == 0
    with pytest.raises(UsageError, match="probed"):
        exchange.probed()


def test_a_patient_request_whose_backends_go_while_it_asks_waits_first_in_line() -> None:
    world = World(A, B, policy="probing")
    exchange = asking(world, is_patient=True)
    world.refused(A)
    world.refused(B)
    second = world.exchange(is_patient=True)
    assert isinstance(second.begin(), Park)

    assert isinstance(exchange.probed(), Park)
    world.opened(A)

    found = world.requests.next_parked()
    assert found is not None
    assert found[0] is exchange


# Giving up, and mistakes.


@pytest.mark.parametrize("is_connecting", [False, True])
def test_a_request_that_is_cancelled_finishes_its_attempt(is_connecting: bool) -> None:
    world = World(A)
    exchange = world.exchange()
    attempt = attempt_of(exchange.begin())
    if is_connecting:
        exchange.connect()

    exchange.cancel()
    exchange.cancel()

    assert attempt.outcome is Outcome.CANCELLED
    assert (exchange.is_over, world.active) == (True, 0)


@pytest.mark.parametrize(
    "verb",
    [
        "begin",
        "probed",
        "connect",
        "connected",
        "waited",
        "backends_changed",
        "no_backend",
        "not_sent",
        "ended",
        "expire",
    ],
)
def test_nothing_may_be_said_of_a_request_that_is_over(verb: str) -> None:
    world = World(A)
    exchange = world.exchange()
    exchange.begin()
    exchange.ended(Outcome.OK)

    said = getattr(exchange, verb)
    with pytest.raises(UsageError, match=rf"{verb}\(\): .*over"):
        said(Outcome.OK) if verb == "ended" else said()


def test_an_attempt_that_waits_for_its_connection_cannot_have_ended() -> None:
    world = World(A)
    exchange = world.exchange()
    exchange.begin()
    exchange.connect()

    with pytest.raises(UsageError, match="waiting for a connection"):
        exchange.ended(Outcome.OK)
