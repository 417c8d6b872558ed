"""A small world of façade against façade: real `ClientTask`s and real `BackendTask`s with a CPU.

One manual clock, one heap of events, one seed.  A backend is `cores` CPUs behind one queue, first
come first served; refusing a request costs a tenth of serving one, and is done before anything
else, because that is what reading requests off a socket does to a server.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from tests.suites.events import Events

ROUND_TRIP_SECONDS = 0.002
REJECTION_COST_RATIO = 0.1
# SHEDDABLE first.
MIX = (0.2, 0.3, 0.4, 0.1)

OUTCOME_OF = {
    Reason.EXPIRED: Outcome.TIMEOUT,
    Reason.OUT_OF_QUOTA: Outcome.OUT_OF_QUOTA,
    Reason.OVERLOADED: Outcome.OVERLOADED,
    Reason.DONT_RETRY: Outcome.DONT_RETRY,
}

Answer = Callable[[Outcome], None]


class Server:
    """Serve by a real `BackendTask`: it decides, this has the CPUs."""

    def __init__(
        self,
        events: Events,
        backend: Backend,
        *,
        cores: int,
        service_seconds: float,
        seed: str,
    ) -> None:
        self.events = events
        self.backend = backend
        self.cores = cores
        self.service_seconds = service_seconds
        self.rng = random.Random(f"{seed}/{backend.address}")
        self.task = BackendTask(
            BackendTaskConfig(cores=cores),
            clock=events.clock,
            rng=random.Random(f"{seed}/{backend.address}/task"),
            boot=1,
        )
        self.task.announce_healthy()
        self.arrivals = 0
        self.served = 0
        self._busy = 0
        self._rejections = 0
        self._queue: deque[tuple[Admission, Answer]] = deque()

    def receive(self, request: Request, number: int, answer: Answer) -> None:
        self.arrivals += 1
        decision = self.task.admit(request, number)
        if isinstance(decision, Rejection):
            self._rejections += 1
            self._work()
            answer(OUTCOME_OF[decision.reason])
        else:
            self._queue.append((decision, answer))
            self._work()

    def _work(self) -> None:
        while self._busy < self.cores and (self._rejections or self._queue):
            self._busy += 1
            if self._rejections:
                self._rejections -= 1
                self.events.after(REJECTION_COST_RATIO * self.service_seconds, self._free)
            else:
                admission, answer = self._queue.popleft()
                seconds = self.rng.expovariate(1.0 / self.service_seconds)
                self.events.after(seconds, partial(self._serve, admission, answer, seconds))
        # A refusal on a CPU keeps it from the others; one that waits is a tenth of a request.
        waiting = len(self._queue) + REJECTION_COST_RATIO * self._rejections
        self.task.record_signal("runnable", self._busy + waiting)

    def _serve(self, admission: Admission, answer: Answer, cpu_seconds: float) -> None:
        admission.finish(Outcome.OK, cpu_seconds)
        self.served += 1
        self._free()
        answer(Outcome.OK)

    def _free(self) -> None:
        self._busy -= 1
        self._work()


@dataclass
class Tally:
    """Count what became of the requests that came in while this was current."""

    offered: Counter[Criticality] = field(default_factory=Counter)
    succeeded: Counter[Criticality] = field(default_factory=Counter)
    refused_here: Counter[Reason] = field(default_factory=Counter)
    probes: int = 0
    asks: int = 0

    def success_ratio(self, criticality: Criticality | None = None) -> float:
        if criticality is None:
            return self.succeeded.total() / self.offered.total()
        return self.succeeded[criticality] / self.offered[criticality]


class Client:
    """Send by a real `ClientTask`: it decides, this is the transport."""

    def __init__(self, world: World, index: int, config: ClientTaskConfig) -> None:
        self.world = world
        self.task = ClientTask(
            config,
            clock=world.events.clock,
            rng=random.Random(f"{world.seed}/client-{index}/task"),
        )
        self.rng = random.Random(f"{world.seed}/client-{index}")
        self.task.update([server.backend for server in world.servers.values()])
        for backend in self.task.take_connections().open:
            self.task.record_connection(backend, ConnectionEvent.OPENED)

    def arrive(self) -> None:
        world = self.world
        world.events.after(
            self.rng.expovariate(world.requests_per_second_each), partial(self.arrive)
        )
        (criticality,) = self.rng.choices(list(Criticality), MIX)
        tally = world.tally
        tally.offered[criticality] += 1
        answer = self.task.begin(Request(criticality=criticality))
        self.probe(self.task.take_probes())
        if isinstance(answer, Ask):
            ask = answer
            tally.asks += 1
            self.probe(ask.backends)
            # Everyone answers after one round trip; then the request goes on.
            wait = min(ask.wait_seconds, 1.01 * ROUND_TRIP_SECONDS)
            world.events.after(wait, lambda: self.send(ask.resume(), tally))
        else:
            self.send(answer, tally)

    def send(self, attempt: Attempt | Ask | Rejection, tally: Tally) -> None:
        assert not isinstance(attempt, Ask)  # once per request
        if isinstance(attempt, Rejection):
            tally.refused_here[attempt.reason] += 1
            return
        server = self.world.servers[attempt.backend.address]
        after = self.world.events.after

        def responded(outcome: Outcome) -> None:
            report = server.task.report()

            def arrived() -> None:
                self.task.record_report(server.backend, report)
                if attempt.finish(outcome) is Next.RETRY:
                    self.send(self.task.begin(attempt.request, attempt), tally)
                elif outcome is Outcome.OK:
                    tally.succeeded[attempt.request.criticality] += 1

            after(ROUND_TRIP_SECONDS / 2, arrived)

        after(
            ROUND_TRIP_SECONDS / 2,
            lambda: server.receive(attempt.request, attempt.number, responded),
        )

    def probe(self, backends: Iterable[Backend]) -> None:
        for backend in backends:
            self.world.tally.probes += 1
            server = self.world.servers[backend.address]
            self.world.events.after(ROUND_TRIP_SECONDS / 2, partial(self._answer_probe, server))

    def _answer_probe(self, server: Server) -> None:
        report = server.task.report()
        self.world.events.after(
            ROUND_TRIP_SECONDS / 2,
            partial(self.task.record_report, server.backend, report, is_probe=True),
        )

    def wake(self) -> None:
        if self.world.events.clock() >= self.task.next_wake_at():
            self.task.wake()
            self.probe(self.task.take_probes())
        due = self.task.next_wake_at() - self.world.events.clock()
        self.world.events.after(max(0.001, due), self.wake)


class World:
    """Run client tasks against backends by one seed."""

    def __init__(
        self,
        *,
        seed: int,
        clients: int,
        servers: int,
        cores: int,
        service_seconds: float,
        policy: str,
        throttle: ThrottleConfig | None = None,
        is_waking: bool = True,
    ) -> None:
        self.seed = seed
        self.events = Events()
        self.tally = Tally()
        self.requests_per_second_each = 1.0
        self.capacity_per_second = servers * cores / service_seconds
        self.servers: dict[str, Server] = {}
        for index in range(servers):
            backend = Backend(f"backend-{index}", index)
            self.servers[backend.address] = Server(
                self.events,
                backend,
                cores=cores,
                service_seconds=service_seconds,
                seed=f"{seed}",
            )
        self.clients: list[Client] = []
        for index in range(clients):
            config = ClientTaskConfig(
                policy=PolicyConfig(name=policy),
                membership=MembershipConfig(client_index=index),
                throttle=throttle or ThrottleConfig(),
            )
            client = Client(self, index, config)
            self.clients.append(client)
            if is_waking:
                client.wake()
            # Processes do not start at the same instant, so that their timers differ.
            self.events.run(1.0 / clients)

    def offer(self, load: float) -> None:
        """Set the offered load, as a multiple of capacity; the first time, start the clients."""
        is_first = self.requests_per_second_each == 1.0
        self.requests_per_second_each = load * self.capacity_per_second / len(self.clients)
        if is_first:
            for client in self.clients:
                first = client.rng.expovariate(self.requests_per_second_each)
                self.events.after(first, client.arrive)

    def run(self, seconds: float) -> Measured:
        """Let time pass, and return what happened to the requests that came in meanwhile."""
        self.tally = Tally()
        arrivals = sum(server.arrivals for server in self.servers.values())
        served = sum(server.served for server in self.servers.values())
        self.events.run(seconds)
        tally = self.tally
        # Those under way get their answers; what comes in now is counted elsewhere.
        self.tally = Tally()
        capacity = seconds * self.capacity_per_second
        measured = Measured(
            goodput_ratio=(sum(s.served for s in self.servers.values()) - served) / capacity,
            reached_ratio=(sum(s.arrivals for s in self.servers.values()) - arrivals) / capacity,
            tally=tally,
        )
        self.events.run(1.0)
        return measured


@dataclass
class Measured:
    """Show one stretch of time; ratios are of capacity."""

    goodput_ratio: float
    reached_ratio: float
    tally: Tally

    def __str__(self) -> str:
        ratios = " ".join(
            f"{self.tally.success_ratio(criticality):.4f}"
            for criticality in Criticality
            if self.tally.offered[criticality]
        )
        return (
            f"goodput {self.goodput_ratio:.3f} reached {self.reached_ratio:.3f}"
            f" success by criticality {ratios} (all {self.tally.success_ratio():.4f}),"
            f" {self.tally.offered.total()} requests, {self.tally.asks} asks,"
            f" {self.tally.probes} probes, refused {dict(self.tally.refused_here)}"
        )
