"""Control what is sent for one customer by what backends answer.

Where backends refuse a customer for its quota, each criticality has its own send probability.  See
`SendProbability` for the formula, and SRE book, chapter 21, "Client-Side Throttling", for the
problem.
"""

from __future__ import annotations

import random
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.overload.send_probability import SendProbability, SendProbabilityConfig

__all__ = ["CustomerGates"]


@final
class CustomerGates:
    """Send each criticality with its own probability, and none more often than a higher one.

    A higher one that is hardly sent learns nothing; so an accept counts for every higher one too:
    it would have been accepted.  Otherwise it would hold all lower ones back for ever.
    """

    __slots__ = ("_forget_seconds", "_heard_at", "_rng", "_sends")

    def __init__(
        self,
        config: SendProbabilityConfig,
        forget_seconds: float,
        *,
        rng: random.Random,
        now: float,
    ) -> None:
        self._sends = [SendProbability(config, now) for _ in Criticality]
        self._forget_seconds = forget_seconds
        self._heard_at = now
        self._rng = rng

    def probability(self, criticality: Criticality) -> float:
        """Return with which probability a request is to be sent."""
        return min(send.value for send in self._sends[criticality:])

    def admit(self, criticality: Criticality, now: float) -> bool:
        """Decide by the send probability."""
        if self.is_normal(now):
            return True
        probability = self.probability(criticality)
        return probability >= 1.0 or self._rng.random() < probability

    def record(self, criticality: Criticality, now: float, *, is_accept: bool) -> None:
        """Raise or lower the send probability."""
        if now - self._heard_at >= self._forget_seconds:
            for send in self._sends:
                send.relax()
        self._heard_at = now
        if not is_accept:
            self._sends[criticality].reject(now)
            return
        self._sends[criticality].accept(now)
        for higher in self._sends[criticality + 1 :]:
            if higher.value < 1.0:
                higher.accept(now)

    def is_normal(self, now: float) -> bool:
        """Return whether everything is sent."""
        return now - self._heard_at >= self._forget_seconds or all(
            send.value >= 1.0 for send in self._sends
        )
