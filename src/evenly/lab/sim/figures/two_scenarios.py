"""Figures 20-1 and 20-2: one fleet of unequal machines, balanced badly and well.

SRE book, chapter 20, "The Ideal Case".  Both runs have the same machines, requests and luck; only
the policy differs.  The load rises to a level that round robin's slowest machines can just bear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.lab.sim.figures.cpu_lines import means, spread
from evenly.lab.sim.measure import measured_span
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import ClientsConfig, PhaseConfig, Scenario
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate

__all__ = ["DEFAULT", "POLICIES", "PolicyRun", "run_policy", "two_scenarios"]

DEFAULT: Final = PolicyConfig().name
POLICIES: Final = ("round_robin", DEFAULT)
"""The bad one first."""
_LOAD: Final = 0.62


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """Hold what one policy did with the fleet."""

    scenario: Scenario
    result: Result

    @property
    def span(self) -> tuple[int, int]:
        """Return the seconds in which the load stays."""
        return measured_span(self.scenario)

    @property
    def cpus(self) -> list[float]:
        """Return the CPUs that each task used meanwhile, the most loaded task first: CPU[0]."""
        cores = self.scenario.backends.cores
        return sorted(
            (cores * used for used in means(self.result.series.cpu, *self.span)), reverse=True
        )

    @property
    def most_ratio(self) -> float:
        """Return the part of its CPUs that the most loaded task used."""
        return self.cpus[0] / self.scenario.backends.cores

    @property
    def mean_ratio(self) -> float:
        """Return the part of all CPUs that was used."""
        return math.fsum(self.cpus) / (len(self.cpus) * self.scenario.backends.cores)

    @property
    def wasted_cpus(self) -> float:
        """Return the sum over all tasks of CPU[0] − CPU[i], as the book defines waste."""
        cpus = self.cpus
        return math.fsum(cpus[0] - used for used in cpus)

    @property
    def usable_ratio(self) -> float:
        """Return what can be used of all CPUs when the most loaded task is at its limit."""
        return self.mean_ratio / self.most_ratio

    @property
    def spread(self) -> float:
        """Return the most loaded task's CPU over the least loaded one's."""
        return spread(self.result.series.cpu, *self.span)


def two_scenarios(*, backends: int = 20, step_seconds: int = 4, seconds: int = 36) -> Scenario:
    """Return the story: the load rises in steps, then stays.

    The fastest machine is twice as fast as the slowest, as in the book's example of machine
    diversity.  Round robin sends all of them equally many requests, so that the slowest is full
    when two thirds of the capacity are used.
    """
    rise = [PhaseConfig(seconds=step_seconds, load=load / 100) for load in range(30, 60, 5)]
    return Scenario(
        title="Two scenarios of per-task load",
        phases=(*rise, PhaseConfig(seconds=seconds)),
        settle_seconds=0.0,
        loads=(_LOAD,),
        policies=POLICIES,
        ideal=False,
        clients=ClientsConfig(count=2 * backends),
        backends=ServiceConfig(
            count=backends,
            cores=2,
            speeds=(2 / 3, 4 / 3),
            cost=RequestCostConfig(mean_seconds=0.01),
        ),
    )


def run_policy(seed: int, *, policy: str, scenario: Scenario | None = None) -> PolicyRun:
    """Run the story with one policy."""
    scenario = scenario or two_scenarios()
    result = simulate(scenario, policy=policy, load=_LOAD, seed=seed)
    return PolicyRun(scenario=scenario, result=result)
