from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.policies.probing import Probing, ProbingConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.report import LoadReport

START = 1_000.0


@st.composite
def views(draw: st.DrawFn) -> list[BackendView]:
    """Draw backends with any weights, some heard of long ago, some never."""
    found = []
    for number in range(draw(st.integers(2, 12))):
        health = Health(HealthConfig(), now=START, rng=random.Random(0))
        view = BackendView(Backend(f"b{number}"), health, error_decay_seconds=5.0, now=START)
        view.weight = draw(st.sampled_from([0.001, 0.1, 1.0, 10.0, 1000.0]))
        view.reported_at = draw(st.sampled_from([-float("inf"), START - 60.0, START - 1.0, START]))
        found.append(view)
    return found


@given(
    views=views(),
    with_facts=st.sets(st.integers(0, 11)),
    probes=st.integers(1, 10),
    seed=st.integers(0, 2**32),
)
def test_it_asks_as_many_as_it_may_and_nobody_twice(
    views: list[BackendView], with_facts: set[int], probes: int, seed: int
) -> None:
    policy = Probing(
        ProbingConfig(probes=probes, usual_gain=0.0),
        weight_config=WeightConfig(),
        rng=random.Random(seed),
        now=START,
    )
    for view in views:
        policy.add(view, START)
    for number in sorted(with_facts):
        if number < len(views):  # a bad one: nobody is content with 50,000 in the queue
            policy.record_report(views[number], LoadReport(runnable=5e4), START, is_probe=False)
    asked = policy.ask(START)

    assert len(asked) == len(set(asked)) == min(probes, len(views))


# Whatever backends say of failures and utilization, nobody gets a weight of nothing or of infinity,
# and who fails gets no more than it would without a word on its utilization.
@given(
    views=views(),
    said=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1e-9, 0.01, 0.5, 1.0, 1e15]),  # utilization
            st.sampled_from([0.0, 1e-9, 0.005, 1.0, 1e15]),  # qps
            st.sampled_from([0.0, 1e-9, 0.005, 1.0, 1e15]),  # eps
        ),
        min_size=12,
        max_size=12,
    ),
)
def test_weights_stay_sane_whatever_is_said(
    views: list[BackendView], said: list[tuple[float, float, float]]
) -> None:
    policy = Probing(ProbingConfig(), weight_config=WeightConfig(), rng=random.Random(1), now=START)
    for view, (utilization, qps, eps) in zip(views, said, strict=False):
        policy.add(view, START)
        view.report = LoadReport(utilization=utilization, qps=qps, eps=eps)
    for second in range(1, 20):
        for view in views:
            view.reported_at = START + second
        policy.wake(START + second)

        assert all(0.0 < view.weight < float("inf") for view in views)
        assert all(
            view.trim <= 0.0
            for view, (_, qps, eps) in zip(views, said, strict=False)
            if eps > 0.0 and eps >= 0.1 * (qps + 0.01)
        )
