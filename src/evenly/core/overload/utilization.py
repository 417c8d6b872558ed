"""Say how much of what it was given a backend uses, and what to refuse because of it.

SRE book, chapter 21, "Utilization Signals": "As utilization approaches configured thresholds, we
start rejecting requests based on their criticality (higher thresholds for higher criticalities)";
signals can be plugged in, and combined or used each on its own.  For a signal's value v and the
ramp (low, high) of a criticality, the probability of refusing a request is

    p = 0                            v <= low
        (v − low) / (high − low)     in between
        1                            v >= high

A ramp begins only where the one below has ended, so a criticality is refused only where all lower
ones are refused entirely.  A maximum over signals keeps that: the signal that makes a p positive
makes all lower ones 1.  That is what a cut-line says too (`cut_line.py`), at

    cut = Σ p over the criticalities

so what the signals refuse and what the queue refuses are one comparison.  Degrading is decided here
too, from a value of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.overload.utilization_config import (
    Ramp,
    Ramps,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.core.window import DecayingAverage
from evenly.errors import UsageError

__all__ = [
    "Ramp",
    "Ramps",
    "SignalConfig",
    "SignalSnapshot",
    "Utilization",
    "UtilizationConfig",
    "UtilizationSnapshot",
    "default_signals",
]

# Beyond any signal, and far enough from the largest float that no sum overflows.
_MOST = 1e15
_UNKNOWN = -1.0  # a signal's value without a recent record; real values are never negative


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSnapshot:
    """Show one signal."""

    value: float | None
    """Smoothed; `None`: unknown."""
    ignored: int
    """Records that were not finite, not a number or negative."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationSnapshot:
    """Show the signals and what follows from them."""

    signals: Mapping[str, SignalSnapshot]
    cut: float
    should_degrade: bool
    value: float


@final
class _Signal:
    __slots__ = (
        "average",
        "calm_most",
        "config",
        "degrade_at",
        "ignored",
        "last",
        "provisioned",
        "recorded_at",
    )

    def __init__(self, config: SignalConfig, combined: UtilizationConfig) -> None:
        self.config = config
        self.degrade_at = config.ramps[0].low if config.degrade_at is None else config.degrade_at
        self.provisioned = config.ramps[Criticality.CRITICAL].low  # above 0: others end there
        # Up to here nothing follows from it: no ramp has begun, and nobody degrades.
        self.calm_most = _calm_most(config.ramps[0].low, self.degrade_at)
        if combined.combine == "maximum":
            at = combined.ramps[0].low if combined.degrade_at is None else combined.degrade_at
            self.degrade_at = at * self.provisioned
            # A bit less, because `low` is compared with the quotient, which is rounded too.
            low = math.nextafter(combined.ramps[0].low * self.provisioned, -math.inf)
            self.calm_most = _calm_most(low, self.degrade_at)
        self.average = DecayingAverage(config.decay_seconds)
        self.last = 0.0
        self.recorded_at = -math.inf
        self.ignored = 0

    def value(self, now: float) -> float:
        if now - self.recorded_at > self.config.expiry_seconds:
            return _UNKNOWN
        return self.average.value(now)


@final
class Utilization:
    """Smooth the signals, and say what to refuse.

    While all signals are calm, that is below whatever something follows from, so are their averages
    until another value is recorded, and nothing is computed at all.
    """

    __slots__ = (
        "_config",
        "_is_maximum",
        "_probabilities",
        "_should_degrade",
        "_signals",
        "is_calm",
    )

    def __init__(self, config: UtilizationConfig) -> None:
        self._config = config
        self._is_maximum = config.combine == "maximum"
        self._signals = {name: _Signal(signal, config) for name, signal in config.signals.items()}
        self.is_calm = False
        """Whether it is known that nothing is refused, and nothing degraded."""
        self._probabilities = [0.0] * len(Criticality)
        self._should_degrade = False

    def check(self, name: str) -> None:
        """Raise unless there is such a signal."""
        if name not in self._signals:
            raise UsageError(f"unknown signal {name!r}; there are {', '.join(self._signals)}")

    def record(self, name: str, value: float, now: float) -> None:
        """Say that a signal has this value from now on; what is no such value is counted."""
        self.check(name)
        signal = self._signals[name]
        if not (isinstance(value, (int, float)) and 0.0 <= value <= _MOST):  # NaN fails
            signal.ignored += 1
            return
        # After a silence, or a step back of the clock as long, the average begins anew: the old
        # value did not hold all the while.
        if abs(now - signal.recorded_at) > signal.config.expiry_seconds:
            signal.average = DecayingAverage(signal.config.decay_seconds)
            self.is_calm = False
        signal.average.record(now, value)
        signal.last = value
        if value > signal.calm_most:
            self.is_calm = False
        signal.recorded_at = now

    def cut(self, now: float) -> float:
        """Return the level below which requests are refused: the sum of the probabilities."""
        if not self.is_calm:
            self._refresh(now)
        return sum(self._probabilities)

    def should_degrade(self, now: float) -> bool:
        """Return whether answers should be cheaper than usual.

        It changes nothing, so that handlers may ask from any thread.  While another one records,
        the answer may be that of a moment before.
        """
        return not self.is_calm and any(
            signal.value(now) >= signal.degrade_at for signal in self._signals.values()
        )

    def value(self, now: float) -> float:
        """Return the CPU rate in units of what is provisioned; 0.0 where it is unknown."""
        cpu = self._signals.get("cpu")
        value = _UNKNOWN if cpu is None else cpu.value(now)
        return 0.0 if value == _UNKNOWN else value

    def snapshot(self, now: float) -> UtilizationSnapshot:
        """Return the signals and what follows from them."""
        self._refresh(now)
        values = {name: signal.value(now) for name, signal in self._signals.items()}
        return UtilizationSnapshot(
            signals={
                name: SignalSnapshot(
                    value=None if values[name] == _UNKNOWN else values[name], ignored=signal.ignored
                )
                for name, signal in self._signals.items()
            },
            cut=sum(self._probabilities),
            should_degrade=self._should_degrade,
            value=self.value(now),
        )

    def _refresh(self, now: float) -> None:
        probabilities = [0.0] * len(Criticality)
        should_degrade = False
        is_calm = True
        largest = _UNKNOWN
        for signal in self._signals.values():
            value = signal.value(now)
            # The average is between what it was at the last record and the value recorded, until
            # the next one, wherever the clock goes.  An unknown one counts too: it is known again
            # if the clock steps back.
            average = signal.average.value(signal.recorded_at)
            if signal.last > signal.calm_most or average > signal.calm_most:
                is_calm = False
            if value == _UNKNOWN:
                continue
            should_degrade |= value >= signal.degrade_at
            if self._is_maximum:
                largest = max(largest, value / signal.provisioned)
            else:
                _raise_to(probabilities, signal.config.ramps, value)
        if self._is_maximum:
            _raise_to(probabilities, self._config.ramps, largest)
        self.is_calm = is_calm
        self._should_degrade = should_degrade
        self._probabilities = probabilities


def _calm_most(low: float, degrade_at: float) -> float:
    # From `degrade_at` on answers are degraded, while a ramp begins behind its foot.
    return min(low, math.nextafter(degrade_at, -math.inf))


def _raise_to(probabilities: list[float], ramps: Ramps, value: float) -> None:
    for i, ramp in enumerate(ramps):
        if value <= ramp.low:
            return  # and those above begin later still
        probabilities[i] = max(probabilities[i], ramp.probability(value))
