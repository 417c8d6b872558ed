"""What everyone in a simulated world shares: its time, its network, who counts and who watches."""

from __future__ import annotations

import random
from typing import final

from evenly.core.observer import NO_OBSERVER, Observer
from evenly.lab.sim.checkers import Checkers
from evenly.lab.sim.events import Events
from evenly.lab.sim.network import Network
from evenly.lab.sim.recorder import Recorder
from evenly.lab.sim.scenario import Scenario

__all__ = ["Stage"]


@final
class Stage:
    """Hold one run's shared parts."""

    __slots__ = ("checkers", "events", "network", "observer", "recorder", "scenario", "seed")

    def __init__(self, scenario: Scenario, seed: int, observer: Observer = NO_OBSERVER) -> None:
        self.scenario = scenario
        self.seed = seed
        self.observer = observer
        """Who is told what the façades decide."""
        self.events = Events()
        self.network = Network(scenario.network)
        self.recorder = Recorder(self.events)
        self.checkers = Checkers(scenario)

    def rng(self, actor: str) -> random.Random:
        """Return an actor's own luck: another actor does not shift it."""
        return random.Random(f"{self.seed}/{actor}")
