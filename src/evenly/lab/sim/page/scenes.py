"""Sort results into scenes: all policies at one load, over one or several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from evenly.lab.sim.page.numbers import points_step
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import OMNISCIENT
from evenly.lab.sim.success import IDEAL

__all__ = ["Scene", "is_omniscient", "label_of", "policies_of", "scenes_of", "seeds_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Hold what happened at one load, by policy."""

    load: float
    drawn: Mapping[str, Result]
    """One result for each policy, of the first seed: what the charts show."""
    runs: Mapping[str, Sequence[Result]]
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
    def measured(self) -> tuple[int, int]:
        """Return the first second that is measured and the one after the last: of all, the same."""
        begin, end = next(iter(self.drawn.values())).series.measured
        return min(begin, self.seconds), min(end, self.seconds)

    @property
    def is_measured_whole(self) -> bool:
        """Return whether nothing of it is left out of the figures."""
        return self.measured == (0, self.seconds)


def scenes_of(results: Sequence[Result]) -> list[Scene]:
    """Return a scene for each load, lowest first; policies stay in the order of the results."""
    scenes = []
    for load in sorted({result.row.load for result in results}):
        drawn: dict[str, Result] = {}
        runs: dict[str, list[Result]] = {}
        for result in results:
            if result.row.load == load:
                drawn.setdefault(result.row.policy, result)
                runs.setdefault(result.row.policy, []).append(result)
        scenes.append(Scene(load=load, drawn=drawn, runs=runs))
    return scenes


def policies_of(results: Sequence[Result]) -> list[str]:
    """Return the policies in the order in which they first appear: that is their colour."""
    return list(dict.fromkeys(result.row.policy for result in results))


def seeds_of(results: Sequence[Result]) -> list[int]:
    """Return the seeds, the one that is drawn first."""
    return list(dict.fromkeys(result.row.seed for result in results))


def is_omniscient(policy: str) -> bool:
    """Return whether it knows what no client task can know."""
    return policy.startswith(OMNISCIENT)


def label_of(policy: str) -> str:
    """Return what stands beside its name: what it is the limit of, if it is of anything."""
    if policy == IDEAL:
        return "(priorities)"
    return "(latency limit)" if policy == OMNISCIENT else ""
