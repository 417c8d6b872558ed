"""Log what changes, and count what happens to each request.

A change (a backend moved, an admission stopped) is a line of its own.  What happens once per
request is counted, and told in one summary line per `summary_seconds` at most: a storm of
rejections is when a log is needed, and when a line per request would make the overload worse.
Changes are bounded in the same way, because a backend can flap.

There is no timer here: a summary is written by the first event after it is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final, final

from evenly.core import check
from evenly.core.clock import Clock
from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason, Request

__all__ = ["LogObserver"]

# ruff: noqa: ARG002 -- every observer has the same signatures.

_TEXT_MAX = 200
_COUNT_MAX = 1_000_000
_REFUSING = "refusing"
# What looking up a value of a wrong type can raise.  An observer must not.
_ODD: Final = (LookupError, TypeError)

_FINISHED: Final = {outcome: f"attempts_{outcome.name.lower()}" for outcome in Outcome}
_REFUSED: Final = {reason: f"refused_{reason.name.lower()}" for reason in Reason}
_REJECTED: Final = {reason: f"rejected_{reason.name.lower()}" for reason in Reason}
_SERVED: Final = {outcome: f"served_{outcome.name.lower()}" for outcome in Outcome}
_RETRIES_REFUSED = "retries_refused"
_UNLOGGED = "changes_not_logged"
_ODD_VALUES = "odd_values"
_BAD: Final = frozenset(
    (*_REFUSED.values(), *_REJECTED.values(), _RETRIES_REFUSED, _UNLOGGED, _ODD_VALUES)
)


@final
class LogObserver(Observer):
    """Write changes and summaries to a `logging.Logger`.

    Every record carries `evenly_event` and the event's values as further `evenly_*` attributes, for
    structured logs.  Give each service its own logger (`evenly.search`) to tell them apart.  A
    handler that blocks blocks the decision: put a `QueueHandler` before a slow one.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        summary_seconds: float = 10.0,
        changes: int = 100,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take `changes`: how many are logged between two summaries; the rest are counted."""
        check.number("summary_seconds", summary_seconds, 0.001, 86_400.0)
        check.count("changes", changes, 1, 1_000_000)
        self._logger = logging.getLogger("evenly") if logger is None else logger
        self._summary_seconds = summary_seconds
        self._changes = changes
        self._changes_left = changes
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._summed_at = clock()
        self._summary_at = self._summed_at + summary_seconds

    def summarize(self) -> None:
        """Log what was counted since the last summary, if anything: before a process exits."""
        self._summarize(self._clock())

    # The calling side.

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        """Count it: a first attempt or a retry."""
        self._count("attempts" if number == 1 else "retries")

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        """Count it by its outcome."""
        self._count_by(_FINISHED, outcome)

    def request_refused(self, request: Request, reason: Reason) -> None:
        """Count it by its reason."""
        self._count_by(_REFUSED, reason)

    def retry_refused(self, request: Request) -> None:
        """Count it."""
        self._count(_RETRIES_REFUSED)

    def asked(self, count: int) -> None:
        """Count the request that waits, and its probes."""
        self._count("asked")
        if type(count) is int and 0 <= count <= _COUNT_MAX:
            self._count("probes", count)
        else:
            self._count(_ODD_VALUES)

    def backend_moved(self, address: str, state: str) -> None:
        """Log it; a refusing backend as a warning."""
        name, now = _text(address), _text(state)
        level = logging.WARNING if now == _REFUSING else logging.INFO
        fields = {"evenly_address": name, "evenly_state": now}
        self._change(level, "backend_moved", f"backend {name} is {now}", fields)

    def subset_changed(self, size: int) -> None:
        """Log it; an empty subset as a warning."""
        level = logging.WARNING if size == 0 else logging.INFO
        message = f"the subset has changed; backends in it: {_text(size)}"
        fields = {"evenly_size": size if type(size) is int else None}
        self._change(level, "subset_changed", message, fields)

    # The serving side.

    def request_admitted(self, request: Request) -> None:
        """Count it."""
        self._count("admitted")

    def request_rejected(self, request: Request, reason: Reason) -> None:
        """Count it by its reason."""
        self._count_by(_REJECTED, reason)

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        """Count it by its outcome."""
        self._count_by(_SERVED, outcome)

    def admission_changed(self, criticality: Criticality, *, is_admitted: bool) -> None:
        """Log it; the beginning of rejections as a warning."""
        name = criticality.name if isinstance(criticality, Criticality) else _text(criticality)
        is_admitted = is_admitted is True
        level = logging.INFO if is_admitted else logging.WARNING
        message = f"{name} requests are {'all admitted' if is_admitted else 'being rejected'}"
        fields = {"evenly_criticality": name, "evenly_is_admitted": is_admitted}
        self._change(level, "admission_changed", message, fields)

    def lame_duck_changed(self, *, is_lame_duck: bool) -> None:
        """Log it."""
        is_lame_duck = is_lame_duck is True
        message = "lame duck: clients are asked to send elsewhere" if is_lame_duck else "healthy"
        fields = {"evenly_is_lame_duck": is_lame_duck}
        self._change(logging.INFO, "lame_duck_changed", message, fields)

    def _count(self, name: str, count: int = 1) -> None:
        now = self._clock()
        if now >= self._summary_at:
            self._summarize(now)
        self._counts[name] = self._counts.get(name, 0) + count

    def _count_by(self, names: dict[Outcome, str] | dict[Reason, str], key: object) -> None:
        try:
            name = names[key]  # type: ignore[index]  # Whatever it is: if it is no key, it is odd.
        except _ODD:
            name = _ODD_VALUES
        self._count(name)

    def _change(self, level: int, event: str, message: str, fields: Mapping[str, object]) -> None:
        now = self._clock()
        if now >= self._summary_at:
            self._summarize(now)
        if self._changes_left == 0:
            self._count(_UNLOGGED)
            return
        self._changes_left -= 1
        self._logger.log(level, "%s", message, extra={"evenly_event": event, **fields})

    def _summarize(self, now: float) -> None:
        seconds = now - self._summed_at
        counts = self._counts
        self._counts = {}
        self._changes_left = self._changes
        self._summed_at = now
        self._summary_at = now + self._summary_seconds
        if counts:
            level = logging.INFO if _BAD.isdisjoint(counts) else logging.WARNING
            told = " ".join(f"{name}={count}" for name, count in sorted(counts.items()))
            extra = {
                "evenly_event": "summary",
                "evenly_seconds": seconds,
                "evenly_counts": counts,
            }
            self._logger.log(level, "in %.1f s: %s", seconds, told, extra=extra)


def _text(value: object) -> str:
    """Return a value as one short line, whatever it is: text that forges log lines is escaped."""
    if type(value) is int and abs(value) < 10**18:
        return str(value)
    if type(value) is not str:
        return f"<{type(value).__name__}>"
    text = value[:_TEXT_MAX]
    return text if text.isprintable() else ascii(text)
