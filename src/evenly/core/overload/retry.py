"""Decide whether to retry, and keep retries from feeding the overload that caused them.

SRE book, chapter 21, "Deciding to Retry": at most three attempts a request; retries at most 10 % of
a client's requests; and backends that see many retries answer "overloaded; don't retry".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, final

from evenly.core import check
from evenly.core.claim import ATTEMPT_MAX
from evenly.core.request import Outcome

__all__ = [
    "AttemptHistogram",
    "AttemptHistogramConfig",
    "AttemptHistogramSnapshot",
    "RetryBudget",
    "RetryConfig",
    "may_retry",
]

# A balance is a whole number of these parts of a token: ten times 0.1 as floats is not 1.
_PARTS: Final = 1_000_000

_OVERLOADED: Final = Outcome.OVERLOADED
_LOST: Final = Outcome.LOST


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """Limit retries per request and per client task."""

    attempts: int = 3
    """Book: "a per-request retry budget of up to three attempts"; 1 is no retries."""
    budget_ratio: float = 0.1
    """Retries earned per request.  Book: "only … as long as this ratio is below 10%"."""
    initial_balance: float = 3.0
    """Retries that a client task may make before it has sent anything."""
    max_balance: float = 100.0
    """The most that can be saved: one backend's limit of active requests (chapter 20: 100).  When
    it begins to refuse, all that this client task has there can move on at once, and no more."""

    def __post_init__(self) -> None:
        check.count("attempts", self.attempts, 1, ATTEMPT_MAX)
        check.fraction("budget_ratio", self.budget_ratio)
        check.number("max_balance", self.max_balance, 0.0, 1_000_000.0)
        check.number("initial_balance", self.initial_balance, 0.0, self.max_balance)


@final
class RetryBudget:
    """Hold the retries that a client task has earned by its requests.

    Over any stretch,  retries ≤ balance at its start + budget_ratio · requests.  Time earns
    nothing: a floor of some retries per second, which other libraries have, is what thousands of
    idle clients would overload a recovering service with.
    """

    __slots__ = ("_max_parts", "_parts", "_parts_per_request")

    def __init__(self, config: RetryConfig) -> None:
        self._parts = round(config.initial_balance * _PARTS)
        self._parts_per_request = round(config.budget_ratio * _PARTS)
        self._max_parts = round(config.max_balance * _PARTS)

    @property
    def balance(self) -> float:
        """The retries that could be made now."""
        return max(0, self._parts) / _PARTS

    def earn(self) -> None:
        """Be told of one request: its first attempt, not its retries."""
        parts = self._parts + self._parts_per_request
        self._parts = parts if parts < self._max_parts else self._max_parts

    def unearn(self) -> None:
        """Be told that a request is begun anew, because it was not sent: it earns once."""
        self._parts -= self._parts_per_request  # Below 0, if that was spent meanwhile.

    def take(self) -> bool:
        """Pay for one retry and return True; or change nothing and return False."""
        if self._parts < _PARTS:
            return False
        self._parts -= _PARTS
        return True

    def give_back(self) -> None:
        """Take back a payment for a retry that found no backend, or was never sent."""
        self._parts = min(self._max_parts, self._parts + _PARTS)


def may_retry(outcome: Outcome, *, idempotent: bool) -> bool:
    """Return whether an attempt that ended so may be repeated elsewhere, budgets permitting.

    OVERLOADED: the backend refused before it did anything, and said that others may have room.
    LOST: the work may have been done, so only where doing it twice is the same as once.

    Nothing else.  NOT_SENT needs no budget: it was no attempt.  DONT_RETRY says so; a customer out
    of quota is so everywhere; after a TIMEOUT there is no time left; a CANCELLED request has no
    caller; and an ERROR is the backend's answer, which another backend would give too, at the price
    of working twice for it.
    """
    return outcome is _OVERLOADED or (idempotent and outcome is _LOST)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistogramConfig:
    """Set when a backend takes overload for general."""

    first_attempts: int = 1000
    """The length of the history.  Book: "1,000 initial requests, not counting retries"."""
    arrivals_per_first: int = 3
    """Longest history, in arrivals per first attempt: three is what three attempts can make."""
    widespread_ratio: float = 0.05
    """Above this share of retries, others are overloaded too.  Half of the 9 % that clients with a
    budget of 10 % send when all backends refuse; one in twenty refusing stays below it."""
    min_arrivals: int = 100
    """With fewer, one retry more or less would decide."""

    def __post_init__(self) -> None:
        check.count("first_attempts", self.first_attempts, 1, 1_000_000)
        check.count("arrivals_per_first", self.arrivals_per_first, 1, 100)
        check.fraction("widespread_ratio", self.widespread_ratio)
        check.count("min_arrivals", self.min_arrivals, 1, 1_000_000)
        check.number("min_arrivals", self.min_arrivals, 1, self.first_attempts)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistogramSnapshot:
    """Show the histogram of the book's figure 21-1."""

    counts: tuple[int, ...]
    """Arrivals per attempt: first attempts, first retries, and so on."""
    retries_are_widespread: bool


@final
class AttemptHistogram:
    """Remember which attempt each recent arrival at a backend was.

    SRE book: "Backends keep histograms of these values in recent history.  […] If these histograms
    reveal a significant amount of retries (indicating that other backend tasks are likely also
    overloaded), they return an “overloaded; don't retry” error".

    The history is the longest with at most `first_attempts` first attempts, and at most
    `arrivals_per_first` times as many arrivals: so it is bounded when only retries arrive.
    The book counts attempts from 0; here the first is 1, as everywhere in evenly.
    """

    __slots__ = (
        "_arrivals",
        "_config",
        "_counts",
        "_first_attempts",
        "_max_arrivals",
        "is_peaceful",
    )

    def __init__(self, config: AttemptHistogramConfig | None = None) -> None:
        self._config = config or AttemptHistogramConfig()
        self._first_attempts = self._config.first_attempts
        self._max_arrivals = self._first_attempts * self._config.arrivals_per_first
        self._arrivals: deque[int] = deque()  # Oldest first.
        self._counts = [0] * (ATTEMPT_MAX + 1)
        self.is_peaceful = False
        """Whether the history is full of first attempts: one more of those changes nothing."""

    def record(self, attempt: int) -> None:
        """Count an arrival; 1 is a first attempt, and any other whole number is bounded."""
        if attempt < 1:
            attempt = 1
        elif attempt > ATTEMPT_MAX:
            attempt = ATTEMPT_MAX
        counts = self._counts
        arrivals = self._arrivals
        arrivals.append(attempt)
        counts[attempt] += 1
        while counts[1] > self._first_attempts or len(arrivals) > self._max_arrivals:
            counts[arrivals.popleft()] -= 1
        self.is_peaceful = len(arrivals) == counts[1] == self._first_attempts

    @property
    def retries_are_widespread(self) -> bool:
        """Whether so many arrivals are retries that other backends must be overloaded too."""
        arrivals = len(self._arrivals)
        return (
            arrivals >= self._config.min_arrivals
            and arrivals - self._counts[1] > self._config.widespread_ratio * arrivals
        )

    def snapshot(self) -> AttemptHistogramSnapshot:
        """Show the counts per attempt."""
        return AttemptHistogramSnapshot(
            counts=tuple(self._counts[1:]), retries_are_widespread=self.retries_are_widespread
        )
