"""Choose the utilization signals, and where each begins to refuse which criticality.

SRE book, chapter 21, "Utilization Signals".  How they are used is in `utilization.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.errors import ConfigError

__all__ = ["Ramp", "Ramps", "SignalConfig", "UtilizationConfig", "default_signals"]

# Beyond any signal, and far enough from the largest float that no sum overflows.
_MOST = 1e15


@final
@dataclass(frozen=True, slots=True)
class Ramp:
    """Refuse nothing up to `low`, everything from `high`, and in between in proportion."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check.number("low", self.low, 0.0, _MOST)
        check.number("high", self.high, 0.0, _MOST)
        # A step would make every client come and go at once.
        if self.low >= self.high:
            raise ConfigError(f"low must be below high, not {self.low!r} and {self.high!r}")

    def probability(self, value: float) -> float:
        """Return the probability of refusing a request at this value."""
        if value <= self.low:
            return 0.0
        if value >= self.high:
            return 1.0
        return (value - self.low) / (self.high - self.low)


Ramps = tuple[Ramp, Ramp, Ramp, Ramp]
"""One ramp per criticality, SHEDDABLE first."""


@final
@check.gone({"is_prompt": "what is prompt is the queue, and has a cut-line"})
@dataclass(frozen=True, slots=True, kw_only=True)
class SignalConfig:
    """Describe one signal: where it refuses, and how quickly it forgets."""

    ramps: Ramps
    degrade_at: float | None = None
    """The value from which answers are degraded; `None`: the foot of the SHEDDABLE ramp."""
    decay_seconds: float = 1.0
    expiry_seconds: float = 5.0
    """A signal not recorded for so long is unknown, and refuses nothing: its reader is stuck."""

    def __post_init__(self) -> None:
        if len(self.ramps) != len(Criticality):
            raise ConfigError(f"ramps must be one per criticality, not {self.ramps!r}")
        if self.degrade_at is not None:
            check.number("degrade_at", self.degrade_at, 0.0, _MOST)
        check.positive("decay_seconds", self.decay_seconds)
        check.positive("expiry_seconds", self.expiry_seconds)


def default_signals() -> dict[str, SignalConfig]:
    """Return the signals of a backend that says nothing else; add your own to the copy."""
    return {
        # CPU rate over the CPUs reserved.  A CPU-bound backend at its full rate has exactly 1.0 and
        # nobody waiting; any ramp below would shed what the queue admits.  So these begin above, by
        # what a reader that straddles two quota periods of 0.1 s can be wrong after decay: 10 %.
        # They matter where a backend may borrow CPU that can be taken back.
        "cpu": SignalConfig(ramps=(Ramp(1.1, 1.2), Ramp(1.2, 1.3), Ramp(1.3, 1.5), Ramp(1.5, 2.0))),
        # Memory over its limit, the page cache not counted: at 1.0 the kernel kills the process.
        "memory": SignalConfig(
            ramps=(Ramp(0.88, 0.91), Ramp(0.91, 0.94), Ramp(0.94, 0.97), Ramp(0.97, 1.0))
        ),
        # Connections over what the backend accepts.  At 1.0 it takes no new ones, which protects it
        # already: the clients that are connected are refused SHEDDABLE requests and no others.
        "connections": SignalConfig(
            ramps=(Ramp(0.9, 1.0), Ramp(1.0, 1.1), Ramp(1.1, 1.5), Ramp(1.5, 2.0))
        ),
    }


@final
@check.gone({"refresh_seconds": "decisions are made anew every 10 ms"})
@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationConfig:
    """Choose the signals, and whether each decides alone or the largest for all."""

    signals: Mapping[str, SignalConfig] = field(default_factory=default_signals)
    combine: Literal["individual", "maximum"] = "individual"
    """`individual`: the largest probability over the signals, each on its own ramps.  `maximum`:
    each value is divided by the foot of its signal's CRITICAL ramp, and the largest quotient goes
    through `ramps`.  That foot is what the signal is provisioned for: "Services are expected to
    provision enough capacity for all expected CRITICAL and CRITICAL_PLUS traffic" (book)."""
    # Late for the lower ones: at 0.55 of its provision, memory for one is still plentiful.
    ramps: Ramps = (Ramp(0.8, 0.9), Ramp(0.9, 1.0), Ramp(1.0, 1.45), Ramp(1.45, 2.9))
    """The common ramps of `maximum`, in units of what is provisioned."""
    degrade_at: float | None = None
    """For `maximum`, in the same unit; `None`: the foot of the SHEDDABLE ramp."""

    def __post_init__(self) -> None:
        if self.combine not in ("individual", "maximum"):
            raise ConfigError(f"combine must be 'individual' or 'maximum', not {self.combine!r}")
        common = SignalConfig(ramps=self.ramps, degrade_at=self.degrade_at)
        if "runnable" in self.signals:
            raise ConfigError(
                "utilization.signals: 'runnable' has no ramps any more: the queue's cut-line needs"
                " no setting; to refuse nothing because of the queue, set limits_queue=False"
            )
        for name, signal in {**self.signals, "(all)": common}.items():
            for criticality, (below, ramp) in zip(
                list(Criticality)[1:], pairwise(signal.ramps), strict=True
            ):
                if ramp.low < below.high:
                    raise ConfigError(
                        f"signal {name!r}: the ramp of {criticality.name} must begin where the one"
                        f" below ends, at {below.high!r} or later, not at {ramp.low!r}"
                    )
            # One of the two would be read by nobody.
            if signal.degrade_at is not None and (signal is common) != (self.combine == "maximum"):
                raise ConfigError(f"degrade_at of signal {name!r} has no effect in {self.combine}")
