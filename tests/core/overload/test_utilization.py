from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest

from evenly.core.criticality import Criticality
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
PROMPT = SignalConfig(ramps=RAMPS, is_prompt=True)


def one_signal(config: SignalConfig = PLAIN) -> Utilization:
    return Utilization(UtilizationConfig(signals={"queue": config}, refresh_seconds=0.0))


def probabilities(utilization: Utilization, now: float) -> list[float]:
    return [utilization.rejection_probability(criticality, now) for criticality in Criticality]


# The first value recorded counts as having held forever, so it is the average at once.
@pytest.mark.parametrize(
    ("runnable", "expected"),
    [
        pytest.param(1.5, [0.0, 0.0, 0.0, 0.0], id="the foot of the lowest ramp"),
        pytest.param(1.6, [0.2, 0.0, 0.0, 0.0], id="(1.6 − 1.5) / 0.5"),
        pytest.param(2.0, [1.0, 0.0, 0.0, 0.0], id="its head, the foot of the next"),
        pytest.param(2.375, [1.0, 0.5, 0.0, 0.0], id="(2.375 − 2) / 0.75"),
        pytest.param(2.75, [1.0, 1.0, 0.0, 0.0], id="the foot of CRITICAL's"),
        pytest.param(2.76, [1.0, 1.0, 1.0, 0.0], id="beyond it, now: all but CRITICAL_PLUS"),
        pytest.param(5.0, [1.0, 1.0, 1.0, 0.25], id="(5 − 4) / 4"),
        pytest.param(1e9, [1.0, 1.0, 1.0, 1.0], id="beyond everything"),
    ],
)
def test_ramps_of_runnable(runnable: float, expected: list[float]) -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("runnable", runnable, 0.0)

    assert probabilities(utilization, 0.0) == pytest.approx(expected)
    assert utilization.admits(0.0) == sum(1 << i for i, p in enumerate(expected) if p == 0.0)


# The same without the rule for the present value: after it has been 3 for long, it is 0 just now.
def test_the_ramp_of_critical_is_that_of_the_average() -> None:
    utilization = Utilization(UtilizationConfig(refresh_seconds=0.0))
    utilization.record("runnable", 3.0, 0.0)
    utilization.record("runnable", 0.0, 1.0)

    # (3 − 2.75) / 1.25
    assert probabilities(utilization, 1.0) == pytest.approx([1.0, 1.0, 0.2, 0.0])


def test_a_cpu_bound_backend_at_its_full_rate_is_refused_nothing() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("cpu", 1.0, 0.0)
    utilization.record("runnable", 1.0, 0.0)  # one request on each core, nobody waiting

    assert utilization.admits(0.0) == 0b1111
    assert not utilization.should_degrade(0.0)


def test_a_full_connection_table_refuses_sheddable_requests_and_no_others() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("connections", 1.0, 0.0)

    assert utilization.admits(0.0) == 0b1110


def test_individually_the_signal_that_refuses_most_decides() -> None:
    utilization = Utilization(UtilizationConfig())
    utilization.record("runnable", 1.75, 0.0)  # SHEDDABLE: 0.25 / 0.5
    assert probabilities(utilization, 0.0) == pytest.approx([0.5, 0.0, 0.0, 0.0])

    utilization.record("memory", 0.955, 0.0)  # CRITICAL: 0.015 / 0.03
    assert probabilities(utilization, 0.0) == pytest.approx([1.0, 1.0, 0.5, 0.0])


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
    assert probabilities(utilization, 0.0) == [0.0, 0.0, 0.0, 0.0]
    assert utilization.should_degrade(0.0)

    utilization = Utilization(config)
    utilization.record("queue", 1.2, 0.0)  # 0.4
    utilization.record("heap", 4.5, 0.0)  # Beyond its own foot, and that does not matter.
    assert not utilization.should_degrade(0.0)

    utilization = Utilization(config)
    utilization.record("queue", 1.2, 0.0)  # 0.4
    utilization.record("heap", 15.0, 0.0)  # 1.5: (1.5 − 1) / 1
    assert probabilities(utilization, 0.0) == [1.0, 1.0, 0.5, 0.0]


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
                    admits = utilization.admits(1.0)
                    is_calm = admits == 0b1111 and not utilization.should_degrade(1.0)
                    assert is_calm or not utilization.is_calm


def test_calm_outlives_a_clock_that_steps_back() -> None:
    utilization = one_signal(replace(PLAIN, decay_seconds=0.01))
    utilization.record("queue", 11.0, 1000.0)
    utilization.record("queue", 0.0, 1000.0)
    assert utilization.admits(1001.0) == 0b1111
    is_calm = utilization.is_calm
    assert not is_calm  # A clock that steps back finds it at 11 again.

    utilization.record("queue", 0.0, 1001.0)
    assert utilization.admits(1001.0) == 0b1111
    is_calm = utilization.is_calm
    assert is_calm
    utilization.record("queue", 0.0, 1000.0)
    assert utilization.admits(1000.0) == 0b1111


def test_to_ask_whether_to_degrade_changes_nothing() -> None:
    utilization = one_signal(PLAIN)
    utilization.record("queue", 11.0, 1000.0)
    before = {name: getattr(utilization, name) for name in Utilization.__slots__}

    assert utilization.should_degrade(1000.0)
    assert {name: getattr(utilization, name) for name in Utilization.__slots__} == before


def test_to_degrade_holds_until_the_next_refresh_as_refusing_does() -> None:
    signal = replace(PLAIN, decay_seconds=0.01)
    utilization = Utilization(UtilizationConfig(signals={"queue": signal}, refresh_seconds=1.0))
    utilization.record("queue", 11.0, 1000.0)
    assert utilization.admits(1000.0) != 0b1111
    utilization.record("queue", 0.0, 1000.0)

    assert utilization.should_degrade(1000.9)
    assert utilization.admits(1000.9) != 0b1111
    assert not utilization.should_degrade(1001.0)


def test_maximum_without_any_signal_refuses_nothing() -> None:
    utilization = Utilization(UtilizationConfig(combine="maximum", degrade_at=0.0))

    assert utilization.admits(0.0) == 0b1111
    assert not utilization.should_degrade(0.0)


def test_a_short_spike_is_mostly_swallowed_and_a_long_one_is_not() -> None:
    utilization = one_signal(replace(PLAIN, decay_seconds=0.1))
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 11.0, 1001.0)

    # After 10 ms: 11 · (1 − e^−0.1) = 1.0468; after 100 ms: 11 · (1 − e^−1) = 6.95.
    assert utilization.rejection_probability(Criticality.SHEDDABLE, 1001.01) == pytest.approx(
        11 * (1 - math.exp(-0.1)) - 1
    )
    assert utilization.admits(1001.1) == 0


# A burst after long peace: the average is 0 at that instant, and 1 − 1/e of it a second later.
@pytest.mark.parametrize(
    ("present", "at_once", "later"),
    [
        # 3 · 0.632 = 1.896
        pytest.param(3.0, [0.0, 0.0, 0.0, 0.0], [0.896, 0.0, 0.0, 0.0], id="at CRITICAL's foot"),
        # 3.01 · 0.632 = 1.903
        pytest.param(3.01, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], id="beyond it"),
        # 7 · 0.632 = 4.425
        pytest.param(7.0, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.425], id="far beyond it"),
        # However much it is: CRITICAL_PLUS is refused by the average alone.
        pytest.param(1e15, [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], id="beyond everything"),
    ],
)
def test_a_prompt_signal_refuses_a_burst_at_once_but_for_critical_plus(
    present: float, at_once: list[float], later: list[float]
) -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", present, 1001.0)

    assert probabilities(utilization, 1001.0) == at_once
    assert probabilities(utilization, 1002.0) == pytest.approx(later, abs=1e-3)


def test_other_signals_wait_for_their_average() -> None:
    utilization = one_signal()
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 1e15, 1001.0)

    assert probabilities(utilization, 1001.0) == [0.0, 0.0, 0.0, 0.0]


def test_of_the_usual_signals_runnable_alone_is_prompt() -> None:
    assert [name for name, signal in default_signals().items() if signal.is_prompt] == ["runnable"]


def test_when_the_burst_is_over_the_average_decides_again() -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 9.0, 1001.0)
    utilization.record("queue", 0.0, 1001.1)

    # 9 · (1 − e^−0.1) = 0.856 is below every ramp.
    assert probabilities(utilization, 1001.1) == [0.0, 0.0, 0.0, 0.0]


def test_a_present_value_whose_reader_is_stuck_refuses_nothing() -> None:
    utilization = one_signal(replace(PROMPT, expiry_seconds=5.0, decay_seconds=1000.0))
    utilization.record("queue", 0.0, 0.0)
    utilization.record("queue", 9.0, 1.0)
    assert utilization.admits(6.0) == 0b1000
    assert utilization.admits(6.001) == 0b1111

    utilization.record("queue", 0.0, 7.0)  # Nor does it come back with the next record.
    assert utilization.admits(7.0) == 0b1111


def test_what_is_no_value_is_no_present_value_either() -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 0.0)
    utilization.record("queue", math.inf, 1.0)
    assert utilization.admits(1.0) == 0b1111
    utilization.record("queue", 9.0, 2.0)
    utilization.record("queue", math.nan, 2.0)

    assert utilization.admits(2.0) == 0b1000


def test_what_is_harmless_refuses_nothing_at_once_but_goes_into_the_average() -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 7.0, 1001.0, is_harmless=True)
    assert probabilities(utilization, 1001.0) == [0.0, 0.0, 0.0, 0.0]
    # 7 · (1 − 1/e) = 4.425
    assert probabilities(utilization, 1002.0) == pytest.approx([1.0, 1.0, 1.0, 0.425], abs=1e-3)

    utilization.record("queue", 7.0, 1100.0)
    utilization.record("queue", 0.0, 1100.0)
    utilization.record("queue", 7.0, 1101.0)  # It is each record's own affair.
    assert utilization.admits(1101.0) == 0b1000
    utilization.record("queue", 7.0, 1101.0, is_harmless=True)
    assert utilization.admits(1101.0) == 0b1100  # The average is 7 / e = 2.58.


def test_a_prompt_signal_raises_what_another_refuses_in_part() -> None:
    signals = {"queue": PROMPT, "heap": PLAIN}
    for first, second in (("queue", "heap"), ("heap", "queue")):
        config = UtilizationConfig(
            signals={first: signals[first], second: signals[second]}, refresh_seconds=0.0
        )
        utilization = Utilization(config)
        utilization.record("heap", 3.5, 0.0)
        utilization.record("queue", 0.0, 0.0)
        assert probabilities(utilization, 1.0) == [1.0, 1.0, 0.5, 0.0]
        utilization.record("queue", 3.5, 1.0)

        assert probabilities(utilization, 1.0) == [1.0, 1.0, 1.0, 0.0]


def test_the_present_value_does_not_degrade() -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 9.0, 1001.0)

    # Whoever is still admitted is CRITICAL_PLUS, and 0.1 s later the average decides: 0.856.
    assert not utilization.should_degrade(1001.1)
    assert utilization.should_degrade(1001.2)  # 1.63


# In units of what is provisioned, 3 and 10, against a common foot of 1.
@pytest.mark.parametrize(
    ("queue", "heap", "expected"),
    [
        pytest.param(3.0, 10.0, 0b1111, id="3 / 3 is at the foot"),
        pytest.param(3.01, 0.0, 0b1000, id="3.01 / 3 is beyond it"),
        pytest.param(0.0, 1e9, 0b1111, id="the other is not prompt"),
    ],
)
def test_maximum_is_prompt_by_its_common_ramps(queue: float, heap: float, expected: int) -> None:
    other: Ramps = (Ramp(1.0, 2.0), Ramp(2.0, 5.0), Ramp(10.0, 20.0), Ramp(20.0, 30.0))
    utilization = Utilization(
        UtilizationConfig(
            signals={"queue": PROMPT, "heap": SignalConfig(ramps=other)},
            combine="maximum",
            refresh_seconds=0.0,
        )
    )
    for name, value in (("queue", queue), ("heap", heap)):
        utilization.record(name, 0.0, 0.0)
        utilization.record(name, value, 1.0)

    assert utilization.admits(1.0) == expected
    if expected != 0b1111:
        assert utilization.admits(6.001) == 0b1111  # 5 s after the last word


def test_the_snapshot_shows_the_average_and_what_follows_from_the_present() -> None:
    utilization = one_signal(PROMPT)
    utilization.record("queue", 0.0, 1000.0)
    utilization.record("queue", 9.0, 1001.0)

    snapshot = utilization.snapshot(1001.0)
    assert snapshot.signals["queue"].value == 0.0
    assert snapshot.rejection_probabilities == (1.0, 1.0, 1.0, 0.0)
    assert (snapshot.admits, snapshot.should_degrade) == (0b1000, False)


def test_decisions_are_computed_at_most_once_per_refresh() -> None:
    config = UtilizationConfig(
        signals={"queue": SignalConfig(ramps=RAMPS, decay_seconds=0.001)}, refresh_seconds=0.5
    )
    utilization = Utilization(config)
    utilization.record("queue", 9.0, 0.0)
    assert utilization.admits(0.0) == 0
    utilization.record("queue", 0.0, 0.1)

    assert utilization.admits(0.49) == 0
    assert utilization.admits(0.5) == 0b1111


def test_what_was_calm_acts_as_soon_as_it_is_no_longer() -> None:
    config = UtilizationConfig(
        signals={"queue": SignalConfig(ramps=RAMPS, decay_seconds=0.001)}, refresh_seconds=0.5
    )
    utilization = Utilization(config)
    utilization.record("queue", 0.0, 0.0)
    assert utilization.admits(0.0) == 0b1111
    was_calm = utilization.is_calm
    utilization.record("queue", 9.0, 0.1)

    assert (was_calm, utilization.is_calm) == (True, False)
    assert utilization.admits(0.2) == 0


def test_a_prompt_signal_is_decided_about_each_time_it_is_recorded() -> None:
    config = UtilizationConfig(
        signals={"queue": SignalConfig(ramps=RAMPS, is_prompt=True)}, refresh_seconds=1.0
    )
    utilization = Utilization(config)
    utilization.record("queue", 0.0, 0.0)
    utilization.record("queue", RAMPS[2].low, 1.0)
    assert utilization.admits(1.0) == 0b1111
    utilization.record("queue", RAMPS[2].low + 0.1, 1.0)

    assert utilization.admits(1.0) == 0b1000


def test_a_signal_that_becomes_known_acts_at_once() -> None:
    utilization = Utilization(UtilizationConfig(refresh_seconds=1.0))
    assert utilization.admits(0.0) == 0b1111
    utilization.record("runnable", 100.0, 0.0)

    assert utilization.admits(0.0) == 0


def test_a_signal_without_records_expires_and_begins_anew() -> None:
    utilization = one_signal(replace(PLAIN, expiry_seconds=5.0, decay_seconds=10.0))
    utilization.record("queue", 9.0, 0.0)
    assert utilization.admits(5.0) == 0
    assert utilization.admits(5.001) == 0b1111
    utilization.record("queue", 1.0, 5.5)

    assert utilization.snapshot(5.5).signals["queue"].value == 1.0  # nothing left of the 9


def test_a_clock_that_steps_back_far_does_not_freeze_a_signal() -> None:
    utilization = one_signal()
    utilization.record("queue", 9.0, 1000.0)
    assert utilization.admits(1000.0) == 0
    utilization.record("queue", 0.0, 10.0)

    assert utilization.admits(10.0) == 0b1111


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
        assert utilization.admits(0.0) == 0b1111


def test_the_value_is_the_cpu_rate_and_nothing_stands_in_for_it() -> None:
    utilization = Utilization(UtilizationConfig())
    assert utilization.value(0.0) == 0.0
    utilization.record("runnable", 1.25, 0.0)
    assert utilization.value(0.0) == 0.0
    utilization.record("cpu", 0.75, 1.0)
    assert utilization.value(1.0) == 0.75
    utilization.record("runnable", 1.25, 6.0)
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
    assert snapshot.rejection_probabilities == (1.0, 0.5, 0.0, 0.0)
    assert (snapshot.admits, snapshot.should_degrade, snapshot.value) == (0b1100, True, 0.0)


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
        {"refresh_seconds": -0.1},
        {"refresh_seconds": math.nan},
        {"degrade_at": 0.7},
        {"combine": "maximum", "signals": {"q": SignalConfig(ramps=RAMPS, degrade_at=1.0)}},
    ],
)
def test_wrong_utilization_config(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        UtilizationConfig(**fields)
