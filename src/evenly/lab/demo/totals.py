"""Add up what the children count, over all of their lives, exactly.

    Ledger   one child's counters: those of its earlier lives and of this one
    Totals   what all clients have counted since the start; the difference of two is what happened
             between two moments

Children count from zero whenever they are started again, and a process that is killed takes what it
has not yet said with it; nothing else is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from evenly.core.criticality import Criticality
from evenly.lab.demo.tally import REFUSALS, latency_ms

__all__ = ["CRITICALITIES", "ENDINGS", "REASONS", "Counters", "Ledger", "Totals", "flatten"]

CRITICALITIES: Final = tuple(value.name for value in sorted(Criticality, reverse=True))
REASONS: Final = tuple(REFUSALS)
ENDINGS: Final = ("asked", "ok", "failed", "refused")

_MOST_BUCKET: Final = 300  # Of 80 years: whoever says more has gone mad.

Counters = dict[tuple[str, ...], float]
"""Counters by their place in a line: `("refused", "shed", "SHEDDABLE")`."""


def flatten(line: Mapping[str, Any], names: Iterable[str]) -> Counters:
    """Return the counters of a line by their place; what is no number is left out."""
    counters: Counters = {}
    for name in names:
        _flatten(counters, (name,), line.get(name))
    return counters


def _flatten(counters: Counters, place: tuple[str, ...], value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(counters, (*place, str(key)), inner)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        counters[place] = value


@final
class Ledger:
    """Keep one child's counters, through all of its lives."""

    def __init__(self) -> None:
        self._earlier: Counters = {}
        self._now: Counters = {}
        self._pid: int | None = None

    def record(self, pid: int, counters: Counters) -> None:
        """Learn what the process with this id has counted so far."""
        if pid != self._pid:
            self._earlier = self.totals()
            self._now = {}
            self._pid = pid
        for place, value in counters.items():
            # Never backwards: a rate below zero would be nonsense on every chart.
            self._now[place] = max(value, self._now.get(place, 0))

    def total(self, *place: str) -> float:
        """Return one sum over all lives."""
        return self._earlier.get(place, 0) + self._now.get(place, 0)

    def totals(self) -> Counters:
        """Return all sums over all lives."""
        totals = dict(self._earlier)
        for place, value in self._now.items():
            totals[place] = totals.get(place, 0) + value
        return totals


@final
@dataclass(frozen=True, slots=True)
class Totals:
    """Tell what has become of all requests since the start, or between two moments (`b - a`)."""

    at: float = 0.0
    """When, on the fleet's clock; in a difference, the seconds between the two."""
    counters: Counters = field(default_factory=dict)

    @classmethod
    def of(cls, at: float, ledgers: Iterable[Ledger]) -> Totals:
        """Return the sum over all clients."""
        sums: Counters = {}
        for ledger in ledgers:
            for place, value in ledger.totals().items():
                sums[place] = sums.get(place, 0) + value
        return cls(at, sums)

    def __sub__(self, earlier: Totals) -> Totals:
        before = earlier.counters
        return Totals(
            self.at - earlier.at,
            {place: n - before.get(place, 0) for place, n in self.counters.items()},
        )

    def count(self, *place: str) -> int:
        """Add up all counters under a place: `count("ok")`, `count("refused", "shed")`."""
        length = len(place)
        return int(sum(n for key, n in self.counters.items() if key[:length] == place))

    def of_criticality(self, ending: str, criticality: str) -> int:
        """Count requests of one criticality: `asked`, `ok`, `failed` or `refused`."""
        return int(
            sum(
                n for key, n in self.counters.items() if key[0] == ending and key[-1] == criticality
            )
        )

    @property
    def asked(self) -> int:
        """Requests that the applications asked for."""
        return self.count("asked")

    @property
    def ok(self) -> int:
        """Requests that were answered: the goodput."""
        return self.count("ok")

    @property
    def failed(self) -> int:
        """Requests that ended in an error, a timeout or a lost connection."""
        return self.count("failed")

    def failed_by(self, criticality: str | None = None) -> dict[str, int]:
        """Count failures by kind (`evenly.lab.demo.failure_kinds`), by name."""
        found: dict[str, int] = {}
        for key, n in sorted(self.counters.items()):
            if key[0] == "failed_by" and len(key) == 3 and criticality in (None, key[2]):
                found[key[1]] = found.get(key[1], 0) + int(n)
        return {kind: n for kind, n in found.items() if n}

    @property
    def refused(self) -> int:
        """Requests that were refused, here or there."""
        return self.count("refused")

    @property
    def ended(self) -> int:
        """Requests that are not under way any more."""
        return self.ok + self.failed + self.refused

    @property
    def under_way(self) -> int:
        """Requests that were asked for and have not ended.

        In sums since the start those that a process took with it when it ended are among them.
        """
        return self.asked - self.ended

    def brief(self) -> Totals:
        """Return how many were asked for and how they ended, without anything else."""
        return Totals(self.at, {(ending,): self.count(ending) for ending in ENDINGS})

    @property
    def attempts(self) -> int:
        """Attempts begun, retries too."""
        return self.count("attempts")

    @property
    def retries(self) -> int:
        """Attempts that were not the first of their request."""
        return self.count("retries")

    @property
    def retry_ratio(self) -> float | None:
        """Retries per first attempt; `None` without any."""
        firsts = self.attempts - self.retries
        return self.retries / firsts if firsts > 0 else None

    def customers(self) -> list[str]:
        """Return the customers that anybody has spoken of, in the order of their names."""
        return sorted({key[1] for key in self.counters if key[0] == "customers" and len(key) == 3})

    def latency_ms(self, ratio: float) -> float | None:
        """Return the latency that `ratio` of the answered requests did not exceed, in ms.

        Inside of a bucket (`lab.demo.tally`) they are taken as evenly spread over its logarithm.
        `None` if nothing was answered.
        """
        buckets = sorted(
            (int(key[1]), n)
            for key, n in self.counters.items()
            if key[0] == "latency" and n > 0 and _is_bucket(key[-1])
        )
        wanted = ratio * sum(n for _, n in buckets)
        before = 0.0
        for bucket, n in buckets:
            if before + n >= wanted:
                low, high = latency_ms(bucket - 1), latency_ms(bucket)
                return float(low * (high / low) ** ((wanted - before) / n))
            before += n
        return latency_ms(buckets[-1][0]) if buckets else None


def _is_bucket(text: str) -> bool:
    digits = text.removeprefix("-")
    return len(digits) <= 3 and digits.isdecimal() and int(digits) <= _MOST_BUCKET
