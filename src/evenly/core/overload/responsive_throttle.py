"""Throttle by what backends report, and by the book where nobody reports: our default.

SRE book, chapter 21, "Client-Side Throttling", is the problem.  The book's own answer, equation
21-1, takes minutes to forgive, and "may not work well with clients that only very sporadically send
requests".  Where backends report where they cut, a request that would be refused is not sent: that
is known within a tenth of a second, and forgotten as soon.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottleConfig
from evenly.core.overload.customer_gates import CustomerGates
from evenly.core.overload.customer_throttles import CustomerThrottles
from evenly.core.overload.equation import Equation
from evenly.core.overload.line import Line
from evenly.core.overload.send_probability import SendProbabilityConfig
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.overload.timeouts import Timeouts
from evenly.core.request import Cause, Outcome

__all__ = ["ResponsiveThrottle", "ResponsiveThrottleConfig"]


@final
@check.gone({"send_probability": "the line of reports is in its place, and has no setting"})
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsiveThrottleConfig:
    """Set the throttle of customers, the book's, and what happens where little is known."""

    # Reports say nothing about one customer's quota, so its own answers have to lead back, from a
    # fifth: ln 5 / (0.25 · (K − 1) / K) = 12 of them with the book's K, a few seconds at 5 requests
    # a second.  Twice its quota of one customer, half of it refused for little, is no overload.
    customer_send_probability: SendProbabilityConfig = field(
        default_factory=lambda: SendProbabilityConfig(accepts_multiplier=2.0, min_probability=0.2)
    )
    """How a customer is held back that is out of quota."""
    unreported: AdaptiveThrottleConfig = field(default_factory=AdaptiveThrottleConfig)
    """Equation 21-1, for rejections where nobody reports, and for timeouts."""
    forget_seconds: float = 60.0
    """After so long without a report, nobody reports; after so long without any news, nothing is
    held against a request."""
    send_anyway_seconds: float = 2.0
    """A request goes out, whatever was heard before, if nothing has been heard for this long.  With
    very many client tasks raise it (1,000 of them: 10 s), or these requests alone are a load."""
    ask_after_seconds: float = 2.0
    """For how long an answer of one's own makes it needless to ask backends before what may be in
    vain, and how old a report may be that speaks against timeouts."""

    def __post_init__(self) -> None:
        check.number("forget_seconds", self.forget_seconds, 0.001, 86_400.0)
        check.number("send_anyway_seconds", self.send_anyway_seconds, 0.001, 86_400.0)
        check.number("ask_after_seconds", self.ask_after_seconds, 0.001, 86_400.0)


@final
class ResponsiveThrottle(Throttle):
    """Throttle by the line of reports or by the book, timeouts and customers beside it.

    *Rejections*: while a report has come within `forget_seconds`, what is below the line is held
    back; else equation 21-1 decides.  *Timeouts*: by `Timeouts`, unless a fresh report admits the
    criticality: who has room does not answer sooner for being sent less.  *Quota*: by customer.

    Two rules stand beside the line.  *Ask first*: where the last that was heard is a no, and no
    request was answered for 2 s, two backends are asked before sending, and what they say is done.
    A no of theirs is a rejection, only cheaper; the line of long ago would be as wrong as no line.
    *Send anyway*: where nothing was heard for 2 s either, the request goes out, so that something
    is always learned.
    """

    __slots__ = (
        "_answered_at",
        "_ask_after_seconds",
        "_config",
        "_customers",
        "_equation",
        "_forget_seconds",
        "_heard_at",
        "_line",
        "_rng",
        "_sent_at",
        "_timeouts",
        "cause",
        "is_troubled",
    )

    def __init__(self, config: ResponsiveThrottleConfig, *, rng: random.Random, now: float) -> None:
        self._config = config
        self._rng = rng
        self._ask_after_seconds = config.ask_after_seconds
        self._forget_seconds = config.forget_seconds
        self._line = Line(config.send_anyway_seconds)
        # Made when they are first needed: many a client task never needs either.
        self._equation: Equation | None = None
        self._timeouts: Timeouts | None = None
        self._customers = CustomerThrottles(self._make_for_customer)
        self._heard_at = now
        self._answered_at = now
        self._sent_at = -math.inf
        self.is_troubled = False
        self.cause = Cause.REJECTIONS

    def line(self, now: float) -> float:
        """Return the level below which nothing is sent."""
        return self._line.value if self._line.is_fresh(now) else 0.0

    def admit(
        self, level: float, customer: str, now: float, seconds_left: float = math.inf
    ) -> bool:
        """Decide by what is known of quota, rejections and timeouts."""
        if not self.is_troubled:
            return True
        criticality = Criticality(int(level))
        if self._customers.throttles and not self._customers.admit(criticality, customer, now):
            self.cause = Cause.QUOTA
            return False
        if now - max(self._heard_at, self._line.heard_at) >= self._forget_seconds:
            self._forget()
            return True
        if level < self.line(now):
            self._heard_at = now
            self.cause = Cause.REJECTIONS
            return False
        is_reported = self._is_reported(now)
        rejected = 0.0
        if self._equation is not None and not is_reported:
            rejected = self._equation.rejection_probability(criticality, now)
        late = self._timeout_probability(criticality, seconds_left, now)
        draw = 1.0
        if rejected > 0.0 or late > 0.0:
            draw = self._rng.random()
        if (draw >= rejected and draw >= late) or (is_reported and self._is_too_long_ago(now)):
            self._sent_at = now
            return True
        # It has no end that could be recorded, so this is where it counts.
        self._heard_at = now
        self.cause = Cause.REJECTIONS if draw < rejected else Cause.TIMEOUTS
        if draw < rejected and self._equation is not None:
            self._equation.reject(criticality, now)
        if draw < late and self._timeouts is not None:
            self._timeouts.be_late(criticality, seconds_left, now)
        return False

    def record(
        self,
        criticality: Criticality,
        customer: str,
        outcome: Outcome,
        now: float,
        allowed_seconds: float = math.inf,
    ) -> None:
        """Count a request whose end says something, and what it says."""
        if outcome.is_accept:
            self._answered_at = now
            if now - self._line.heard_at >= self._forget_seconds:
                (self._equation or self._new_equation()).accept(criticality, now)
            if self.is_troubled or outcome is Outcome.OUT_OF_QUOTA:
                self._accept_in_trouble(criticality, customer, outcome, now)
        elif outcome is Outcome.TIMEOUT:
            self._be_late(criticality, allowed_seconds, now)
        elif outcome.is_overload:
            self._reject(criticality, now)

    def record_report(self, cut: float, now: float) -> None:
        """Learn where a backend cuts."""
        line = self._line
        if now - line.heard_at >= self._forget_seconds:
            self._equation = None  # From now on reports are what counts.
        line.record(cut, now)
        if cut or self.is_troubled:
            self.is_troubled = self._is_trouble(now)

    def should_ask(self, level: float, now: float) -> bool:
        """Return whether the last that was heard is a no, and no answer of our own is recent.

        A report does not count as recent here: health checks bring one every second, from one
        backend each, and would otherwise stop a client that seldom sends from ever asking.
        """
        line = self._line
        return (
            line.is_raised
            and level < max(line.value, line.last)
            and now - self._answered_at > self._ask_after_seconds
        )

    def admit_asked(
        self,
        level: float,
        customer: str,
        cut: float | None,
        now: float,
        seconds_left: float = math.inf,
        *,
        is_admitted: bool = False,
    ) -> bool:
        """Do as the backends say; where none has answered, as if nobody had asked."""
        if cut is None:
            return is_admitted or self.admit(level, customer, now, seconds_left)
        # An answer tells what a request sent in vain would have told, at a lower price.
        self._answered_at = now
        if (
            self._customers.throttles
            and not is_admitted
            and not self._customers.admit(Criticality(int(level)), customer, now)
        ):
            self.cause = Cause.QUOTA
            return False
        if level >= cut:
            return True
        self.cause = Cause.REJECTIONS
        return False

    def is_normal(self, now: float) -> bool:
        """Return whether everything is sent."""
        shown = self.snapshot(now)
        return not (shown.line or shown.throttled_customers or any(shown.rejection_probabilities))

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show how likely each criticality is rejected that does not wait for long."""
        line = self.line(now)
        probabilities = [0.0] * len(Criticality)
        if now - max(self._heard_at, self._line.heard_at) < self._forget_seconds:
            probabilities = [
                max(
                    min(1.0, max(0.0, line - criticality)),
                    self._rejection_probability(criticality, now),
                    self._timeout_probability(criticality, 0.0, now),
                )
                for criticality in Criticality
            ]
        return ThrottleSnapshot(
            line=line,
            rejection_probabilities=tuple(probabilities),
            throttled_customers=self._customers.throttled(now),
        )

    # What ends say.

    def _accept_in_trouble(
        self, criticality: Criticality, customer: str, outcome: Outcome, now: float
    ) -> None:
        self._heard_at = now
        if self._timeouts is not None:
            self._timeouts.accept(criticality, now)
        if outcome is Outcome.OUT_OF_QUOTA or self._customers.throttles:
            self._customers.record(criticality, customer, outcome, now)
        self.is_troubled = self._is_trouble(now)

    def _reject(self, criticality: Criticality, now: float) -> None:
        self._heard_at = self._answered_at = now
        if self._timeouts is not None:
            self._timeouts.reject(criticality, now)
        if not self._is_reported(now):  # Else the reports say it, and better.
            self.is_troubled = True
            (self._equation or self._new_equation()).reject(criticality, now)

    def _be_late(self, criticality: Criticality, allowed_seconds: float, now: float) -> None:
        self._heard_at = now
        self.is_troubled = True
        if self._timeouts is None:
            config = self._config.unreported
            self._timeouts = Timeouts(config.accepts_multiplier, config.window_seconds)
        self._timeouts.be_late(criticality, allowed_seconds, now)

    def _new_equation(self) -> Equation:
        equation = self._equation = self._config.unreported.equation()
        return equation

    # What is known now.

    def _is_reported(self, now: float) -> bool:
        return now - self._line.heard_at < self._forget_seconds

    def _rejection_probability(self, criticality: Criticality, now: float) -> float:
        if self._equation is None or self._is_reported(now):
            return 0.0
        return self._equation.rejection_probability(criticality, now)

    def _timeout_probability(
        self, criticality: Criticality, seconds_left: float, now: float
    ) -> float:
        if self._timeouts is None:
            return 0.0
        is_fresh = now - self._line.heard_at <= self._ask_after_seconds
        if is_fresh and self._line.last <= criticality:
            return 0.0
        return self._timeouts.rejection_probability(criticality, seconds_left, now)

    def _is_too_long_ago(self, now: float) -> bool:
        last = max(self._sent_at, self._answered_at, self._line.heard_at)
        return now - last >= self._config.send_anyway_seconds

    def _is_trouble(self, now: float) -> bool:
        if self._timeouts is not None and self._timeouts.are_over(now):
            self._timeouts = None
        return (
            self._line.is_raised
            or self._timeouts is not None
            or bool(self._customers.throttles)
            or not (self._equation is None or self._equation.is_normal(now))
        )

    # What time does.

    def _forget(self) -> None:
        self._equation = None
        self._timeouts = None
        self._line = Line(self._config.send_anyway_seconds)
        self.is_troubled = bool(self._customers.throttles)

    def _make_for_customer(self, now: float) -> CustomerGates:
        config = self._config
        return CustomerGates(
            config.customer_send_probability, config.forget_seconds, rng=self._rng, now=now
        )
