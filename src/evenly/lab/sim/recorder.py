"""Count what happens in a run, second by second."""

from __future__ import annotations

from array import array
from typing import final

from evenly.core.criticality import Criticality
from evenly.lab.sim.events import Events

__all__ = ["Recorder", "Second"]


@final
class Second:
    """Hold the counts of one simulated second.

    What became of a request is counted in the second in which it began, everything else in the
    second in which it happened.
    """

    __slots__ = (
        "attempts",
        "completed",
        "connections",
        "customers",
        "latencies",
        "offered",
        "probes",
        "refused",
        "rejected",
        "seldom_offered",
        "seldom_succeeded",
        "succeeded",
        "throttled",
        "users",
    )

    def __init__(self) -> None:
        self.offered = [0] * len(Criticality)
        self.succeeded = [0] * len(Criticality)
        self.refused = [0] * len(Criticality)
        """Requests that came to nothing because somebody refused them."""
        self.seldom_offered = [0] * len(Criticality)
        self.seldom_succeeded = [0] * len(Criticality)
        """Of these, those of client tasks that send seldom, where some send oftener."""
        self.latencies = array("d")
        """Of those that succeeded."""
        self.customers: dict[str, list[int]] = {}
        """Offered and succeeded, by customer, where there are several."""
        self.users: dict[Criticality, list[int]] = {}
        """Users offered and wholly served, where each makes several calls."""
        self.completed = 0
        """Requests that succeeded, whenever they began: goodput is work done in time."""
        self.attempts = 0
        self.probes = 0
        self.throttled = 0
        self.rejected = 0
        self.connections = 0


@final
class Recorder:
    """Keep one `Second` after another."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.seconds: list[Second] = []
        self.second = Second()
        """The current one."""
        self._turn()

    def _turn(self) -> None:
        self.second = Second()
        self.seconds.append(self.second)
        # Counted rather than added up, so that no rounding accumulates.
        self._events.at(float(len(self.seconds)), self._turn)
