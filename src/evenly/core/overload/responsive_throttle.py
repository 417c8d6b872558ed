"""Throttle by a send probability that falls within a second and is back within three: our default.

SRE book, chapter 21, "Client-Side Throttling", is the problem.  The book's own answer, equation
21-1, takes minutes to forgive, and "may not work well with clients that only very sporadically send
requests".  This one is a controller instead of a memory, listens to the admission bits of load
reports, and asks before it sends where it has heard nothing lately.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Final, final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.customer_throttles import CustomerThrottles
from evenly.core.overload.send_probability import SendProbability, SendProbabilityConfig
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.request import Outcome

__all__ = ["ResponsiveThrottle", "ResponsiveThrottleConfig"]

# ruff: noqa: ARG002 -- every throttle has the same signature.

_ALL: Final = (1 << len(Criticality)) - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsiveThrottleConfig:
    """Set the controller, and what happens where it knows too little."""

    send_probability: SendProbabilityConfig = field(default_factory=SendProbabilityConfig)
    # Reports say nothing about one customer's quota, so its own answers have to lead back, from a
    # fifth: ln 5 / (0.25 · (K − 1) / K) = 12 of them with the book's K, a few seconds at 5 requests
    # a second.  Twice its quota of one customer, half of it refused for little, is no overload.
    customer_send_probability: SendProbabilityConfig = field(
        default_factory=lambda: SendProbabilityConfig(accepts_multiplier=2.0, min_probability=0.2)
    )
    """The same for a customer that is out of quota."""
    send_anyway_seconds: float = 2.0
    """A request goes out whatever the probability if none has for this long.  With very many client
    tasks raise it (1,000 of them: 10 s), or these requests alone are a load."""
    ask_after_seconds: float = 2.0
    """How old a rejection may be and still be believed without asking."""

    def __post_init__(self) -> None:
        check.number("send_anyway_seconds", self.send_anyway_seconds, 0.001, 86_400.0)
        check.number("ask_after_seconds", self.ask_after_seconds, 0.001, 86_400.0)


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
        """The throttle's `_reported_seconds` when a report last did not admit this criticality."""


@final
class ResponsiveThrottle(Throttle):
    """Send each criticality with its own probability; see `SendProbability` for the formula.

    Two rules stand beside it.  *Send anyway*: a request that the probability would refuse goes out
    if none has for 2 s and no report has come either, so that something is always learned.  *Ask
    first*: where the last that was heard is a no, and no request was answered for 2 s, two
    backends are asked before sending, and what they say is done.  A no of theirs is a
    rejection, only cheaper; a probability near 1 would otherwise let the next request out blindly.

    "The last that was heard" is the newest report where there are reports: an accepted request says
    that there was room for it, its report whether there is room for another.
    """

    __slots__ = (
        "_ask_after_seconds",
        "_config",
        "_customers",
        "_gates",
        "_report_max_seconds",
        "_reported_at",
        "_reported_seconds",
        "_rng",
        "_send_anyway_seconds",
        "is_troubled",
    )

    def __init__(self, config: ResponsiveThrottleConfig, *, rng: random.Random, now: float) -> None:
        self._config = config
        self._rng = rng
        self._send_anyway_seconds = config.send_anyway_seconds
        self._ask_after_seconds = config.ask_after_seconds
        self._report_max_seconds = config.send_probability.report_max_seconds
        self._gates = [_Gate(config.send_probability, now) for _ in Criticality]
        self._reported_at = -math.inf
        # The sum of what all reports spoke for: a criticality is held admitted for as much of it as
        # has come since the last no, so that in peace a report is one addition.
        self._reported_seconds = 0.0
        self.is_troubled = False
        self._customers = CustomerThrottles(self._make_for_customer)

    def admit(self, criticality: Criticality, customer: str, now: float) -> bool:
        """Decide by the send probability, or send because nothing has gone out for long."""
        if self._customers.throttles and not self._customers.admit(criticality, customer, now):
            return False
        gate = self._gates[criticality]
        probability = gate.send.value
        if self.is_troubled:
            # Where everything times out, the more frequent criticality learns of it first; it must
            # not be refused more than a lower one for that.
            for higher in self._gates[criticality + 1 :]:
                if higher.send.value < probability:
                    probability = higher.send.value
        if (
            probability >= 1.0
            or self._rng.random() < probability
            or now - max(gate.sent_at, self._reported_at) >= self._send_anyway_seconds
        ):
            gate.sent_at = now
            return True
        return False

    def record(self, criticality: Criticality, customer: str, outcome: Outcome, now: float) -> None:
        """Raise or lower the send probability of this criticality."""
        if outcome.is_accept:
            gate = self._gates[criticality]
            gate.send.accept(now)
            if self.is_troubled:
                self._accept_higher(criticality, now)
            if gate.is_refused and now - self._reported_at > self._ask_after_seconds:
                gate.is_refused = False
            if outcome is Outcome.OUT_OF_QUOTA or self._customers.throttles:
                self._customers.record(criticality, customer, outcome, now)
        elif outcome.is_overload:
            self._reject(self._gates[criticality], now)

    def record_report(self, admits: int, now: float) -> None:
        """Raise the send probability of every criticality that is, and stays, admitted."""
        seconds = now - self._reported_at
        if seconds > 0.0:
            self._reported_at = now
            if seconds > self._report_max_seconds:
                seconds = self._report_max_seconds
        else:
            seconds = 0.0
        reported_seconds = self._reported_seconds = self._reported_seconds + seconds
        if admits == _ALL and not self.is_troubled:
            return
        is_troubled = False
        for gate in self._gates:
            if admits & 1:
                gate.is_refused = False
                if gate.send.value < 1.0:
                    gate.send.admit(seconds, reported_seconds - gate.held_from)
                    is_troubled = True
            else:
                gate.is_refused = True
                gate.held_from = reported_seconds
                is_troubled = True
            admits >>= 1
        self.is_troubled = is_troubled

    def should_ask(self, criticality: Criticality, now: float) -> bool:
        """Return whether the last that was heard is a no, and no answer of our own is recent.

        A report does not count as recent here: health checks bring one every second, from one
        backend each, and would otherwise stop a client that seldom sends from ever asking.
        """
        gate = self._gates[criticality]
        return gate.is_refused and now - gate.send.answered_at > self._ask_after_seconds

    def admit_asked(
        self,
        criticality: Criticality,
        customer: str,
        admits: int | None,
        now: float,
        *,
        is_admitted: bool = False,
    ) -> bool:
        """Do as the backends say; where none has answered, as if nobody had asked."""
        if admits is None:
            return is_admitted or self.admit(criticality, customer, now)
        if (
            self._customers.throttles
            and not is_admitted
            and not self._customers.admit(criticality, customer, now)
        ):
            return False
        gate = self._gates[criticality]
        # An answer tells what a request sent anyway would have told, at a lower price.
        gate.sent_at = now
        if admits >> criticality & 1:
            return True
        self._reject(gate, now)
        return False

    def is_normal(self, now: float) -> bool:
        """Return whether everything is sent."""
        return not self._customers.throttles and all(gate.send.value >= 1.0 for gate in self._gates)

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show how likely each criticality is rejected: no less than any higher one."""
        sent = [gate.send.value for gate in self._gates]
        return ThrottleSnapshot(
            rejection_probabilities=tuple(1.0 - min(sent[level:]) for level in range(len(sent))),
            throttled_customers=tuple(self._customers.throttles),
        )

    def _accept_higher(self, criticality: Criticality, now: float) -> None:
        """Let an accept count for every higher criticality too: it would have been accepted.

        Otherwise one that is no longer sent would hold all lower ones back for ever.
        """
        for higher in self._gates[criticality + 1 :]:
            if higher.send.value < 1.0:
                higher.send.accept(now)
        self.is_troubled = any(gate.is_refused or gate.send.value < 1.0 for gate in self._gates)

    def _reject(self, gate: _Gate, now: float) -> None:
        gate.send.reject(now)
        gate.is_refused = True
        self.is_troubled = True

    def _make_for_customer(self, now: float) -> Throttle:
        config = replace(self._config, send_probability=self._config.customer_send_probability)
        return ResponsiveThrottle(config, rng=self._rng, now=now)
