"""Sort results into scenes: all policies at one load, over one or several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from evenly.sim.page.numbers import points_step
from evenly.sim.result import Result, Row
from evenly.sim.scenario import OMNISCIENT

__all__ = ["Scene", "is_limit", "policies_of", "scenes_of", "seeds_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Hold what happened at one load, by policy."""

    load: float
    drawn: Mapping[str, Result]
    """One result for each policy, of the first seed: what the charts show."""
    rows: Mapping[str, Sequence[Row]]
    """Of every seed."""

    @property
    def seconds(self) -> int:
        """Return how long the longest run is."""
        return max(len(result.series.attempts) for result in self.drawn.values())

    @property
    def step(self) -> int:
        """Return how many seconds one point of its charts sums up."""
        return points_step(self.seconds)

    @property
    def settle_seconds(self) -> float:
        """Return how much of the beginning is not measured."""
        return max(result.series.settle_seconds for result in self.drawn.values())


def scenes_of(results: Sequence[Result]) -> list[Scene]:
    """Return a scene for each load, lowest first; policies stay in the order of the results."""
    scenes = []
    for load in sorted({result.row.load for result in results}):
        drawn: dict[str, Result] = {}
        rows: dict[str, list[Row]] = {}
        for result in results:
            if result.row.load == load:
                drawn.setdefault(result.row.policy, result)
                rows.setdefault(result.row.policy, []).append(result.row)
        scenes.append(Scene(load=load, drawn=drawn, rows=rows))
    return scenes


def policies_of(results: Sequence[Result]) -> list[str]:
    """Return the policies in the order in which they first appear: that is their colour."""
    return list(dict.fromkeys(result.row.policy for result in results))


def seeds_of(results: Sequence[Result]) -> list[int]:
    """Return the seeds, the one that is drawn first."""
    return list(dict.fromkeys(result.row.seed for result in results))


def is_limit(policy: str) -> bool:
    """Return whether it knows what no client task can know, and stands for the limit."""
    return policy.startswith(OMNISCIENT)
