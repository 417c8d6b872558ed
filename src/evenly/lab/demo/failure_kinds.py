"""Name the kinds of failure, over both transports: a sum of them explains nothing.

    timeout            the deadline passed, here or there
    connection_lost    it was sent, and no whole answer came back
    error_answer       the backend answered with an error
    cancelled          the backend cut it off: its time to end was over
    Class              anything else, by the name of the exception

Refusals are no failures, and counted by where they were refused (`evenly.lab.demo.tally`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, final

__all__ = ["MOST_KINDS", "Failures", "kind_of", "worded"]

MOST_KINDS: Final = 16
_OTHER: Final = "other"
_MOST_LETTERS: Final = 40
_BY_STATUS: Final = {
    "DEADLINE_EXCEEDED": "timeout",
    "UNAVAILABLE": "connection_lost",
    "CANCELLED": "cancelled",
}
_LOST: Final = ("ConnectionLost", "ConnectionError")
_ANSWERED: Final = "StatusError"


def kind_of(error: Exception) -> str:
    """Return the kind of a failure.  Neither transport is imported for it: one is not used."""
    if isinstance(error, TimeoutError):
        return "timeout"
    code = getattr(error, "code", None)
    if callable(code):  # gRPC's.
        return _BY_STATUS.get(getattr(code(), "name", ""), "error_answer")
    names = {one.__name__ for one in type(error).__mro__}
    if names.intersection(_LOST):
        return "connection_lost"
    return "error_answer" if _ANSWERED in names else type(error).__name__[:_MOST_LETTERS]


def worded(kinds: Mapping[str, int]) -> str:
    """Return counts by kind in words, the most frequent first; empty without any."""
    found = sorted((-number, kind) for kind, number in kinds.items() if number)
    return ", ".join(f"{-negative} {kind.replace('_', ' ')}" for negative, kind in found)


@final
class Failures:
    """Count failures by kind and label; of the kinds that come last, all together."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def add(self, error: Exception, label: str) -> None:
        """Count one."""
        kind = kind_of(error)
        if kind not in self.counts and len(self.counts) >= MOST_KINDS - 1:
            kind = _OTHER
        self.counts.setdefault(kind, Counter())[label] += 1
