"""Stories for the behaviour suites: simulated worlds in which somebody writes down what is decided.

The simulator counts what requests get; here an observer of the façades, of the kind that production
has, sees where each attempt went and why requests were refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import final

from evenly.core.observer import Observer
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.recorder import Second
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.world import World

SEED = 1


@final
class Seen(Observer):
    """Write down what the client tasks decide, and when."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = lambda: 0.0
        self.sent: list[tuple[float, str]] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.refusals: list[tuple[float, Reason]] = []
        self.asks: list[float] = []
        self.starts: list[tuple[float, float]] = []
        """By request: when its first attempt began, and its deadline."""

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        now = self.clock()
        self.sent.append((now, address))
        if number == 1 and request.deadline_at is not None:
            self.starts.append((now, request.deadline_at))

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.outcomes[outcome] += 1

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.refusals.append((self.clock(), reason))

    def asked(self, count: int) -> None:
        self.asks.append(self.clock())

    def sent_between(self, begin: float, end: float) -> Counter[str]:
        """Return what was to be sent where, also if there was no connection to send it by."""
        return Counter(address for at, address in self.sent if begin <= at < end)


@final
class Story:
    """Tell one scenario, with the few things in it that no fault of a scenario does."""

    def __init__(self, scenario: Scenario, *, policy: str, load: float, seed: int = SEED) -> None:
        self.seen = Seen()
        self.world = World(scenario, policy=policy, load=load, seed=seed, observer=self.seen)
        self.seen.clock = self.world.stage.events.clock

    def publish(self, at: float, indices: Iterable[int]) -> None:
        """Have every client task learn another list of backends at an instant."""
        backends = [self.world.machines[index].backend for index in indices]

        def update() -> None:
            for client in self.world.clients:
                client.task.update(backends)

        self.world.stage.events.at(at, update)

    def distort(self, machine: Machine, change: Callable[[LoadReport], LoadReport]) -> None:
        """Have a backend report other numbers than its own, from the beginning."""

        def begin() -> None:
            assert machine.process is not None
            task = machine.process.task
            report = task.report

            def distorted() -> LoadReport:
                return change(report())

            task.report = distorted  # type: ignore[method-assign]

        self.world.stage.events.at(0.0, begin)

    def tell(self) -> None:
        """Tell it to its end, until nothing is under way; and nothing may have been violated.

        That includes that every active count has returned to zero.
        """
        self.world.run(None)
        assert self.world.stage.checkers.violations() == ()

    def mean_wait_seconds(self) -> float:
        """Return how long requests waited on average between their begin and their sending."""
        timeout_seconds = self.world.stage.scenario.workload.timeout_seconds
        starts = self.seen.starts
        return sum(at - (deadline_at - timeout_seconds) for at, deadline_at in starts) / len(starts)

    def seconds(self, begin: int, end: int) -> list[Second]:
        return self.world.stage.recorder.seconds[begin:end]

    def offered(self, begin: int, end: int) -> int:
        """Return how many requests began in these seconds."""
        return sum(sum(second.offered) for second in self.seconds(begin, end))

    def attempts(self, begin: int, end: int) -> int:
        """Return how many attempts left for a backend in these seconds."""
        return sum(second.attempts for second in self.seconds(begin, end))

    def succeeded(self, begin: int, end: int) -> int:
        """Return how many of the requests that began in these seconds succeeded."""
        return sum(sum(second.succeeded) for second in self.seconds(begin, end))
