"""Nanoseconds per begin + finish and per admit + finish, with everything on."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from bench.timing import Case, Row, compare
from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Request

SIZES = (20, 100, 1000)
POLICIES = ("round_robin", "least_loaded", "weighted_round_robin", "probing")
# Each of the two at most 250 empty method calls with the null observer.
BOUND = 250.0


def measure(rounds: int) -> list[Row]:
    cases = [
        Case(
            what=f"begin+finish {name:21} {size:5}",
            prepare=partial(_client, name, size),
            bound=BOUND,
        )
        for name in POLICIES
        for size in SIZES
    ]
    cases += [
        Case(what="admit+finish, no quota", prepare=partial(_backend, None), bound=BOUND),
        Case(what="admit+finish, 100 customers", prepare=partial(_backend, 100), bound=BOUND),
        Case(what="report", prepare=_report),
    ]
    return compare(cases, rounds=rounds)


def _client(name: str, size: int) -> Callable[[int], None]:
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


def _backend(customers: int | None) -> Callable[[int], None]:
    """Admit and finish with eight requests open at a time; signals arrive now and then."""
    quota = None
    if customers is not None:
        limits = {f"customer-{i}": 1e6 for i in range(customers)}
        quota = QuotaConfig(limits=limits, default_limit=1e6)
    task = BackendTask(
        BackendTaskConfig(cores=4.0, quota=quota),
        clock=time.monotonic,
        rng=random.Random("bench/backend"),
        boot=1,
    )
    task.announce_healthy()
    names = [f"customer-{i}" for i in range(customers or 1)]
    admitted: deque[Admission] = deque()

    def run(count: int) -> None:
        for number in range(count):
            if number % 100 == 0:
                task.record_signal("runnable", 2.0)
                task.record_signal("cpu", 0.5)
            answer = task.admit(Request(customer=names[number % len(names)]))
            assert isinstance(answer, Admission)
            admitted.append(answer)
            if len(admitted) == 8:
                # No more than there is time for here: else some would be refused, and rightly.
                admitted.popleft().finish(Outcome.OK, 1e-6)

    return run


def _report() -> Callable[[int], None]:
    task = BackendTask(
        BackendTaskConfig(), clock=time.monotonic, rng=random.Random("bench/report"), boot=1
    )
    task.record_signal("cpu", 0.5)

    def run(count: int) -> None:
        for _ in range(count):
            task.report()

    return run
