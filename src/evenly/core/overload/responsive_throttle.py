"""Throttle by what backends report, and by the book where nobody reports: our default.

SRE book, chapter 21, "Client-Side Throttling", is the problem.  The book's own answer, equation
21-1, takes minutes to forgive, and "may not work well with clients that only very sporadically send
requests".  Where backends report, a controller stands in its place, whose send probability falls
within a second and is back within three.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Final, final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottleConfig
from evenly.core.overload.customer_throttles import CustomerThrottles
from evenly.core.overload.equation import Equation
from evenly.core.overload.send_gates import CustomerGates, SendGates
from evenly.core.overload.send_probability import SendProbabilityConfig
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.overload.timeouts import Timeouts
from evenly.core.request import Cause, Outcome

__all__ = ["ResponsiveThrottle", "ResponsiveThrottleConfig"]

_ALL: Final = (1 << len(Criticality)) - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsiveThrottleConfig:
    """Set the controller, the book's throttle beside it, and what happens where it knows little."""

    send_probability: SendProbabilityConfig = field(default_factory=SendProbabilityConfig)
    # Reports say nothing about one customer's quota, so its own answers have to lead back, from a
    # fifth: ln 5 / (0.25 · (K − 1) / K) = 12 of them with the book's K, a few seconds at 5 requests
    # a second.  Twice its quota of one customer, half of it refused for little, is no overload.
    customer_send_probability: SendProbabilityConfig = field(
        default_factory=lambda: SendProbabilityConfig(accepts_multiplier=2.0, min_probability=0.2)
    )
    """The same for a customer that is out of quota."""
    unreported: AdaptiveThrottleConfig = field(default_factory=AdaptiveThrottleConfig)
    """Equation 21-1, for rejections where nobody reports, and for timeouts."""
    forget_seconds: float = 60.0
    """After so long without a report, nobody reports; after so long without any news, nothing is
    held against a request."""
    send_anyway_seconds: float = 2.0
    """A request goes out whatever the probability if none has for this long.  With very many client
    tasks raise it (1,000 of them: 10 s), or these requests alone are a load."""
    ask_after_seconds: float = 2.0
    """How old a rejection may be and still be believed without asking, and how old a report that
    admits, to speak against timeouts."""

    def __post_init__(self) -> None:
        check.number("forget_seconds", self.forget_seconds, 0.001, 86_400.0)
        check.number("send_anyway_seconds", self.send_anyway_seconds, 0.001, 86_400.0)
        check.number("ask_after_seconds", self.ask_after_seconds, 0.001, 86_400.0)


@final
class ResponsiveThrottle(Throttle):
    """Throttle rejections by the controller or by the book, timeouts and customers beside it.

    *Rejections*: while a report has come within `forget_seconds`, by `SendGates`; else by equation
    21-1.  *Timeouts*: by `Timeouts`, unless a fresh report admits the criticality: who has room
    does not answer sooner for being sent less.  *Quota*: by customer.

    Two rules stand beside the controller.  *Send anyway*: a request that the probability would
    refuse goes out if none has for 2 s and no report has come either, so that something is always
    learned.  *Ask first*: where the last that was heard is a no, and no request was answered for
    2 s, two backends are asked before sending, and what they say is done.  A no of theirs is a
    rejection, only cheaper; a probability near 1 would otherwise let the next request out blindly.

    "The last that was heard" is the newest report where there are reports: an accepted request says
    that there was room for it, its report whether there is room for another.
    """

    __slots__ = (
        "_ask_after_seconds",
        "_config",
        "_customers",
        "_equation",
        "_forget_seconds",
        "_gates",
        "_heard_at",
        "_report_max_seconds",
        "_reported_at",
        "_reported_seconds",
        "_rng",
        "_sends",
        "_timeouts",
        "cause",
        "is_troubled",
    )

    def __init__(self, config: ResponsiveThrottleConfig, *, rng: random.Random, now: float) -> None:
        self._config = config
        self._rng = rng
        self._ask_after_seconds = config.ask_after_seconds
        self._forget_seconds = config.forget_seconds
        self._report_max_seconds = config.send_probability.report_max_seconds
        self._gates = SendGates(config.send_probability, now)
        self._sends = self._gates.sends  # In peace an accept is told them directly.
        # Made when they are first needed: many a client task never needs either.
        self._equation: Equation | None = None
        self._timeouts: Timeouts | None = None
        self._customers = CustomerThrottles(self._make_for_customer)
        self._heard_at = now
        self._reported_at = -math.inf
        # The sum of what all reports spoke for.
        self._reported_seconds = 0.0
        self.is_troubled = False
        self.cause = Cause.REJECTIONS

    def admit(
        self,
        criticality: Criticality,
        customer: str,
        now: float,
        seconds_left: float = math.inf,
    ) -> bool:
        """Decide by what is known of quota, rejections and timeouts."""
        if not self.is_troubled:
            return True
        if self._customers.throttles and not self._customers.admit(criticality, customer, now):
            self.cause = Cause.QUOTA
            return False
        if now - max(self._heard_at, self._reported_at) >= self._forget_seconds:
            self._forget()
            return True
        rejected = self._rejection_probability(criticality, now)
        late = self._timeout_probability(criticality, seconds_left, now)
        draw = 1.0
        if rejected > 0.0 or late > 0.0:
            draw = self._rng.random()
        if draw >= rejected and draw >= late:
            self._gates.send(criticality, now)
            return True
        is_reported = self._is_reported(now)
        if is_reported and self._is_too_long_ago(criticality, now):
            self._gates.send(criticality, now)
            return True
        # It has no end that could be recorded, so this is where it counts.
        self._heard_at = now
        self.cause = Cause.REJECTIONS if draw < rejected else Cause.TIMEOUTS
        if draw < rejected and self._equation is not None and not is_reported:
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
            if now - self._reported_at >= self._forget_seconds:
                (self._equation or self._new_equation()).accept(criticality, now)
            elif not self.is_troubled:
                self._sends[criticality].accept(now)
            if self.is_troubled or outcome is Outcome.OUT_OF_QUOTA:
                self._accept_in_trouble(criticality, customer, outcome, now)
        elif outcome is Outcome.TIMEOUT:
            self._be_late(criticality, allowed_seconds, now)
        elif outcome.is_overload:
            self._reject(criticality, now)

    def record_report(self, admits: int, now: float) -> None:
        """Raise the send probability of every criticality that is, and stays, admitted."""
        seconds = now - self._reported_at
        if seconds > 0.0:
            self._reported_at = now
            if seconds > self._report_max_seconds:
                if seconds >= self._forget_seconds:
                    self._begin_reports()
                seconds = self._report_max_seconds
        else:
            seconds = 0.0
        reported_seconds = self._reported_seconds = self._reported_seconds + seconds
        if admits == _ALL and not self.is_troubled:
            return
        self._gates.report(admits, seconds, reported_seconds)
        self.is_troubled = self._is_trouble(now)

    def should_ask(self, criticality: Criticality, now: float) -> bool:
        """Return whether the last that was heard is a no, and no answer of our own is recent.

        A report does not count as recent here: health checks bring one every second, from one
        backend each, and would otherwise stop a client that seldom sends from ever asking.
        """
        gates = self._gates
        return (
            gates.is_refused(criticality)
            and now - gates.answered_at(criticality) > self._ask_after_seconds
        )

    def admit_asked(
        self,
        criticality: Criticality,
        customer: str,
        admits: int | None,
        now: float,
        seconds_left: float = math.inf,
        *,
        is_admitted: bool = False,
    ) -> bool:
        """Do as the backends say; where none has answered, as if nobody had asked."""
        if admits is None:
            return is_admitted or self.admit(criticality, customer, now, seconds_left)
        if (
            self._customers.throttles
            and not is_admitted
            and not self._customers.admit(criticality, customer, now)
        ):
            self.cause = Cause.QUOTA
            return False
        # An answer tells what a request sent anyway would have told, at a lower price.
        self._gates.send(criticality, now)
        if admits >> criticality & 1:
            return True
        self._gates.reject(criticality, now)
        self.is_troubled = True
        self.cause = Cause.REJECTIONS
        return False

    def is_normal(self, now: float) -> bool:
        """Return whether everything is sent."""
        shown = self.snapshot(now)
        return not shown.throttled_customers and not any(shown.rejection_probabilities)

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show how likely each criticality is rejected that does not wait for long."""
        probabilities = [0.0] * len(Criticality)
        if now - max(self._heard_at, self._reported_at) < self._forget_seconds:
            probabilities = [
                max(
                    self._rejection_probability(criticality, now),
                    self._timeout_probability(criticality, 0.0, now),
                )
                for criticality in Criticality
            ]
        return ThrottleSnapshot(
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
        # Without reports they may still be troubled, by reports of long ago.
        if self.is_troubled and (self._is_reported(now) or self._gates.are_troubled):
            is_news = now - self._reported_at > self._ask_after_seconds
            self._gates.accept(criticality, now, is_news=is_news)
        if outcome is Outcome.OUT_OF_QUOTA or self._customers.throttles:
            self._customers.record(criticality, customer, outcome, now)
        self.is_troubled = self._is_trouble(now)

    def _reject(self, criticality: Criticality, now: float) -> None:
        self._heard_at = now
        self.is_troubled = True
        if self._timeouts is not None:
            self._timeouts.reject(criticality, now)
        if self._is_reported(now):
            self._gates.reject(criticality, now)
        else:
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
        return now - self._reported_at < self._forget_seconds

    def _rejection_probability(self, criticality: Criticality, now: float) -> float:
        if self._is_reported(now):
            return 1.0 - self._gates.probability(criticality)
        if self._equation is None:
            return 0.0
        return self._equation.rejection_probability(criticality, now)

    def _timeout_probability(
        self, criticality: Criticality, seconds_left: float, now: float
    ) -> float:
        if self._timeouts is None:
            return 0.0
        is_fresh = now - self._reported_at <= self._ask_after_seconds
        if is_fresh and not self._gates.may_refuse(criticality):
            return 0.0
        return self._timeouts.rejection_probability(criticality, seconds_left, now)

    def _is_too_long_ago(self, criticality: Criticality, now: float) -> bool:
        gates = self._gates
        last = max(gates.sent_at(criticality), gates.answered_at(criticality), self._reported_at)
        return now - last >= self._config.send_anyway_seconds

    def _is_trouble(self, now: float) -> bool:
        if self._timeouts is not None and self._timeouts.are_over(now):
            self._timeouts = None
        return (
            self._timeouts is not None
            or self._gates.are_troubled
            or bool(self._customers.throttles)
            or not (self._equation is None or self._equation.is_normal(now))
        )

    # What time does.

    def _begin_reports(self) -> None:
        """Go by reports from now on: what was known before the first of them is too old."""
        self._equation = None
        self._gates.relax()

    def _forget(self) -> None:
        self._equation = None
        self._timeouts = None
        self._gates.relax()
        self.is_troubled = self._gates.are_troubled or bool(self._customers.throttles)

    def _make_for_customer(self, now: float) -> CustomerGates:
        config = self._config
        return CustomerGates(
            config.customer_send_probability, config.forget_seconds, rng=self._rng, now=now
        )
