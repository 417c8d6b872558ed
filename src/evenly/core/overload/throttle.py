"""Refuse requests in the client task, before they cost a backend anything.

SRE book, chapter 21, "Client-Side Throttling": rejecting costs a backend something too, and under
enough load it does nothing else.  Only the client can spare it that.

What an end says, to every throttle:

    OK, ERROR               accept: any answer that is not an overload rejection
    OVERLOADED, DONT_RETRY  rejection
    TIMEOUT                 a request without accept; in `ResponsiveThrottle` only where most of
                            what is sent fails, and only for requests that would not wait longer
    OUT_OF_QUOTA            accept, since the backend was fine; a rejection for that customer alone
    CANCELLED               nothing: the caller gave up
    NOT_SENT, LOST          nothing: a connection that breaks is a matter of health, and a rolling
                            restart must not throttle anybody

Whether a request counts is therefore known only when it ends, and it is counted then, together with
its accept: the two always fall into the same stretch of history, however slow the answer.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

from evenly.core.criticality import Criticality
from evenly.core.request import Cause, Outcome

__all__ = ["NoThrottle", "Throttle", "ThrottleSnapshot"]

# ruff: noqa: ARG002, B027 -- every throttle has the same signature, and hooks that do nothing are
# the null objects.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleSnapshot:
    """Show what a throttle does now."""

    line: float = 0.0
    """The level below which nothing is sent, because backends would refuse it."""
    rejection_probabilities: tuple[float, ...]
    """By criticality: how likely a request of it is rejected here, if its customer has quota."""
    throttled_customers: tuple[str, ...] = ()
    """Customers with a throttle of their own, the most recently seen last."""


class Throttle(abc.ABC):
    """Decide whether requests may leave this process.

    Per request, once: `should_ask`, and if so `admit_asked`, else `admit`, and `admit_asked` after
    it where the policy asked backends meanwhile and `should_ask` has become true; then, if
    admitted, `record` with how the request ended.  Retries are the retry budget's business: they
    neither ask nor count here.
    """

    is_troubled: bool = False
    """Whether something may be known against sending.  Else `should_ask` is false and `admit` true,
    and neither need be called: in peace a request costs one look at this."""

    cause: Cause = Cause.REJECTIONS
    """Why `admit` or `admit_asked` said no the last time."""

    def line(self, now: float) -> float:
        """Return the level below which nothing is sent, because backends would refuse it."""
        return 0.0

    @abc.abstractmethod
    def admit(
        self, level: float, customer: str, now: float, seconds_left: float = math.inf
    ) -> bool:
        """Decide whether a request may leave this process: its first attempt, not its retries.

        `seconds_left` is the time until its deadline.
        """

    @abc.abstractmethod
    def record(
        self,
        criticality: Criticality,
        customer: str,
        outcome: Outcome,
        now: float,
        allowed_seconds: float = math.inf,
    ) -> None:
        """Learn how an admitted request ended: once per request, not per attempt.

        `allowed_seconds` is the time that its (last) attempt had, where it ended in a TIMEOUT.
        """

    def record_report(self, cut: float, now: float) -> None:
        """Learn below which level a backend refuses."""

    def should_ask(self, level: float, now: float) -> bool:
        """Return whether to probe backends before sending this request."""
        return False

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
        """Decide after asking: `cut` is the lowest of the answers, `None` if nobody answered.

        `is_admitted` says that `admit` has said yes already, and only the answers are new.
        """
        return is_admitted or self.admit(level, customer, now, seconds_left)

    @abc.abstractmethod
    def is_normal(self, now: float) -> bool:
        """Return whether this throttle knows nothing that a new one would not."""

    @abc.abstractmethod
    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show what this throttle does now."""


@final
class NoThrottle(Throttle):
    """Let everything through: the backends' own admission is then the only defence."""

    __slots__ = ()

    def admit(
        self, level: float, customer: str, now: float, seconds_left: float = math.inf
    ) -> bool:
        """Return True."""
        return True

    def record(
        self,
        criticality: Criticality,
        customer: str,
        outcome: Outcome,
        now: float,
        allowed_seconds: float = math.inf,
    ) -> None:
        """Learn nothing."""

    def is_normal(self, now: float) -> bool:
        """Return True."""
        return True

    def snapshot(self, now: float) -> ThrottleSnapshot:
        """Show that nothing is rejected."""
        return ThrottleSnapshot(rejection_probabilities=(0.0,) * len(Criticality))
