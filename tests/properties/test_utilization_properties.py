from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
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
    names = ["cpu", "runnable", "other"][: draw(st.integers(1, 3))]
    return UtilizationConfig(
        signals={
            name: SignalConfig(
                ramps=draw(ramps()),
                decay_seconds=draw(st.sampled_from([0.01, 5, 1000])),
                is_prompt=draw(st.booleans()),
            )
            for name in names
        },
        combine=draw(combinations),
        ramps=draw(ramps()),
        refresh_seconds=draw(st.sampled_from([0.0, 0.005, 1.0])),
    )


# Mostly what lies on the ramps, and whatever else a reader may come up with: seldom, because an
# average that has met a huge value says the same of all that follow.
near = st.integers(0, 40).map(float)
values = st.one_of(near, near, near, st.floats(0.0, 45.0), st.floats())
pauses = st.one_of(st.sampled_from([0.0, 0.005, 1.0]), st.floats(-10.0, 10.0))
steps = st.lists(st.tuples(pauses, st.integers(0, 2), values), max_size=30)


def probabilities(utilization: Utilization, now: float) -> list[float]:
    return [utilization.rejection_probability(criticality, now) for criticality in Criticality]


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
            utilization.admits(now)
        else:
            utilization.record(names[which % len(names)], value, now)
        if utilization.is_calm:
            utilization._refresh(now)

            assert utilization.is_calm
            assert probabilities(utilization, now) == [0.0] * len(Criticality)
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
        refused = probabilities(utilization, now)

        assert all(0.0 <= probability <= 1.0 for probability in refused)
        for lower, higher in pairwise(refused):
            assert higher == 0.0 or lower == 1.0
        assert utilization.admits(now) == sum(1 << i for i, p in enumerate(refused) if p == 0.0)
        assert utilization.snapshot(now).rejection_probabilities == tuple(refused)
        assert utilization.value(now) >= 0.0
        is_prompt = any(signal.is_prompt for signal in config.signals.values())
        if config.combine == "individual" and not is_prompt and refused[0] > 0.0:
            assert utilization.should_degrade(now)  # degraded before anything is refused


# What replaces a value at the same instant is the present one, and has no part in the average yet.
@settings(max_examples=300)
@given(
    config=configs(),
    averages=st.tuples(*[st.one_of(near, st.integers(0, 5).map(float))] * 3),
    presents=st.tuples(*[near] * 3),
)
def test_that_holds_for_any_average_and_any_present_value(
    config: UtilizationConfig, averages: tuple[float, ...], presents: tuple[float, ...]
) -> None:
    utilization = Utilization(config)
    for name, average, present in zip(config.signals, averages, presents, strict=False):
        utilization.record(name, average, 0.0)
        utilization.record(name, present, 0.0)
    refused = probabilities(utilization, 0.0)

    for lower, higher in pairwise(refused):
        assert higher == 0.0 or lower == 1.0
    assert utilization.snapshot(0.0).rejection_probabilities == tuple(refused)
    if config.combine == "individual":
        for (name, signal), average, present in zip(
            config.signals.items(), averages, presents, strict=False
        ):
            assert utilization.snapshot(0.0).signals[name].value == average
            if signal.is_prompt and present > signal.ramps[Criticality.CRITICAL].low:
                assert refused[:3] == [1.0, 1.0, 1.0]


@given(config=configs(), steps=steps)
def test_to_critical_plus_the_present_value_makes_no_difference(
    config: UtilizationConfig, steps: list[tuple[float, int, float]]
) -> None:
    # A prompt one is computed more often; here both are, each time.
    config = replace(config, refresh_seconds=0.0)
    signals = {name: replace(signal, is_prompt=False) for name, signal in config.signals.items()}
    prompt, plain = Utilization(config), Utilization(replace(config, signals=signals))
    names = list(config.signals)
    now = 0.0
    for step, which, value in steps:
        now += abs(step)  # What was computed stays if the clock steps back.
        for utilization in (prompt, plain):
            utilization.record(names[which % len(names)], value, now)

        *others, critical_plus = probabilities(prompt, now)
        *others_plain, critical_plus_plain = probabilities(plain, now)
        assert critical_plus == critical_plus_plain
        # And the others are refused as ever, or all of them entirely.
        assert others in (others_plain, [1.0, 1.0, 1.0])
        assert prompt.should_degrade(now) is plain.should_degrade(now)


@given(config=configs(), steps=steps)
def test_where_all_is_harmless_no_signal_is_prompt(
    config: UtilizationConfig, steps: list[tuple[float, int, float]]
) -> None:
    signals = {name: replace(signal, is_prompt=False) for name, signal in config.signals.items()}
    prompt, plain = Utilization(config), Utilization(replace(config, signals=signals))
    names = list(config.signals)
    now = 0.0
    for step, which, value in steps:
        now += step
        prompt.record(names[which % len(names)], value, now, is_harmless=True)
        plain.record(names[which % len(names)], value, now)

        assert prompt.snapshot(now) == plain.snapshot(now)


# A reader that is stuck: whatever it said last, and however high.
@given(config=configs(), value=st.floats(0.0, 1e15), late=st.floats(0.0, 1e6, exclude_min=True))
def test_what_has_expired_refuses_nothing(
    config: UtilizationConfig, value: float, late: float
) -> None:
    utilization = Utilization(config)
    for name in config.signals:
        utilization.record(name, value, 1000.0)
    utilization.admits(1000.0)

    # 5 s, and the next refresh is due 1 s after the last.
    assert utilization.admits(1005.0 + max(late, 1e-9)) == 0b1111


@given(config=configs(), first=st.floats(0.0, 45.0), second=st.floats(0.0, 45.0))
def test_more_of_a_signal_never_refuses_less(
    config: UtilizationConfig, first: float, second: float
) -> None:
    def refused(value: float) -> list[float]:
        utilization = Utilization(config)
        utilization.record("cpu", value, 0.0)
        return probabilities(utilization, 0.0)

    less, more = sorted([first, second])
    assert all(a <= b for a, b in zip(refused(less), refused(more), strict=True))
