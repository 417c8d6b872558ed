"""When a client task has connections opened and closed, as its transport sees it."""

from __future__ import annotations

import random

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import State
from evenly.core.balancing.membership import ConnectionEvent, ConnectionOrders, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.testing import ManualClock

OPENED = ConnectionEvent.OPENED
REFUSED = ConnectionEvent.REFUSED
LOST = ConnectionEvent.LOST
START = 1_000.0
A, B, C = Backend("a:1"), Backend("b:1"), Backend("c:1")
NOTHING = ConnectionOrders((), ())


class NoJitter(random.Random):
    """Draw the middle of every range: a jitter of 1 s is half a second."""

    def random(self) -> float:
        return 0.5


class Transport:
    """Do what a client task says, on a clock moved by hand."""

    def __init__(
        self, *backends: Backend, connecting_max: int = 10, active_limit: int = 100
    ) -> None:
        self.clock = ManualClock(START)
        self.answers_probes = True
        self.asked: list[str] = []
        self.task = ClientTask(
            ClientTaskConfig(
                policy=PolicyConfig(name="least_loaded"),
                membership=MembershipConfig(connecting_max=connecting_max),
                active_limit=active_limit,
            ),
            clock=self.clock,
            rng=NoJitter(0),
        )
        self.task.update(backends)

    def begin(self, previous: Attempt | None = None) -> Attempt:
        answer = self.task.begin(Request(), previous)
        assert isinstance(answer, Attempt)
        return answer

    def take(self) -> set[str]:
        """Return what is to be opened."""
        return {backend.address for backend in self.task.take_connections().open}

    def connect(self) -> None:
        """Open whatever is to be opened."""
        while opened := self.task.take_connections().open:
            for backend in opened:
                self.task.record_connection(backend, OPENED)

    def wait(self, seconds: float) -> None:
        """Let time pass, waking whenever that is due."""
        until = self.clock() + seconds
        while self.task.next_wake_at() <= until:
            self.clock.advance(self.task.next_wake_at() - self.clock())
            self.task.wake()
            for backend in self.task.take_probes():
                self.asked.append(backend.address)
                if self.answers_probes:
                    self.task.record_report(backend, LoadReport(), is_probe=True)
        self.clock.advance(until - self.clock())

    def state(self, backend: Backend) -> State:
        (state,) = (
            one.state for one in self.task.snapshot().backends if one.address == backend.address
        )
        return state


# Jitter and cap


def test_newcomers_are_opened_when_a_wake_is_due() -> None:
    transport = Transport(A, B, C)
    task = transport.task
    (last,) = {"a:1", "b:1", "c:1"} - transport.take()
    assert task.next_wake_at() == START + 0.5  # half of the jitter
    transport.clock.advance(0.49)
    task.wake()
    assert transport.take() == set()

    transport.clock.advance(0.01)
    task.wake()
    assert transport.take() == {last}
    assert task.next_wake_at() == START + 1.0  # the first health check


def test_a_lost_connection_is_opened_again_when_a_wake_is_due() -> None:
    transport = Transport(A, B)
    transport.connect()
    transport.wait(60.0)
    transport.task.record_connection(A, LOST)
    assert transport.take() == set()
    assert transport.begin().backend == B

    transport.wait(0.5)
    assert transport.take() == {"a:1"}
    transport.task.record_connection(A, OPENED)
    assert transport.begin().backend == A


def test_what_is_beyond_the_cap_is_opened_as_room_is_made() -> None:
    backends = [Backend(f"b{number}:1") for number in range(9)]
    transport = Transport(*backends, connecting_max=4)
    task = transport.task
    transport.connect()  # the two that are opened at once
    transport.wait(0.5)
    under_way = transport.task.take_connections().open
    assert len(under_way) == 4
    assert transport.take() == set()
    task.record_connection(under_way[0], OPENED)
    task.record_connection(under_way[1], REFUSED)

    assert len(transport.take()) == 2
    task.record_connection(under_way[2], OPENED)
    assert len(transport.take()) == 1  # the last of 9 = 2 + 4 + 2 + 1
    task.record_connection(under_way[3], OPENED)
    assert transport.take() == set()


# Demand


def test_the_first_request_does_not_wait_for_the_jitter() -> None:
    transport = Transport(A, B, C)
    task = transport.task
    first = transport.take()
    picked = {transport.begin().backend.address for _ in range(3)}
    assert picked == {"a:1", "b:1", "c:1"}  # They are all untried.

    assert transport.take() == picked - first
    transport.begin()
    assert transport.take() == set()  # All are under way.
    for backend in (A, B, C):
        task.record_connection(backend, OPENED)
    assert task.next_wake_at() == START + 0.5  # What was planned ...
    transport.wait(0.5)
    assert transport.take() == set()  # ... is done.


def test_a_request_for_a_backend_with_a_connection_demands_nothing() -> None:
    transport = Transport(A)
    transport.connect()
    transport.begin()

    assert transport.task.take_connections() == NOTHING


def test_a_burst_beyond_the_limit_has_connections_opened_beyond_the_cap() -> None:
    backends = [Backend(f"b{number}:1") for number in range(6)]
    transport = Transport(*backends, connecting_max=1, active_limit=2)
    transport.connect()
    for _ in range(4):
        transport.begin()  # Both that stand are at their limit.
    assert transport.take() == set()

    picked = {transport.begin().backend.address for _ in range(3)}
    assert len(picked) == 3
    assert transport.take() == picked


def test_what_was_waited_for_and_refused_is_opened_within_the_cap() -> None:
    transport = Transport(A, B, C, connecting_max=2)
    picked = [transport.begin().backend for _ in range(3)]
    transport.task.record_connection(picked[0], REFUSED)  # before it was even taken
    transport.wait(60.0)  # Its delay is over ...

    # ... but nobody waits for it any more, and the two others fill the cap.
    assert transport.take() == {backend.address for backend in picked[1:]}


def test_requests_to_a_service_that_refuses_do_not_hurry_its_delays() -> None:
    transport = Transport(A)
    task = transport.task
    first = transport.begin()
    assert transport.take() == {"a:1"}
    task.record_connection(A, REFUSED)
    assert first.finish(Outcome.NOT_SENT) is Next.RETRY
    for previous in (first, None, None):
        answer = task.begin(Request(), previous)
        assert answer == Rejection(Reason.NO_BACKEND, retryable=False)
    assert transport.take() == set()

    assert task.next_wake_at() == START + 1.0
    transport.wait(1.0)
    assert transport.take() == {"a:1"}


def test_a_request_whose_backend_left_before_it_was_connected_to_goes_elsewhere() -> None:
    transport = Transport(A, B)
    first = transport.begin()
    other = B if first.backend == A else A
    transport.task.update([other])
    # The transport is not told to open it, and so knows that the request cannot be sent.
    assert transport.take() == {other.address}
    assert first.finish(Outcome.NOT_SENT) is Next.RETRY

    assert transport.begin(previous=first).backend == other
    assert transport.task.take_connections() == ConnectionOrders((), (first.backend,))


# Idle mode


def resting(*backends: Backend) -> Transport:
    """Return one that had no requests for 300 s and a little, and has closed its connections."""
    transport = Transport(*backends)
    transport.connect()
    transport.wait(0.5)
    transport.connect()
    transport.wait(302.0)
    assert set(transport.task.take_connections().close) == set(backends)
    transport.asked.clear()
    return transport


def test_connections_are_closed_after_300_seconds_without_requests() -> None:
    transport = Transport(A)
    transport.connect()
    transport.wait(299.0)
    assert transport.task.take_connections() == NOTHING
    transport.wait(2.0)  # Checks are a second apart, and use is noted by checks.

    assert transport.task.take_connections() == ConnectionOrders((), (A,))
    assert transport.state(A) is State.HEALTHY


def test_without_answers_to_probes_connections_stay_open() -> None:
    transport = Transport(A)
    transport.answers_probes = False
    transport.connect()
    for _ in range(400):
        transport.task.record_report(A, LoadReport())  # not by UDP
        transport.wait(1.0)

    assert transport.task.take_connections() == NOTHING


def test_a_backend_in_use_keeps_its_connection_and_the_others_rest() -> None:
    transport = Transport(A, B)
    transport.connect()
    stream = transport.begin()
    transport.wait(302.0)

    (closed,) = transport.task.take_connections().close
    assert closed != stream.backend


def test_a_request_to_an_idle_backend_opens_its_connection() -> None:
    transport = resting(A, B)
    attempt = transport.begin()
    assert transport.take() == {attempt.backend.address}
    transport.task.record_connection(attempt.backend, OPENED)

    assert attempt.finish(Outcome.OK) is Next.DONE
    assert transport.take() == set()


def test_a_request_to_an_idle_backend_that_is_gone_goes_elsewhere() -> None:
    transport = resting(A, B)
    first = transport.begin()
    transport.take()
    transport.task.record_connection(first.backend, REFUSED)
    assert first.finish(Outcome.NOT_SENT) is Next.RETRY
    second = transport.begin(previous=first)

    assert (second.backend != first.backend, second.number) == (True, 1)
    assert transport.take() == {second.backend.address}


def test_idle_backends_are_probed_at_a_tenth_of_the_rate() -> None:
    transport = Transport(A)
    transport.connect()
    transport.wait(100.0)
    # Every second a check is due, and of two in a row one asks.
    assert len(transport.asked) == 50
    transport = resting(A)
    transport.wait(100.0)

    assert len(transport.asked) == 5


def test_an_idle_backend_is_told_to_be_a_lame_duck_by_a_notice() -> None:
    transport = resting(A, B)
    transport.task.record_report(A, LoadReport(boot=1, sequence=1, lame_duck=True))
    assert transport.state(A) is State.LAME_DUCK
    assert [transport.begin().backend for _ in range(3)] == [B, B, B]
    assert transport.take() == {"b:1"}  # The lame duck is not connected to.

    transport.task.record_report(A, LoadReport(boot=2, sequence=1, lame_duck=False))
    assert transport.begin().backend == A
    assert transport.take() == {"a:1"}


def test_a_last_word_of_watch_is_not_taken_for_an_idle_backend_s() -> None:
    transport = resting(A)
    transport.task.record_serving(A, serving=False)

    assert transport.state(A) is State.HEALTHY


def test_a_backend_that_stops_while_it_is_idle_is_taken_out() -> None:
    transport = resting(A, B)
    transport.answers_probes = False
    transport.wait(60.0)

    # The panic rule leaves one of two in; the other one is tried by a connection.
    states = sorted(transport.state(backend).value for backend in (A, B))
    assert states == ["healthy", "refusing"]
    (opened,) = transport.take()
    assert transport.state(Backend(opened)) is State.REFUSING


def test_an_idle_backend_that_is_removed_is_let_go() -> None:
    transport = resting(A, B)
    transport.task.update([B])

    assert transport.task.take_connections().close == (A,)
    assert [one.address for one in transport.task.snapshot().backends] == ["b:1"]
