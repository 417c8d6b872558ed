"""A probe on its way, and a request that waits for probes before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from evenly.core.attempt import Ask
from evenly.core.exchange import Exchange, Step
from evenly.core.report import LoadReport
from evenly.lab.sim.events import Events
from evenly.lab.sim.machine import Machine

__all__ = ["Probe", "Prober", "Wait"]


class Prober(Protocol):
    """Be who sends probes."""

    def answer_probe(self, probe: Probe) -> None:
        """Let a backend's answer travel back."""

    def probe_came_back(self, probe: Probe) -> None:
        """Receive the answer."""


@final
class Probe:
    """Be one question by UDP."""

    __slots__ = ("_prober", "machine", "report", "wait")

    def __init__(self, prober: Prober, machine: Machine, wait: Wait | None) -> None:
        self._prober = prober
        self.machine = machine
        self.wait = wait
        self.report: LoadReport | None = None

    def reach(self) -> None:
        """Arrive at the backend, which answers if it runs."""
        process = self.machine.process
        if process is not None and self.machine.answers_probes:
            self.report = process.answer_probe()
            if self.report is not None:
                self._prober.answer_probe(self)

    def come_back(self) -> None:
        """Arrive at the client task."""
        self._prober.probe_came_back(self)


@final
class Wait:
    """Hold a request back until its probes are answered, or long enough."""

    __slots__ = ("_exchange", "_go_on", "_is_over", "_left")

    def __init__(
        self, events: Events, exchange: Exchange, ask: Ask, go_on: Callable[[Step], None]
    ) -> None:
        self._exchange = exchange
        self._go_on = go_on
        self._left = len(ask.views)
        self._is_over = False
        events.after(ask.wait_seconds, self._resume)

    def answered(self) -> None:
        """See one answer come."""
        self._left -= 1
        if self._left == 0:
            self._resume()

    def _resume(self) -> None:
        if not self._is_over:
            self._is_over = True
            if not self._exchange.is_over:  # Its deadline may have passed meanwhile.
                self._go_on(self._exchange.probed())
