from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.overload.cost import COST_MOST_SECONDS, CostConfig, CostKeeper

SERVING_SECONDS = 0.001
UNITS = 1.5
# Some hundred sums of amounts below 1e3, each off by at most 1e3 · 1.1e-16.
NEAR = 1e-9


class Period(NamedTuple):
    """Requests that settle together so many at once, and what else the process used."""

    handlers: list[tuple[float, int]]
    besides_seconds: float


handlers = st.tuples(st.one_of(st.just(0.0), st.floats(1e-6, 2.0)), st.integers(1, 40))
periods = st.lists(
    st.builds(Period, st.lists(handlers, max_size=6), st.floats(0.0, 3.0)), max_size=30
)


def begun() -> CostKeeper:
    keeper = CostKeeper(CostConfig(compute_units=UNITS, serving_seconds=SERVING_SECONDS))
    keeper.record_process(0.0, 0.0)
    return keeper


@given(periods)
def test_what_is_charged_is_what_the_process_used_and_never_more(play: list[Period]) -> None:
    keeper = begun()
    charged = process = 0.0
    for second, period in enumerate(play, start=1):
        for cpu_seconds, count in period.handlers:
            cost = keeper.settle(cpu_seconds, count) / UNITS
            # Nobody pays more of the overhead than its handler used and what serving takes.
            assert -NEAR <= cost - cpu_seconds <= cpu_seconds + count * SERVING_SECONDS + NEAR
            charged += cost
            process += cpu_seconds
        process += period.besides_seconds
        keeper.record_process(process, float(second))

        shown = keeper.snapshot()
        assert charged <= process + NEAR
        assert shown.pool_seconds >= -NEAR
        assert shown.background_seconds >= -NEAR
        assert 0.0 <= shown.overhead_seconds <= SERVING_SECONDS + NEAR
        assert 0.0 <= shown.overhead_ratio <= 1.0
        assert charged + shown.pool_seconds + shown.background_seconds == pytest.approx(
            process, abs=NEAR
        )


@given(periods)
def test_what_ends_later_than_it_was_used_is_never_charged_on_top(play: list[Period]) -> None:
    """Handlers settle when they end, which may be long after the process's clock showed them."""
    keeper = begun()
    charged = shown_by_clock = since = 0.0
    for second, period in enumerate(play, start=1):
        for cpu_seconds, count in period.handlers:
            cost = keeper.settle(cpu_seconds, count) / UNITS
            charged += cost
            since += cpu_seconds
            if cost > cpu_seconds + NEAR:  # Overhead is taken from what is there, and only then.
                assert charged <= shown_by_clock + since + NEAR
        shown_by_clock += period.besides_seconds
        since = 0.0
        keeper.record_process(shown_by_clock, float(second))
        assert keeper.snapshot().background_seconds >= -NEAR


@given(
    st.lists(
        st.tuples(st.floats(), st.integers(1, 5), st.floats(), st.floats(-2.0, 1e4)), max_size=30
    )
)
def test_whatever_is_read_a_cost_is_finite_and_not_negative(
    readings: list[tuple[float, int, float, float]],
) -> None:
    keeper = begun()
    for cpu_seconds, count, process, now in readings:
        cost = keeper.settle(cpu_seconds, count) / UNITS
        own = cpu_seconds if 0.0 <= cpu_seconds <= COST_MOST_SECONDS else 0.0
        assert own <= cost * (1 + NEAR)
        assert cost <= (2.0 * own + count * SERVING_SECONDS) * (1 + NEAR) + NEAR
        keeper.record_process(process, now)
        assert all(map(math.isfinite, (keeper.snapshot().pool_seconds, cost)))
