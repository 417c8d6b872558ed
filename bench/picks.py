"""Nanoseconds per pick at 20, 100 and 1,000 backends."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from bench.timing import Case, Row, compare
from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig, make_policy

SIZES = (20, 100, 1000)
# A pick of these three is at most 25 empty method calls, at any size.
PICK_BOUND = {"round_robin": 25.0, "least_loaded": 25.0, "weighted_round_robin": 25.0}


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
