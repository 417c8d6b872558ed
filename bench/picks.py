"""Nanoseconds per pick and per begin + finish, at 20, 100 and 1,000 backends."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from bench.timing import Case, Row, compare
from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig, make_policy
from evenly.core.client_task import Ask, Attempt, ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Request

SIZES = (20, 100, 1000)
# DESIGN section 7: a pick of these three is at most 25 empty method calls, at any size.
PICK_BOUND = {"round_robin": 25.0, "least_loaded": 25.0, "weighted_round_robin": 25.0}
# begin + finish, with everything on; today "everything" is balancing alone.
BEGIN_FINISH_BOUND = 250.0


def measure(rounds: int) -> list[Row]:
    cases = [
        Case(
            what=f"pick {name:21} {size:5}",
            prepare=partial(_picks, name, size),
            bound=PICK_BOUND.get(name),
        )
        for name in POLICIES
        for size in SIZES
    ]
    cases += [
        Case(
            what=f"begin+finish {name:13} {size:5}",
            prepare=partial(_requests, name, size),
            bound=BEGIN_FINISH_BOUND,
        )
        for name in ("round_robin", "least_loaded", "weighted_round_robin", "probing")
        for size in SIZES
    ]
    return compare(cases, rounds=rounds)


def _picks(name: str, size: int) -> Callable[[int], None]:
    """Pick, and tell the policy that the load rose: for least loaded that is the work."""
    rng = random.Random(f"bench/{name}/{size}")
    policy = make_policy(PolicyConfig(name=name), rng=rng, now=0.0)
    candidates = Candidates(policy, active_limit=1_000_000)
    for index in range(size):
        health = Health(HealthConfig(), now=0.0, rng=rng)
        health.opened(0.0)
        view = BackendView(Backend(f"backend-{index}"), health, error_decay_seconds=5.0, now=0.0)
        view.weight = rng.uniform(0.5, 1.5)
        candidates.place(view, 0.0)

    def run(count: int) -> None:
        for _ in range(count):
            view = policy.pick(0.0, ())
            assert view is not None
            view.load += 1
            policy.changed(view)

    return run


def _requests(name: str, size: int) -> Callable[[int], None]:
    """Begin and finish with eight requests open at a time; each answer brings a report."""
    config = ClientTaskConfig(
        policy=PolicyConfig(name=name),
        membership=MembershipConfig(subset_size=size, client_index=0),
    )
    task = ClientTask(config, clock=time.monotonic, rng=random.Random(f"bench/{name}/{size}"))
    backends = [Backend(f"10.0.{i // 256}.{i % 256}:50051", i) for i in range(size)]
    task.update(backends)
    task.take_connections()
    for backend in backends:
        task.record_connection(backend, ConnectionEvent.OPENED)
    report = LoadReport(boot=1, sequence=1, runnable=1.0, utilization=0.5, qps=100.0)
    open_attempts: deque[Attempt] = deque()

    def run(count: int) -> None:
        request = Request()
        for _ in range(count):
            answer = task.begin(request)
            if isinstance(answer, Ask):
                for backend in answer.backends:
                    task.record_report(backend, report, is_probe=True)
                answer = answer.resume()
            assert isinstance(answer, Attempt)
            open_attempts.append(answer)
            if len(open_attempts) == 8:
                attempt = open_attempts.popleft()
                task.record_report(attempt.backend, report)
                attempt.finish(Outcome.OK)

    return run
