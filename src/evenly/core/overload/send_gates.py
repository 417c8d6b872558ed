"""Control what is sent of each criticality by what backends answer and report.

The controller of `ResponsiveThrottle` where backends report, and of its customers.  See
`SendProbability` for the formula, and SRE book, chapter 21, "Client-Side Throttling", for the
problem.
"""

from __future__ import annotations

import math
import random
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.overload.send_probability import SendProbability, SendProbabilityConfig

__all__ = ["CustomerGates", "SendGates"]


@final
class _Gate:
    """Hold the state of one criticality."""

    __slots__ = ("held_from", "is_refused", "send", "sent_at")

    def __init__(self, config: SendProbabilityConfig, now: float) -> None:
        self.send = SendProbability(config, now)
        self.sent_at = -math.inf
        self.is_refused = False
        """Whether the last that was heard of this criticality was a no."""
        self.held_from = 0.0
        """The sum of what reports spoke for when one last did not admit this criticality."""


@final
class SendGates:
    """Send each criticality with its own probability, and none more often than a higher one.

    A higher one that is hardly sent learns nothing; so an accept counts for every higher one too:
    it would have been accepted.  Otherwise it would hold all lower ones back for ever.
    """

    __slots__ = ("_gates", "are_troubled", "sends")

    def __init__(self, config: SendProbabilityConfig, now: float) -> None:
        self._gates = [_Gate(config, now) for _ in Criticality]
        self.sends = [gate.send for gate in self._gates]
        """What `accept` tells first, and all that it tells while nothing is troubled."""
        self.are_troubled = False
        """Whether any probability is below 1, or the last that was heard of one is a no."""

    def probability(self, criticality: Criticality) -> float:
        """Return with which probability a request is to be sent."""
        probability = self._gates[criticality].send.value
        for higher in self._gates[criticality + 1 :]:
            if higher.send.value < probability:
                probability = higher.send.value
        return probability

    def is_refused(self, criticality: Criticality) -> bool:
        """Return whether the last that was heard of this criticality is a no."""
        return self._gates[criticality].is_refused

    def may_refuse(self, criticality: Criticality) -> bool:
        """Return whether the last that was heard of this or a higher criticality is a no."""
        return any(gate.is_refused for gate in self._gates[criticality:])

    def answered_at(self, criticality: Criticality) -> float:
        """Return when a request was last answered; before the first, when this was made."""
        return self._gates[criticality].send.answered_at

    def sent_at(self, criticality: Criticality) -> float:
        """Return when `send` was last called."""
        return self._gates[criticality].sent_at

    def send(self, criticality: Criticality, now: float) -> None:
        """Note that a request goes out, or that backends were asked in its place."""
        self._gates[criticality].sent_at = now

    def accept(self, criticality: Criticality, now: float, *, is_news: bool) -> None:
        """Learn of an accept; `is_news` says that nothing newer speaks of room for another."""
        gate = self._gates[criticality]
        gate.send.accept(now)
        if self.are_troubled:
            if is_news:
                gate.is_refused = False
            for higher in self._gates[criticality + 1 :]:
                if higher.send.value < 1.0:
                    higher.send.accept(now)
            self.are_troubled = any(
                gate.is_refused or gate.send.value < 1.0 for gate in self._gates
            )

    def reject(self, criticality: Criticality, now: float) -> None:
        """Learn of a rejection."""
        gate = self._gates[criticality]
        gate.send.reject(now)
        gate.is_refused = True
        self.are_troubled = True

    def report(self, admits: int, seconds: float, reported_seconds: float) -> None:
        """Learn which criticalities a report admits, and that it speaks for so many seconds.

        `reported_seconds` is the sum of what all reports spoke for.  A criticality is held admitted
        for as much of it as has come since the last no: so in peace a report is one addition.
        """
        are_troubled = False
        for gate in self._gates:
            if admits & 1:
                gate.is_refused = False
                if gate.send.value < 1.0:
                    gate.send.admit(seconds, reported_seconds - gate.held_from)
                    are_troubled = True
            else:
                gate.is_refused = True
                gate.held_from = reported_seconds
                are_troubled = True
            admits >>= 1
        self.are_troubled = are_troubled

    def relax(self) -> None:
        """Hold nothing against requests any more; whether to ask first is another matter."""
        for gate in self._gates:
            gate.send.relax()
        self.are_troubled = any(gate.is_refused for gate in self._gates)


@final
class CustomerGates:
    """Throttle one customer, by the controller without reports: these say nothing of quotas."""

    __slots__ = ("_forget_seconds", "_gates", "_heard_at", "_rng")

    def __init__(
        self,
        config: SendProbabilityConfig,
        forget_seconds: float,
        *,
        rng: random.Random,
        now: float,
    ) -> None:
        self._gates = SendGates(config, now)
        self._forget_seconds = forget_seconds
        self._heard_at = now
        self._rng = rng

    def admit(self, criticality: Criticality, now: float) -> bool:
        """Decide by the send probability."""
        if self.is_normal(now):
            return True
        probability = self._gates.probability(criticality)
        return probability >= 1.0 or self._rng.random() < probability

    def record(self, criticality: Criticality, now: float, *, is_accept: bool) -> None:
        """Raise or lower the send probability."""
        if now - self._heard_at >= self._forget_seconds:
            self._gates.relax()
        self._heard_at = now
        if is_accept:
            self._gates.accept(criticality, now, is_news=True)
        else:
            self._gates.reject(criticality, now)

    def is_normal(self, now: float) -> bool:
        """Return whether everything is sent."""
        return now - self._heard_at >= self._forget_seconds or all(
            self._gates.probability(criticality) >= 1.0 for criticality in Criticality
        )
