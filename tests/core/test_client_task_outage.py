"""What a client task does while all of a service refuses, and when it is back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import pytest

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Request
from evenly.testing import ManualClock

OUTAGE_SECONDS = 600.0
# Uneven, so that requests do not fall on the seconds at which other things happen.
REQUEST_SECONDS = 0.237


class Service:
    """Backends that all refuse while nobody is `up`, and client tasks that keep sending.

    A connection is opened or refused a millisecond after it was ordered; probes are answered as
    fast by whoever is up, if `answers_probes`.
    """

    def __init__(
        self, backends: int, *, clients: int = 1, seed: int = 1, answers_probes: bool = False
    ) -> None:
        self.clock = ManualClock()
        self.backends = [Backend(f"b{number}") for number in range(backends)]
        self.up = {backend.address for backend in self.backends}
        self.answers_probes = answers_probes
        self.accepts = True
        self.tries: list[tuple[float, str]] = []
        self.served: list[tuple[float, str]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = 0
        self._wake_at = [0.0] * clients
        self.tasks = [
            ClientTask(ClientTaskConfig(), clock=self.clock, rng=random.Random(f"{seed}/{number}"))
            for number in range(clients)
        ]
        for number, task in enumerate(self.tasks):
            task.update(self.backends)
            self._settle(number)
            self._wake(number)

    def send(self, luck: random.Random) -> None:
        """Have every client task send from now on, each at instants of its own."""
        for number in range(len(self.tasks)):
            self._after(REQUEST_SECONDS * luck.random(), partial(self._send, number))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.clock() + seconds
        while self._events and self._events[0][0] <= end:
            at, _, event = heappop(self._events)
            self.clock.advance(max(0.0, at - self.clock()))
            event()
        self.clock.advance(max(0.0, end - self.clock()))

    def go_down(self) -> None:
        """Refuse connections, and break those that stand."""
        self.up.clear()
        for number, task in enumerate(self.tasks):
            for backend in self.backends:
                task.record_connection(backend, ConnectionEvent.LOST)
            self._settle(number)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._tickets += 1
        heappush(self._events, (self.clock() + seconds, self._tickets, event))

    def _send(self, number: int) -> None:
        self._after(REQUEST_SECONDS, partial(self._send, number))
        task = self.tasks[number]
        attempt = task.begin(Request())
        if isinstance(attempt, Attempt):
            address = attempt.view.backend.address
            if address in self.up:
                self.served.append((self.clock(), address))
                attempt.finish(Outcome.OK)
            else:
                attempt.finish(Outcome.NOT_SENT, is_final=True)
        self._settle(number)

    def _settle(self, number: int) -> None:
        for backend in self.tasks[number].take_connections().open:
            self.tries.append((self.clock(), backend.address))
            self._after(0.001, partial(self._connected, number, backend))
        at = self.tasks[number].next_wake_at()
        if self._wake_at[number] <= self.clock() or at < self._wake_at[number]:
            self._wake_at[number] = at
            self._after(max(0.0, at - self.clock()), partial(self._wake, number))

    def _connected(self, number: int, backend: Backend) -> None:
        is_up = self.accepts and backend.address in self.up
        event = ConnectionEvent.OPENED if is_up else ConnectionEvent.REFUSED
        self.tasks[number].record_connection(backend, event)
        self._settle(number)

    def _wake(self, number: int) -> None:
        task = self.tasks[number]
        if self.clock() < task.next_wake_at():
            return  # Another one was due sooner, and has been.
        task.wake()
        for backend in task.take_probes():
            if self.answers_probes and backend.address in self.up:
                self._after(0.001, partial(self._answer, number, backend))
        self._settle(number)

    def _answer(self, number: int, backend: Backend) -> None:
        report = LoadReport(boot=1, sequence=int(self.clock() * 1000))
        self.tasks[number].record_report(backend, report, is_probe=True)
        self._settle(number)


def after_outage(service: Service, up: list[Backend], seconds: float) -> float:
    """Return how long it takes until a request is served when these are back after 600 s."""
    service.run(10.0)
    service.send(random.Random(1))
    service.run(5.0)
    service.go_down()
    service.run(OUTAGE_SECONDS)
    service.up.update(backend.address for backend in up)
    service.served.clear()
    back_at = service.clock()
    service.run(seconds)
    return service.served[0][0] - back_at if service.served else float("inf")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("backends", [1, 3, 20])
def test_a_service_that_is_back_serves_within_two_seconds(backends: int, seed: int) -> None:
    service = Service(backends, seed=seed)

    # At most 1.5 s between two tries, a request 0.24 s later: 1.74 s.
    assert after_outage(service, service.backends, 3.0) < 1.75


@pytest.mark.parametrize("seed", range(3))
def test_the_others_are_tried_too_when_the_first_one_is_back(seed: int) -> None:
    service = Service(20, seed=seed)
    after_outage(service, service.backends, 3.0)

    # Within 1.5 s the first, and the others within the jitter of a second.
    assert all(view.health.is_connected for view in service.tasks[0]._membership.views)


@pytest.mark.parametrize("seed", range(3))
def test_the_only_one_of_twenty_that_is_back_is_found_by_a_probe(seed: int) -> None:
    service = Service(20, seed=seed, answers_probes=True)

    # A check every second, and a request: 1.24 s.
    assert after_outage(service, service.backends[7:8], 3.0) < 1.25


def test_one_that_answers_probes_and_refuses_connections_is_tried_with_its_delay() -> None:
    service = Service(1, answers_probes=True)
    service.run(10.0)
    service.go_down()
    service.run(100.0)
    service.accepts = False
    service.up.add("b0")
    service.tries.clear()
    service.run(100.0)

    # Delays of 1.6 to the power of n, each ± 20 %: 1 + 1.6 + ... = 70 s for the first 8.
    assert 1 <= len(service.tries) <= 11


def test_without_requests_a_dead_service_is_tried_with_its_delay_only() -> None:
    service = Service(1)
    service.run(10.0)
    service.go_down()
    service.run(OUTAGE_SECONDS)
    service.tries.clear()
    service.run(OUTAGE_SECONDS)

    assert len(service.tries) <= 7  # every 96 s at least


@pytest.mark.parametrize("backends", [1, 20])
def test_client_tasks_do_not_storm_a_dead_service(backends: int) -> None:
    storm(backends, clients=100)


def storm(backends: int, *, clients: int) -> None:
    """Let a service be dead while client tasks send, and see how often they try it."""
    service = Service(backends, clients=clients)
    service.run(5.0)
    service.send(random.Random(1))
    service.run(2.0)
    service.go_down()
    service.run(60.0)
    service.tries.clear()
    begin = service.clock()
    service.run(20.0)

    per_second = len(service.tries) / 20.0 / clients
    per_tenth = Counter(int((at - begin) * 10) for at, _ in service.tries)
    mean = len(service.tries) / 200.0
    # A try after 1 to 1.5 s, and up to 0.24 s until the next request: 0.67 a second.
    assert 0.6 < per_second < 1.0
    # Five standard deviations of what is independent.
    assert max(per_tenth.values()) < mean + 5.0 * mean**0.5
