from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from evenly.core.overload.send_probability import SendProbability, SendProbabilityConfig
from evenly.errors import ConfigError

RHO = 0.1 / 1.1  # (K − 1) / K


def fresh(now: float = 0.0) -> SendProbability:
    return SendProbability(SendProbabilityConfig(), now)


def at_the_floor() -> SendProbability:
    """Return one at q = 0.001, last told at 5.0, with weight 1."""
    probability = fresh()
    for tick in range(1, 51):
        probability.reject(tick * 0.1)
    assert probability.value == pytest.approx(0.001)
    return probability


@pytest.mark.parametrize(
    ("gap_seconds", "factor"),
    [
        pytest.param(0.1, 1.0, id="at the pace of ten a second"),
        pytest.param(0.4, 4.0, id="rarer weighs more"),
        pytest.param(0.8, 8.0, id="up to eight times"),
        pytest.param(60.0, 8.0, id="and no further"),
    ],
)
def test_a_rejection_lowers(gap_seconds: float, factor: float) -> None:
    probability = fresh(100.0)
    probability.reject(100.0 + gap_seconds)

    assert probability.value == pytest.approx(math.exp(-0.25 * (1 - RHO) * factor))


def test_accepts_raise_faster_the_longer_the_run() -> None:
    probability = at_the_floor()
    values = [probability.value]
    for tick in range(1, 13):
        probability.accept(5.0 + tick * 0.1)
        values.append(probability.value)
    rises = [math.log(after / before) for before, after in itertools.pairwise(values)]

    assert rises[:10] == pytest.approx([0.25 * RHO] * 10)
    # run = 11 and 12: 1 + 1/3 and 1 + 2/3 times as much
    assert rises[10:] == pytest.approx([0.25 * RHO * 4 / 3, 0.25 * RHO * 5 / 3])


def test_the_rise_is_sixteen_times_at_most_and_ends_at_one() -> None:
    probability = at_the_floor()
    steepest = 0.0
    for tick in range(1, 80):
        before = probability.value
        probability.accept(5.0 + tick * 0.1)
        if probability.value < 1.0:
            steepest = max(steepest, math.log(probability.value / before))
    assert probability.value == 1.0
    assert steepest <= 0.25 * RHO * 16 + 1e-12

    probability = SendProbability(
        SendProbabilityConfig(min_probability=1e-9, run_scale=0.001), now=0.0
    )
    for tick in range(1, 101):
        probability.reject(tick * 0.1)
    for tick in range(101, 112):
        probability.accept(tick * 0.1)
    before = probability.value
    probability.accept(11.2)
    assert math.log(probability.value / before) == pytest.approx(0.25 * RHO * 16)


def test_a_rejection_ends_the_run() -> None:
    probability = at_the_floor()
    for tick in range(1, 31):
        probability.accept(5.0 + tick * 0.1)
    probability.reject(8.1)
    before = probability.value
    probability.accept(8.2)

    assert math.log(probability.value / before) == pytest.approx(0.25 * RHO)


def test_answers_faster_than_ten_a_second_weigh_less() -> None:
    probability = fresh()
    for millisecond in range(1, 101):
        probability.reject(millisecond / 1000)
    before = probability.value
    probability.reject(0.101)

    # The weight has settled: from 1 towards 0.01, the difference shrinking by 7/8 per answer.
    weight = 0.01 + 0.99 * 0.875**101
    assert math.log(probability.value / before) == pytest.approx(-0.25 * (1 - RHO) * weight)


def test_a_clock_that_goes_back_does_no_harm() -> None:
    probability = fresh(100.0)
    probability.reject(50.0)
    # g = 0: the weight is 7/8, and the factor 1.
    assert probability.value == pytest.approx(math.exp(-0.25 * (1 - RHO) * 0.875))

    probability.reject(100.1)  # 0.1 s after the last answer, whatever the clock said in between.
    assert probability.value == pytest.approx(
        math.exp(-0.25 * (1 - RHO) * (0.875 + 0.875 + 0.125 * (1.0 - 0.875)))
    )


@pytest.mark.parametrize(
    "name", ["report_max_seconds", "growth_per_second", "growth_per_second_squared"]
)
def test_a_setting_that_is_gone_says_why(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is gone: the controller is for customers"):
        SendProbabilityConfig(**{name: 1.0})


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(SendProbabilityConfig)]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_wrong_config_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be in"):
        SendProbabilityConfig(**{field: value})
