"""Several datacenters: each origin's requests are shared out by `evenly.core`'s waterfall.

The shared state (who demands what, who has what) is known to everyone after `_EVERY_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from evenly.core.balancing.datacenter import approach, waterfall
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.client import Client
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.job import Call
from evenly.lab.sim.stage import Stage

__all__ = ["DatacenterSender", "Datacenters"]

_EVERY_SECONDS = 1.0


@final
class Datacenters:
    """Count each origin's demand, and move its shares once a second."""

    def __init__(self, stage: Stage, fleets: Mapping[str, Fleet]) -> None:
        self._stage = stage
        self._fleets = fleets
        self._config = stage.scenario.datacenter
        self._cost_seconds = stage.scenario.backends.cost.mean_seconds
        self._requests = dict.fromkeys(fleets, 0)
        # Everyone begins at home.
        self._shares: dict[str, dict[str, float]] = {name: {name: 1.0} for name in fleets}
        self._distance = {
            origin: {name: 0.0 if name == origin else 1.0 for name in fleets} for origin in fleets
        }
        stage.events.after(_EVERY_SECONDS, self._update)

    def choose(self, origin: str, luck: float) -> str:
        """Return where one request of this origin goes."""
        self._requests[origin] += 1
        for name, share in self._shares[origin].items():
            luck -= share
            if luck < 0.0:
                return name
        return origin  # The shares' sum is 1 but for rounding.

    def _update(self) -> None:
        demand = {
            origin: count * self._cost_seconds / _EVERY_SECONDS
            for origin, count in self._requests.items()
        }
        self._requests = dict.fromkeys(self._fleets, 0)
        capacity = {name: _capacity(fleet) for name, fleet in self._fleets.items()}
        if any(capacity.values()):
            target = waterfall(demand, capacity, self._distance, config=self._config)
            step = self._config.max_step_ratio
            self._shares = approach(self._shares, target, max_step_ratio=step)
        self._stage.events.after(_EVERY_SECONDS, self._update)


@final
class DatacenterSender:
    """Send one process's requests to the datacenter that is their turn."""

    def __init__(
        self, datacenters: Datacenters, origin: str, clients: Mapping[str, Client], luck: float
    ) -> None:
        self._datacenters = datacenters
        self._origin = origin
        self._clients = clients
        # A golden-ratio walk spreads evenly over any shares, and needs no generator.
        self._luck = luck

    def start(self) -> None:
        """Start the client task of every datacenter."""
        for client in self._clients.values():
            client.start()

    def retire(self) -> None:
        """Send nothing more."""
        for client in self._clients.values():
            client.retire()

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request."""
        self._luck = (self._luck + 0.6180339887498949) % 1.0
        name = self._datacenters.choose(self._origin, self._luck)
        self._clients[name].issue(request, on_end)


def _capacity(fleet: Fleet) -> float:
    """Return the CPU seconds per second of the backends that are healthy."""
    return sum(m.speed * m.config.cores for m in fleet.machines if m.is_healthy)
