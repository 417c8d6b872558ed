from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.core.overload.utilization import (
    Ramp,
    Ramps,
    SignalConfig,
    Utilization,
    UtilizationConfig,
)

combinations: st.SearchStrategy[Literal["individual", "maximum"]] = st.sampled_from(
    ["individual", "maximum"]
)


@st.composite
def ramps(draw: st.DrawFn) -> Ramps:
    # Eight points in rising order, neighbouring ramps touching more often than not.
    ends = sorted(draw(st.lists(st.integers(0, 40), min_size=5, max_size=5, unique=True)))
    gap = draw(st.sampled_from([0.0, 0.0, 0.5]))
    a, b, c, d = (Ramp(low + gap, float(high)) for low, high in pairwise(ends))
    return (a, b, c, d)


@st.composite
def configs(draw: st.DrawFn) -> UtilizationConfig:
    names = ["cpu", "memory", "other"][: draw(st.integers(1, 3))]
    return UtilizationConfig(
        signals={
            name: SignalConfig(
                ramps=draw(ramps()),
                decay_seconds=draw(st.sampled_from([0.01, 5, 1000])),
            )
            for name in names
        },
        combine=draw(combinations),
        ramps=draw(ramps()),
    )


# Mostly what lies on the ramps, and whatever else a reader may come up with: seldom, because an
# average that has met a huge value says the same of all that follow.
near = st.integers(0, 40).map(float)
values = st.one_of(near, near, near, st.floats(0.0, 45.0), st.floats())
pauses = st.one_of(st.sampled_from([0.0, 0.005, 1.0]), st.floats(-10.0, 10.0))
steps = st.lists(st.tuples(pauses, st.integers(0, 2), values), max_size=30)


@given(config=configs(), steps=steps, queries=st.lists(st.booleans(), min_size=30, max_size=30))
def test_while_all_is_calm_nothing_would_follow_if_it_were_computed(
    config: UtilizationConfig, steps: list[tuple[float, int, float]], queries: list[bool]
) -> None:
    utilization = Utilization(config)
    names = list(config.signals)
    now = 0.0
    for (step, which, value), is_asked in zip(steps, queries, strict=False):
        now += step
        if is_asked:
            utilization.cut(now)
        else:
            utilization.record(names[which % len(names)], value, now)
        if utilization.is_calm:
            utilization._refresh(now)

            assert utilization.is_calm
            assert utilization.cut(now) == 0.0
            assert not utilization.should_degrade(now)


@given(config=configs(), steps=steps)
def test_a_criticality_is_refused_only_where_all_lower_ones_are_refused_entirely(
    config: UtilizationConfig, steps: list[tuple[float, int, float]]
) -> None:
    utilization = Utilization(config)
    names = list(config.signals)
    now = 0.0
    for step, which, value in steps:
        now += step
        utilization.record(names[which % len(names)], value, now)
        cut = utilization.cut(now)
        refused = utilization._probabilities

        assert 0.0 <= cut <= 4.0
        assert all(0.0 <= probability <= 1.0 for probability in refused)
        for lower, higher in pairwise(refused):
            assert higher == 0.0 or lower == 1.0
        # So the sum says the same: what is refused of a criticality is the cut above it.
        assert refused == pytest.approx([min(1.0, max(0.0, cut - i)) for i in range(4)], abs=1e-12)
        assert utilization.snapshot(now).cut == cut
        assert utilization.value(now) >= 0.0
        if config.combine == "individual" and cut > 0.0:
            assert utilization.should_degrade(now)  # degraded before anything is refused


# The value that is recorded at one instant is the last of it; the average is that of before.
@settings(max_examples=300)
@given(
    config=configs(),
    averages=st.tuples(*[st.one_of(near, st.integers(0, 5).map(float))] * 3),
    presents=st.tuples(*[near] * 3),
)
def test_the_present_value_has_no_part_in_it_yet(
    config: UtilizationConfig, averages: tuple[float, ...], presents: tuple[float, ...]
) -> None:
    utilization, other = Utilization(config), Utilization(config)
    for name, average, present in zip(config.signals, averages, presents, strict=False):
        utilization.record(name, average, 0.0)
        utilization.record(name, present, 0.0)
        other.record(name, average, 0.0)

    assert utilization.cut(0.0) == other.cut(0.0)


# A reader that is stuck: whatever it said last, and however high.
@given(config=configs(), value=st.floats(0.0, 1e15), late=st.floats(0.0, 1e6, exclude_min=True))
def test_what_has_expired_refuses_nothing(
    config: UtilizationConfig, value: float, late: float
) -> None:
    utilization = Utilization(config)
    for name in config.signals:
        utilization.record(name, value, 1000.0)
    utilization.cut(1000.0)

    assert utilization.cut(1005.0 + max(late, 1e-9)) == 0.0


@given(config=configs(), first=st.floats(0.0, 45.0), second=st.floats(0.0, 45.0))
def test_more_of_a_signal_never_refuses_less(
    config: UtilizationConfig, first: float, second: float
) -> None:
    def cut(value: float) -> float:
        utilization = Utilization(config)
        utilization.record("cpu", value, 0.0)
        return utilization.cut(0.0)

    assert cut(min(first, second)) <= cut(max(first, second))
