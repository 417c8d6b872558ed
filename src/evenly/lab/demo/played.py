"""Hold what a scripted play gave, and write it down."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import final

from evenly.lab.demo.plan import Plan
from evenly.lab.demo.totals import CRITICALITIES, ENDINGS, REASONS, Totals
from evenly.lab.demo.verdict import Figure, missed
from evenly.signals.cpu import effective_cores

__all__ = ["Part", "Played", "document"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Hold one part of the play and what was counted in it; instants are on the fleet's clock."""

    name: str
    began_at: float
    ended_at: float
    counts: Totals

    def describe(self) -> dict[str, object]:
        """Return it for the JSON document."""
        return {
            "name": self.name,
            "began_at": round(self.began_at, 3),
            "ended_at": round(self.ended_at, 3),
            **{ending: self._of_criticality(ending) for ending in ENDINGS},
            "failed_by": self.counts.failed_by(),
            "refused_by": {reason: self.counts.count("refused", reason) for reason in REASONS},
            "attempts": self.counts.attempts,
            "retries": self.counts.retries,
            "latency_ms": {
                f"p{percent}": self._latency_ms(percent / 100) for percent in (50, 95, 99)
            },
        }

    def _of_criticality(self, ending: str) -> dict[str, int]:
        return {name: self.counts.of_criticality(ending, name) for name in CRITICALITIES}

    def _latency_ms(self, ratio: float) -> float | None:
        found = self.counts.latency_ms(ratio)
        return None if found is None else round(found, 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Hold what a play gave."""

    seconds: float
    parts: Sequence[Part]
    figures: Sequence[Figure]
    demo_cores: float | None

    @property
    def missed(self) -> list[Figure]:
        """The figures that miss their bounds."""
        return missed(self.figures)

    def describe(self) -> dict[str, object]:
        """Return it for the JSON document."""
        return {
            "seconds": round(self.seconds, 3),
            "figures": {figure.name: figure.describe() for figure in self.figures},
            "parts": [part.describe() for part in self.parts],
            "demo_cores": None if self.demo_cores is None else round(self.demo_cores, 3),
            "is_met": not self.missed,
        }


def document(played: Played, plan: Plan, *, version: str, commit: str) -> dict[str, object]:
    """Return what `--json` writes: the figures, and what they can be repeated with."""
    return {
        "evenly": version,
        "commit": commit,
        "plan": {**asdict(plan), "capacity": plan.capacity},
        "seed": plan.seed,
        "machine": {
            "cores": effective_cores(),
            "python": platform.python_version(),
            # Whoever wonders at a figure should know how much else was going on.
            "load_average": round(os.getloadavg()[0], 2),
        },
        **played.describe(),
    }
