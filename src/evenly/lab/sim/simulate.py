"""Run one scenario, for one policy, load and seed."""

from __future__ import annotations

import time
from collections.abc import Callable

from evenly.lab.sim.measure import measure_row, measure_series
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.world import World

__all__ = ["simulate"]


def simulate(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run a scenario; the same arguments give the same result, but for the CPU time it took.

    `progress` is told after each simulated second which part of the story is told.
    """
    before = time.process_time()
    world = World(scenario, policy=policy, load=load, seed=seed)
    world.run(progress)
    spent = time.process_time() - before
    seconds = world.stage.recorder.seconds
    row = measure_row(
        scenario,
        seconds,
        world.samples,
        policy=policy,
        seed=seed,
        load=load,
        cpu_seconds_spent=spent,
        violations=world.stage.checkers.violations(),
    )
    return Result(row=row, series=measure_series(scenario, seconds, world.samples))
