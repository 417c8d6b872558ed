from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest

from evenly.core.overload.utilization import (
    Ramp,
    Ramps,
    SignalConfig,
    Utilization,
    UtilizationConfig,
    default_signals,
)
from evenly.errors import ConfigError, UsageError

RAMPS: Ramps = (Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0), Ramp(4.0, 5.0))


PLAIN = SignalConfig(ramps=RAMPS)


def one_signal(config: SignalConfig = PLAIN) -> Utilization:
    return Utilization(UtilizationConfig(signals={"queue": config}))


# The first value recorded counts as having held forever, so it is the average at once.
@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param(0.88, 0.0, id="the foot of the lowest ramp"),
        pytest.param(0.886, 0.2, id="(0.886 − 0.88) / 0.03 of SHEDDABLE"),
        pytest.param(0.91, 1.0, id="its head, the foot of the next"),
        pytest.param(0.925, 1.5, id="1 + (0.925 − 0.91) / 0.03"),
        pytest.param(0.94, 2.0, id="the foot of CRITICAL's"),
        pytest.param(0.9775, 3.25, id="3 + (0.9775 − 0.97) / 0.03"),
        pytest.param(1e9, 4.0, id="beyond everything"),
    ],
)
def test_the_cut_is_the_sum_of_what_the_ramps_refuse(memory: float, expected: float) -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("memory", memory, 0.0)

    assert utilization.cut(0.0) == pytest.approx(expected)


def test_a_cpu_bound_backend_at_its_full_rate_is_refused_nothing() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("cpu", 1.0, 0.0)

    assert utilization.cut(0.0) == 0.0
    assert not utilization.should_degrade(0.0)


def test_a_full_connection_table_refuses_sheddable_requests_and_no_others() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("connections", 1.0, 0.0)

    assert utilization.cut(0.0) == 1.0


def test_individually_the_signal_that_refuses_most_decides() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("connections", 0.95, 0.0)  # SHEDDABLE: 0.05 / 0.1
    assert utilization.cut(0.0) == pytest.approx(0.5)

    utilization.record("memory", 0.955, 0.0)  # CRITICAL: 0.015 / 0.03
    assert utilization.cut(0.0) == pytest.approx(2.5)
    utilization.record("cpu", 1.25, 0.0)  # SHEDDABLE_PLUS: 0.05 / 0.1, which is less
    assert utilization.cut(0.0) == pytest.approx(2.5)


def test_maximum_divides_by_the_provision_and_uses_one_set_of_ramps() -> None:
    other: Ramps = (Ramp(1.0, 2.0), Ramp(2.0, 5.0), Ramp(10.0, 20.0), Ramp(20.0, 30.0))
    config = UtilizationConfig(
        signals={"queue": SignalConfig(ramps=RAMPS), "heap": SignalConfig(ramps=other)},
        combine="maximum",
        ramps=(Ramp(0.5, 0.75), Ramp(0.75, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0)),
    )
    utilization = Utilization(config)
    utilization.record("queue", 1.5, 0.0)  # 1.5 / 3 = 0.5, the foot
    utilization.record("heap", 4.5, 0.0)  # 4.5 / 10 = 0.45
    assert utilization.cut(0.0) == 0.0
    assert utilization.should_degrade(0.0)

    utilization = Utilization(config)
    utilization.record("queue", 1.2, 0.0)  # 0.4
    utilization.record("heap", 4.5, 0.0)  # Beyond its own foot, and that does not matter.
    assert not utilization.should_degrade(0.0)

    utilization = Utilization(config)
    utilization.record("queue", 1.2, 0.0)  # 0.4
    utilization.record("heap", 15.0, 0.0)  # 1.5: (1.5 − 1) / 1
    assert utilization.cut(0.0) == 2.5


def test_maximum_is_calm_only_where_nothing_follows_whatever_is_rounded() -> None:
    for hundredths in range(5, 95):
        low = hundredths / 100
        ramps = (Ramp(low, 0.96), Ramp(0.96, 1.0), Ramp(1.0, 1.45), Ramp(1.45, 2.9))
        for provisioned in (1.05, 1.1, 1.3, 2.75, 3.9):
            own = (Ramp(0.1, 0.2), Ramp(0.2, 0.3), Ramp(provisioned, 9.0), Ramp(9.0, 10.0))
            for degrade_at in (None, 0.99):
                config = UtilizationConfig(
                    signals={"queue": SignalConfig(ramps=own)},
                    combine="maximum",
                    ramps=ramps,
                    degrade_at=degrade_at,
                )
                for value in (low * provisioned, round(low * provisioned, 4)):
                    utilization = Utilization(config)
                    utilization.record("queue", value, 1.0)
                    cut = utilization.cut(1.0)
                    is_calm = cut == 0.0 and not utilization.should_degrade(1.0)
                    assert is_calm or not utilization.is_calm


def test_calm_outlives_a_clock_that_steps_back() -> None:
    utilization = one_signal(replace(PLAIN, decay_seconds=0.01))
    utilization.record("queue", 11.0, 1000.0)
    utilization.record("queue", 0.0, 1000.0)
    assert utilization.cut(1001.0) == 0.0
    is_calm = utilization.is_calm
    assert not is_calm  # A clock that steps back finds it at 11 again.

    utilization.record("queue", 0.0, 1001.0)
    assert utilization.cut(1001.0) == 0.0
    is_calm = utilization.is_calm
    assert is_calm
    utilization.record("queue", 0.0, 1000.0)
    assert utilization.cut(1000.0) == 0.0


def test_to_ask_whether_to_degrade_changes_nothing() -> None:
    utilization = one_signal(PLAIN)
    utilization.record("queue", 11.0, 1000.0)
    before = {name: getattr(utilization, name) for name in Utilization.__slots__}

    assert utilization.should_degrade(1000.0)
    assert {name: getattr(utilization, name) for name in Utilization.__slots__} == before


def test_maximum_without_any_signal_refuses_nothing() -> None:
    utilization = Utilization(UtilizationConfig(combine="maximum", degrade_at=0.0))

    assert utilization.cut(0.0) == 0.0
    assert not utilization.should_degrade(0.0)


def test_a_short_spike_is_mostly_swallowed_and_a_long_one_is_not() -> None:
    utilization = one_signal(replace(PLAIN, decay_seconds=0.1))
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 11.0, 1001.0)

    # After 10 ms: 11 · (1 − e^−0.1) = 1.0468; after 100 ms: 11 · (1 − e^−1) = 6.95.
    assert utilization.cut(1001.0) == 0.0
    assert utilization.cut(1001.01) == pytest.approx(11 * (1 - math.exp(-0.1)) - 1)
    assert utilization.cut(1001.1) == 4.0


def test_what_was_calm_acts_as_soon_as_it_is_no_longer() -> None:
    utilization = one_signal(replace(PLAIN, decay_seconds=0.001))
    utilization.record("queue", 0.0, 0.0)
    assert utilization.cut(0.0) == 0.0
    was_calm = utilization.is_calm
    utilization.record("queue", 9.0, 0.1)

    assert (was_calm, utilization.is_calm) == (True, False)
    assert utilization.cut(0.2) == 4.0


def test_a_signal_that_becomes_known_acts_at_once() -> None:
    utilization = Utilization(UtilizationConfig())
    assert utilization.cut(0.0) == 0.0
    utilization.record("memory", 1.0, 0.0)

    assert utilization.cut(0.0) == 4.0


def test_a_signal_without_records_expires_and_begins_anew() -> None:
    utilization = one_signal(replace(PLAIN, expiry_seconds=5.0, decay_seconds=10.0))
    utilization.record("queue", 9.0, 0.0)
    assert utilization.cut(5.0) == 4.0
    assert utilization.cut(5.001) == 0.0
    utilization.record("queue", 1.0, 5.5)

    assert utilization.snapshot(5.5).signals["queue"].value == 1.0  # nothing left of the 9


def test_a_clock_that_steps_back_far_does_not_freeze_a_signal() -> None:
    utilization = one_signal()
    utilization.record("queue", 9.0, 1000.0)
    assert utilization.cut(1000.0) == 4.0
    utilization.record("queue", 0.0, 10.0)

    assert utilization.cut(10.0) == 0.0


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -1.0, 10**400, None, "much", Decimal(1), Fraction(1), 1j, [1.0]],
)
def test_what_is_no_value_is_ignored_and_counted(value: object) -> None:
    utilization = one_signal()
    utilization.record("queue", 2.5, 0.0)
    utilization.record("queue", cast(float, value), 1.0)  # A reader that mypy has not seen.

    snapshot = utilization.snapshot(2.0)
    assert snapshot.signals["queue"].ignored == 1
    assert snapshot.signals["queue"].value == 2.5


def test_an_unknown_signal_is_a_misuse_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown signal 'gpu'; there are queue"):
        one_signal().record("gpu", 0.5, 0.0)


def test_degrading_begins_at_the_foot_of_the_lowest_ramp_or_where_it_is_told() -> None:
    for config, at in ((PLAIN, 1.0), (replace(PLAIN, degrade_at=0.25), 0.25)):
        utilization = one_signal(config)
        utilization.record("queue", math.nextafter(at, 0.0), 0.0)
        assert not utilization.should_degrade(0.0)
        utilization = one_signal(config)
        utilization.record("queue", at, 0.0)
        assert utilization.should_degrade(0.0)
        assert utilization.cut(0.0) == 0.0


def test_the_value_is_the_cpu_rate_and_nothing_stands_in_for_it() -> None:
    utilization = Utilization(UtilizationConfig())
    assert utilization.value(0.0) == 0.0
    utilization.record("memory", 0.5, 0.0)
    assert utilization.value(0.0) == 0.0
    utilization.record("cpu", 0.75, 1.0)
    assert utilization.value(1.0) == 0.75
    utilization.record("memory", 0.5, 6.0)
    assert utilization.value(6.5) == 0.0  # the CPU rate has expired


def test_the_value_without_a_cpu_signal_is_zero() -> None:
    utilization = one_signal()
    utilization.record("queue", 2.5, 0.0)

    assert utilization.value(0.0) == 0.0


def test_snapshot() -> None:
    utilization = Utilization(UtilizationConfig(signals={"queue": SignalConfig(ramps=RAMPS)}))
    assert utilization.snapshot(0.0).signals["queue"].value is None
    utilization.record("queue", 2.5, 0.0)

    snapshot = utilization.snapshot(0.0)
    assert (snapshot.cut, snapshot.should_degrade, snapshot.value) == (1.5, True, 0.0)


def test_a_ramp_that_begins_too_early_names_signal_criticality_and_values() -> None:
    early: Ramps = (Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(2.5, 4.0), Ramp(4.0, 5.0))
    message = "signal 'gpu': the ramp of CRITICAL must begin .* at 3.0 or later, not at 2.5"
    with pytest.raises(ConfigError, match=message):
        UtilizationConfig(signals={**default_signals(), "gpu": SignalConfig(ramps=early)})
    with pytest.raises(ConfigError, match="CRITICAL must begin"):
        UtilizationConfig(ramps=early)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (0.0, math.inf)]
)
def test_a_ramp_rises(low: float, high: float) -> None:
    with pytest.raises(ConfigError):
        Ramp(low, high)


@pytest.mark.parametrize(
    "fields",
    [
        {"ramps": RAMPS[:3]},
        {"ramps": RAMPS, "degrade_at": math.nan},
        {"ramps": RAMPS, "decay_seconds": 0.0},
        {"ramps": RAMPS, "expiry_seconds": math.nan},
    ],
)
def test_wrong_signal_config(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SignalConfig(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"combine": "average"},
        {"degrade_at": 0.7},
        {"combine": "maximum", "signals": {"q": SignalConfig(ramps=RAMPS, degrade_at=1.0)}},
    ],
)
def test_wrong_utilization_config(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        UtilizationConfig(**fields)


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (SignalConfig, {"ramps": RAMPS, "is_prompt": True}, "is_prompt is gone: .* cut-line"),
        (UtilizationConfig, {"refresh_seconds": 0.005}, "refresh_seconds is gone: .* 10 ms"),
        (UtilizationConfig, {"signals": {"runnable": PLAIN}}, "set limits_queue=False"),
    ],
)
def test_a_setting_that_is_gone_says_what_to_do_instead(
    config: type[Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**fields)
