"""Reports at their bounds, and clocks that jump: nothing of it may raise in a client task."""

from __future__ import annotations

import itertools
import random

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Request

BACKENDS = [Backend("a:1"), Backend("b:1"), Backend("c:1")]
LEAST, MOST = 5e-324, 1e15  # The smallest float above 0, and what a report may say at most.
# Each field at its bounds, where rules look for "some", and at what an honest backend says.
FIELDS: dict[str, tuple[float, ...]] = {
    "qps": (0.0, LEAST, 0.001, MOST),
    "eps": (0.0, LEAST, MOST),
    "utilization": (0.0, LEAST, 0.001, MOST),
    "runnable": (0.0, LEAST, MOST),
    "latency_seconds": (0.0, LEAST, MOST),
}
JUMPS = (-100.0, 400.0, 1e9)


class JumpingClock:
    """Be a clock that may step back, which a `ManualClock` does not."""

    def __init__(self) -> None:
        self.now = 1000.25

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def reports(seed: int, count: int) -> list[LoadReport]:
    """Return every pair of rate and errors with everything else drawn."""
    rng = random.Random(seed)
    combinations = list(itertools.product(*FIELDS.values()))
    rng.shuffle(combinations)
    chosen = [dict(zip(FIELDS, values, strict=True)) for values in combinations[:count]]
    return [
        LoadReport(
            active=rng.choice((0, 2**32 - 1)),
            cut=rng.choice((0.0, LEAST, 2.5, 4.0)),
            compute_units=rng.choice((LEAST, 1.0, MOST)),
            **fields,  # type: ignore[arg-type]  # floats only
        )
        for fields in chosen
    ]


def connected(policy: str, clock: JumpingClock) -> ClientTask:
    config = ClientTaskConfig(policy=PolicyConfig(name=policy))
    task = ClientTask(config, clock=clock, rng=random.Random(1))
    task.update(BACKENDS)
    for backend in BACKENDS:
        task.record_connection(backend, ConnectionEvent.OPENED)
    return task


def live(task: ClientTask, clock: JumpingClock, outcome: Outcome) -> None:
    """Send a request, and let the task do what is due."""
    answer = task.begin(Request())
    task.take_probes()
    if isinstance(answer, Ask):
        answer = answer.resume()
    clock.advance(0.01)
    if isinstance(answer, Attempt):
        answer.finish(outcome)
    task.wake()
    task.take_connections()
    task.snapshot()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("jump", JUMPS)
def test_reports_at_all_bounds_and_a_clock_that_jumps_raise_nothing(
    policy: str, jump: float
) -> None:
    ordinary = LoadReport(qps=10.0, utilization=0.5)
    for report in reports(seed=7, count=60):
        clock = JumpingClock()
        task = connected(policy, clock)
        # Longer than the blackout; then what was said before meets what is said after the jump.
        for steps, first, second in ((12, report, ordinary), (2, ordinary, report)):
            for step in range(steps):
                for backend, said in zip(BACKENDS, (first, second, first), strict=True):
                    task.record_report(backend, said, is_probe=step % 2 == 0)
                live(task, clock, Outcome.OK if step % 3 else Outcome.TIMEOUT)
                clock.advance(1.0)
            clock.advance(jump)
        live(task, clock, Outcome.OK)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_report_after_a_pause_outweighs_what_was_said_before(policy: str) -> None:
    # q=0.001;e=1e15 over the wire makes a mean of 1e18, beside which 0.5 is nothing in a float.
    clock = JumpingClock()
    task = connected(policy, clock)
    for report in (
        LoadReport(qps=0.001, eps=1e15, utilization=0.5),
        LoadReport(qps=9.0, utilization=0.5),
    ):
        for _ in range(2):
            for backend in BACKENDS:
                task.record_report(backend, report)
            live(task, clock, Outcome.OK)
            clock.advance(400.0)


@pytest.mark.parametrize(
    ("eps", "failures"),
    [
        pytest.param(1.0, 0.0, id="its report tells of it"),
        pytest.param(0.1, 0.0, id="as a rate over ten seconds"),
        pytest.param(0.001, 1.0, id="it conceals it: what was met here counts"),
    ],
)
def test_an_error_that_the_report_beside_it_does_not_know_of(eps: float, failures: float) -> None:
    clock = JumpingClock()
    task = connected("random", clock)
    attempt = task.begin(Request())
    assert isinstance(attempt, Attempt)
    clock.advance(0.01)
    task.record_report(attempt.backend, LoadReport(boot=1, qps=10.0, eps=eps))
    attempt.finish(Outcome.ERROR)

    assert attempt.view.failures(clock()) == failures
