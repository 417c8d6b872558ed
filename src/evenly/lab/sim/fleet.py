"""The backends of one service, or of its part in one datacenter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import final

from evenly.core.balancing.backend import Backend
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.process import Below
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.stage import Stage

__all__ = ["Fleet"]


@final
class Fleet:
    """Hold the machines, and restart some if the service is restless."""

    def __init__(
        self,
        stage: Stage,
        config: ServiceConfig,
        *,
        name: str,
        is_lowest: bool,
        delay_seconds: Callable[[int], float],
        make_below: Callable[[int], Below] | None,
    ) -> None:
        self.stage = stage
        self.config = config
        self.name = name
        self.is_lowest = is_lowest
        """Whether its attempts are the ones that are counted."""
        self.delay_seconds = delay_seconds
        """How far away it is from a client task."""
        self._rng = stage.rng(name)
        speeds = _speeds(config, self._rng)
        self.machines = [
            Machine(
                stage,
                config,
                Backend(f"{name}-{index}", index),
                speed=speed,
                make_below=make_below,
            )
            for index, speed in enumerate(speeds)
        ]
        self.machines_by_address = {machine.backend.address: machine for machine in self.machines}
        self.backends = [machine.backend for machine in self.machines]

    def start(self) -> None:
        """Start every backend, warm."""
        for machine in self.machines:
            machine.start(is_warm=True)
        if self.config.restarts is not None:
            self._schedule_restart(self.config.restarts.every_seconds)

    def _schedule_restart(self, every_seconds: float) -> None:
        def restart() -> None:
            self._rng.choice(self.machines).terminate()
            self._schedule_restart(every_seconds)

        self.stage.events.after(self._rng.expovariate(1.0 / every_seconds), restart)


def _speeds(config: ServiceConfig, rng: random.Random) -> list[float]:
    """Return speeds that lie evenly between the slowest and the fastest, in a random order.

    Evenly, so that the capacity does not depend on the seed.
    """
    low, high = config.speeds
    speeds = [low + (high - low) * (i + 0.5) / config.count for i in range(config.count)]
    rng.shuffle(speeds)
    return speeds
