from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.weights import WeightConfig, Weights
from evenly.core.report import LoadReport

START = 1_000.0
# Bounds and trust out of the way: a ratio of weights is a ratio of what they are made of.
PLAIN = WeightConfig(
    blackout_seconds=0.0,
    slow_start_seconds=0.0,
    idle_utilization=0.0,
    min_ratio=0.001,
    max_ratio=1000.0,
)

# Quotients from 1 / 2 to 20 / 0.5, so that none is a thousand times the mean.
reports = st.builds(
    LoadReport,
    qps=st.floats(1.0, 20.0),
    utilization=st.floats(0.5, 1.0),
    eps=st.floats(0.0, 1.0),
)
stories = st.lists(st.tuples(st.floats(0.0, 60.0), reports), min_size=1, max_size=20)


def new_view() -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    return BackendView(Backend("a:1"), health, error_decay_seconds=5.0, now=START)


def learn(
    weights: Weights, view: BackendView, report: LoadReport, other: BackendView, now: float
) -> None:
    """Let one backend report this and the other what it always does, 10 / 1."""
    view.report = report
    other.report = LoadReport(qps=10.0, utilization=1.0)
    view.reported_at = other.reported_at = now
    weights.refresh([view, other], now)


def quotient(report: LoadReport) -> float:
    return report.qps / (report.utilization + report.eps / report.qps)


# A quotient of means lies between the quotients, as a mediant does.
@given(stories)
def test_a_weight_is_never_outside_of_what_the_reports_made_it(
    story: list[tuple[float, LoadReport]],
) -> None:
    weights = Weights(PLAIN)
    view, other = new_view(), new_view()
    now = START
    least, most = math.inf, -math.inf
    for seconds, report in story:
        now += seconds
        learn(weights, view, report, other, now)
        least, most = min(least, quotient(report)), max(most, quotient(report))

        ratio = 10.0 * view.weight / other.weight
        assert ratio >= least or ratio == pytest.approx(least)
        assert ratio <= most or ratio == pytest.approx(most)
        assert view.weight + other.weight == pytest.approx(2.0)


@given(stories, st.floats(0.0, 60.0), st.floats(0.0, 60.0))
def test_looking_in_between_changes_nothing(
    story: list[tuple[float, LoadReport]], first: float, second: float
) -> None:
    def weight_after(*pauses: float) -> float:
        weights = Weights(PLAIN)
        view, other = new_view(), new_view()
        now = START
        for seconds, report in story:
            now += seconds
            learn(weights, view, report, other, now)
        for pause in pauses:
            now += pause
            weights.refresh([view, other], now)
        return view.weight

    assert weight_after(first, second) == pytest.approx(weight_after(first + second))
