"""Watch that one client task leaves lame ducks alone.

SRE book, chapter 20, "A Robust Approach to Unhealthy Tasks: Lame Duck State": "lame duck
information is propagated quickly to all clients—typically in 1 or 2 RTT—regardless of their current
state".  So whoever has heard must not send any more, and two round trips later all have heard.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

from evenly.core.balancing.health import State
from evenly.core.report import LoadReport
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.stage import Stage

if TYPE_CHECKING:
    from evenly.lab.sim.client import Client

__all__ = ["LameDucks"]


@final
class LameDucks:
    """Remember the lame ducks that a client task has heard of, and see what it sends to them."""

    def __init__(self, client: Client, stage: Stage, *, delay_seconds: float) -> None:
        self._client = client
        self._checkers = stage.checkers
        self._network = stage.network
        self._active_limit = stage.scenario.client_task.active_limit
        self._delay_seconds = delay_seconds
        self._words: dict[str, tuple[int, int]] = {}

    def heard(self, machine: Machine, report: LoadReport) -> None:
        """Hear that a backend is a lame duck: from now on its client task knows."""
        self._words[machine.backend.address] = (report.boot, report.sequence)

    def sent(self, machine: Machine, now: float) -> None:
        """See an attempt sent to a lame duck.

        A client task may do so if it does not know yet, or has nobody else: lame ducks are the last
        resort where no backend is healthy, and before a request is rejected at the limit.
        """
        address = machine.backend.address
        if self._words.get(address) != machine.word and not self._must_know(machine, now):
            return
        if any(
            backend.state is State.HEALTHY
            and backend.in_subset
            and backend.address != address
            and backend.active < self._active_limit
            for backend in self._client.task.snapshot().backends
        ):
            since = machine.lame_duck_since
            self._checkers.sent_to_lame_duck(self._client.name, address, since, now)

    def _must_know(self, machine: Machine, now: float) -> bool:
        """Return whether two round trips have passed since the lame duck could tell this task."""
        process = machine.process
        heard_at = math.inf if process is None else process.clients.get(self._client, math.inf)
        since = max(machine.lame_duck_since, heard_at)
        slowest = self._network.slowest_seconds(self._delay_seconds)
        return now > since + 4.0 * slowest and self._network.was_fine_since(since)
