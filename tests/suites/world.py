"""A small world around unchanged `ClientTask`s: backends that queue, a network that takes time.

Just enough to see how a policy behaves in the situations that every policy must survive; what it is
worth in numbers is the simulator's business.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Rejection, Request
from evenly.core.window import DecayingCount
from tests.suites.events import Events

ROUND_TRIP_SECONDS = 0.002
RATE_SECONDS = 1.0
"""Over which a backend counts its requests, errors and busy time."""


@dataclass
class FakeBackend:
    """Serve one request at a time, first come first served."""

    backend: Backend
    world: World
    service_seconds: float
    boot: int = 1
    sequence: int = 0
    is_listening: bool = True
    is_lame_duck: bool = False
    fails_fast: bool = False
    answers_probes: bool = True
    queue: deque[Callable[[Outcome], None]] = field(default_factory=deque)
    served: DecayingCount = field(default_factory=lambda: DecayingCount(RATE_SECONDS))
    failed: DecayingCount = field(default_factory=lambda: DecayingCount(RATE_SECONDS))
    busy: DecayingCount = field(default_factory=lambda: DecayingCount(RATE_SECONDS))

    def receive(self, answer: Callable[[Outcome], None]) -> None:
        now = self.world.clock()
        self.served.add(now)
        if self.fails_fast:
            self.failed.add(now)
            answer(Outcome.ERROR)
            return
        self.queue.append(answer)
        if len(self.queue) == 1:
            self._serve_first()

    def _serve_first(self) -> None:
        # Exponential service times: unequal costs are what makes balancing hard.
        seconds = self.world.rng.expovariate(1.0 / self.service_seconds)
        self.world.after(seconds, lambda: self._served(seconds))

    def _served(self, seconds: float) -> None:
        self.busy.add(self.world.clock(), seconds)
        self.queue.popleft()(Outcome.OK)
        if self.queue:
            self._serve_first()

    def report(self) -> LoadReport:
        now = self.world.clock()
        return LoadReport(
            boot=self.boot,
            sequence=self.sequence,
            lame_duck=self.is_lame_duck,
            runnable=float(len(self.queue)),
            active=len(self.queue),
            utilization=self.busy.value(now) / RATE_SECONDS,
            qps=self.served.value(now) / RATE_SECONDS,
            eps=self.failed.value(now) / RATE_SECONDS,
            latency_seconds=(len(self.queue) + 1) * self.service_seconds,
        )


class World(Events):
    """Run client tasks against backends on one manual clock, by one seed."""

    def __init__(self, *, policy: str, seed: int = 1, subset_size: int = 20) -> None:
        super().__init__()
        self.rng = random.Random(f"{seed}/world")
        self.policy = policy
        self.seed = seed
        self.subset_size = subset_size
        self.backends: dict[str, FakeBackend] = {}
        self.published: list[Backend] = []
        self.clients: dict[int, ClientTask] = {}
        self.sent: Counter[str] = Counter()
        self.sent_to_lame_ducks = 0
        self.asks = 0
        self.waited_seconds = 0.0
        self.outcomes: Counter[Outcome] = Counter()
        self.rejections: list[Rejection] = []
        self._interval_seconds = 1.0

    # Backends

    def start_backends(self, indices: Iterable[int], *, service_seconds: float = 0.01) -> None:
        """Start processes at these indices, or restart those that stopped."""
        for index in indices:
            backend = Backend(f"backend-{index}", index)
            previous = self.backends.get(backend.address)
            self.backends[backend.address] = FakeBackend(
                backend,
                self,
                service_seconds,
                boot=1 if previous is None else previous.boot + 1,
            )

    def fake(self, index: int) -> FakeBackend:
        return self.backends[f"backend-{index}"]

    def publish(self, indices: Iterable[int] | None = None) -> None:
        """Tell every client task the list of backends: by default all that were ever started."""
        chosen = [f"backend-{index}" for index in indices] if indices is not None else self.backends
        self.published = [self.backends[address].backend for address in chosen]
        for client in self.clients.values():
            client.update(self.published)
            self._connect(client)

    def enter_lame_duck(self, index: int) -> None:
        """Have a backend ask to be left alone, and tell everyone, as SIGTERM does."""
        fake = self.fake(index)
        fake.is_lame_duck = True
        fake.sequence += 1
        report = fake.report()
        for client in self.clients.values():
            self.after(ROUND_TRIP_SECONDS / 2, partial(client.record_report, fake.backend, report))

    def drain(self, indices: Iterable[int]) -> None:
        """Wait until these backends are empty and nothing is on its way to them."""
        waiting = [self.fake(index) for index in indices]
        for _ in range(300):  # Book: exit after 10 to 150 s at the latest; here 30 s.
            self.run(0.1)
            if not any(fake.queue for fake in waiting):
                return

    def stop(self, index: int) -> None:
        """End a process that has drained: connections to it break."""
        fake = self.fake(index)
        assert not fake.queue, f"{fake.backend} stops with requests in it"
        fake.is_listening = False
        for client in self.clients.values():
            client.record_connection(fake.backend, ConnectionEvent.LOST)
            self._connect(client)

    # Clients

    def start_clients(self, indices: Iterable[int], *, requests_per_second: float) -> None:
        """Start client tasks, each sending at this rate."""
        self._interval_seconds = 1.0 / requests_per_second
        for index in indices:
            config = ClientTaskConfig(
                policy=PolicyConfig(name=self.policy),
                membership=MembershipConfig(client_index=index, subset_size=self.subset_size),
            )
            client = ClientTask(
                config, clock=self.clock, rng=random.Random(f"{self.seed}/client-{index}")
            )
            self.clients[index] = client
            client.update(self.published)
            self._connect(client)
            # Let the connections stand before the first request, as a transport would.
            self.after(3 * ROUND_TRIP_SECONDS, partial(self._arrive, index))
            self._wake(index)

    def stop_clients(self, indices: Iterable[int]) -> None:
        for index in indices:
            del self.clients[index]

    def _arrive(self, index: int) -> None:
        client = self.clients.get(index)
        if client is None:
            return
        self.after(self.rng.expovariate(1.0 / self._interval_seconds), partial(self._arrive, index))
        answer = client.begin(Request())
        self._probe(client, client.take_probes())
        if isinstance(answer, Ask):
            ask = answer
            self.asks += 1
            self._probe(client, ask.backends)
            # All answer after one round trip, or the request waits as long as it may.
            answering = [self.backends[one.address].answers_probes for one in ask.backends]
            wait = min(ask.wait_seconds, ROUND_TRIP_SECONDS if all(answering) else ask.wait_seconds)
            self.waited_seconds += wait
            self.after(wait, lambda: self._send(client, ask.resume()))
        else:
            self._send(client, answer)

    def _send(self, client: ClientTask, answer: Attempt | Rejection) -> None:
        if isinstance(answer, Rejection):
            self.rejections.append(answer)
            return
        fake = self.backends[answer.backend.address]
        self.sent[answer.backend.address] += 1
        self.sent_to_lame_ducks += fake.is_lame_duck
        if not fake.is_listening:
            self._finish(answer, Outcome.LOST)
            return

        def responded(outcome: Outcome) -> None:
            report = fake.report()

            def arrived() -> None:
                client.record_report(fake.backend, report)
                self._finish(answer, outcome)

            self.after(ROUND_TRIP_SECONDS / 2, arrived)

        self.after(ROUND_TRIP_SECONDS / 2, lambda: fake.receive(responded))

    def _finish(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.finish(outcome)
        self.outcomes[outcome] += 1

    def _probe(self, client: ClientTask, backends: Iterable[Backend]) -> None:
        for backend in backends:
            fake = self.backends[backend.address]
            if fake.is_listening and fake.answers_probes:
                self.after(ROUND_TRIP_SECONDS, partial(self._answer_probe, client, fake))

    def _answer_probe(self, client: ClientTask, fake: FakeBackend) -> None:
        client.record_report(fake.backend, fake.report(), is_probe=True)

    def _connect(self, client: ClientTask) -> None:
        for backend in client.take_connections().open:
            fake = self.backends[backend.address]
            event = ConnectionEvent.OPENED if fake.is_listening else ConnectionEvent.REFUSED
            self.after(ROUND_TRIP_SECONDS, partial(client.record_connection, backend, event))

    def _wake(self, index: int) -> None:
        client = self.clients.get(index)
        if client is None:
            return
        if self.clock() >= client.next_wake_at():
            client.wake()
            self._connect(client)
            self._probe(client, client.take_probes())
        self.after(max(0.001, client.next_wake_at() - self.clock()), partial(self._wake, index))
