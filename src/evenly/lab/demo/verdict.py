"""Judge a scripted play: what was measured against what was promised.

Pure functions from counts to figures.  Everything is made of the clients' own cumulative counts,
because what a request is to its user is what its client saw.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from evenly.lab.demo.failure_kinds import worded
from evenly.lab.demo.totals import REASONS, Totals

__all__ = [
    "Figure",
    "Track",
    "critical_plus",
    "errors_fall",
    "failures",
    "failures_by",
    "fast_fail_errors",
    "missed",
    "never_ended",
    "ok_ratio",
    "overload_goodput",
    "recovery",
    "restart_failures",
    "restart_refused",
]

MOST_ERRORS_RATIO: Final = 0.003
# What is lost before a failing backend is known does not depend on how many are asked for: in a
# small fleet or a slow one it is more of them.
_FEW_ERRORS: Final = 4
MOST_REFUSED_RATIO: Final = 0.01
LEAST_GOODPUT_RATIO: Final = 0.9
LEAST_CRITICAL_PLUS_RATIO: Final = 0.99
MOST_RECOVERY_SECONDS: Final = 5.0

_RECOVERED_OK_RATIO: Final = 0.99
_RECOVERED_GOODPUT_RATIO: Final = 0.95
_WINDOW_SECONDS: Final = 1.0
# What ends in a second was asked for partly in the one before, and arrives at random: a tenth more
# or less is luck.  So single seconds are judged mildly for that, and their whole strictly.
_WINDOW_GOODPUT_RATIO: Final = 0.8
# Whatever happens in an instant spoils four of the sliding seconds: this forgives one such instant.
_HELD_RATIO: Final = 0.9
# The one refusal that no overload excuses: there was nobody to send to.
_LIKE_FAILURES: Final = ("no_backend",)
_CRITICAL_PLUS: Final = "CRITICAL_PLUS"


def failures(counts: Totals) -> int:
    """Return how many failed: errors, timeouts, lost, and refused without any overload."""
    return counts.failed + sum(counts.count("refused", reason) for reason in _LIKE_FAILURES)


def failures_by(counts: Totals) -> dict[str, int]:
    """Return the same by kind: those that there were."""
    alike = {reason: counts.count("refused", reason) for reason in _LIKE_FAILURES}
    return counts.failed_by() | {reason: n for reason, n in alike.items() if n}


def _lost_by(counts: Totals, criticality: str) -> dict[str, int]:
    """Return what failed or was refused of one criticality, by kind."""
    refused = {reason: counts.count("refused", reason, criticality) for reason in REASONS}
    return counts.failed_by(criticality) | {reason: n for reason, n in refused.items() if n}


def ok_ratio(counts: Totals, criticality: str | None = None) -> float | None:
    """Return which part of those that ended was served; `None` if none has ended."""
    if criticality is None:
        return counts.ok / counts.ended if counts.ended else None
    ok, failed, refused = (
        counts.of_criticality(ending, criticality) for ending in ("ok", "failed", "refused")
    )
    ended = ok + failed + refused
    return ok / ended if ended else None


@final
class Track:
    """Hold the counts of a play, in order of time."""

    def __init__(self, samples: Sequence[Totals]) -> None:
        if not samples:
            raise ValueError("a play has at least one sample, not 0")
        self._samples = samples
        self._instants = [sample.at for sample in samples]

    def between(self, began_at: float, ended_at: float) -> Totals:
        """Return what was counted between two instants, to the nearest sample inside."""
        first = min(bisect_left(self._instants, began_at), len(self._samples) - 1)
        last = max(bisect_right(self._instants, ended_at) - 1, first)
        return self._samples[last] - self._samples[first]

    def windows(self, began_at: float, ended_at: float) -> list[tuple[float, Totals]]:
        """Return all sliding seconds between two instants, each with the instant of its end."""
        found = []
        first = bisect_left(self._instants, began_at)
        last = bisect_right(self._instants, ended_at)
        for end in range(first, last):
            # The latest sample that is at least a second older.
            start = bisect_right(self._instants, self._instants[end] - _WINDOW_SECONDS) - 1
            if start >= first:
                window = self._samples[end] - self._samples[start]
                found.append((self._instants[end], window))
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold one measured value beside its bound; `None` is a value that could not be measured."""

    name: str
    what: str
    value: float | None
    bound: float
    relation: str
    unit: str
    how: str
    failed_by: Mapping[str, int] = field(default_factory=dict)
    """What failed, by kind, where that decides."""

    @property
    def is_met(self) -> bool:
        """Whether the value keeps its bound; what was not measured does not."""
        if self.value is None:
            return False
        if self.relation == "<":
            return self.value < self.bound
        return self.value <= self.bound if self.relation == "≤" else self.value >= self.bound

    def describe(self) -> dict[str, object]:
        """Return it for the JSON document."""
        return {
            "what": self.what,
            "value": None if self.value is None else round(self.value, 6),
            "bound": round(self.bound, 6),
            "relation": self.relation,
            "unit": self.unit,
            "is_met": self.is_met,
            "how": self.how,
            "failed_by": dict(self.failed_by),
        }

    @property
    def shown_value(self) -> str:
        """The value, for people."""
        return self._show(self.value)

    @property
    def shown_bound(self) -> str:
        """The bound, for people."""
        return f"{self.relation} {self._show(self.bound)}"

    def __str__(self) -> str:
        kinds = worded(self.failed_by)
        return f"{self.what}: {self.shown_value} ({self.shown_bound})" + (kinds and f"; {kinds}")

    def _show(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        if self.unit == "ratio":
            return f"{value:.2%}"
        return f"{value:.1f} s" if self.unit == "seconds" else f"{value:g}"


def missed(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures that miss their bounds."""
    return [figure for figure in figures if not figure.is_met]


def restart_failures(
    part: Totals, *, is_complete: bool, never_ended: int, client_ends: int
) -> Figure:
    """Count what a rolling restart cost; half a restart, or one that nobody saw, proves nothing.

    A client that has ended counts as one failure at least: nobody knows what it had under way.
    """
    failed = failures(part) + never_ended + client_ends
    return Figure(
        name="rolling_restart_failed",
        what="failed requests during the rolling restart",
        value=failed if is_complete and part.ended else None,
        bound=0,
        relation="≤",
        unit="requests",
        how=f"{failures(part)} failed (error, timeout, lost, no backend) + {never_ended} that never"
        f" ended + {client_ends} clients that ended, of {part.asked} requests from the first"
        " SIGTERM until all backends were new and served, and nothing was under way any more;"
        f" {_refused(part)} refused (throttled, shed, quota) have a figure of their own",
        failed_by=failures_by(part),
    )


def restart_refused(part: Totals, *, is_complete: bool) -> Figure:
    """Return which part of the requests a rolling restart left no room for."""
    return Figure(
        name="rolling_restart_refused",
        what="refused requests during the rolling restart",
        value=_refused(part) / part.ended if is_complete and part.ended else None,
        bound=MOST_REFUSED_RATIO,
        relation="≤",
        unit="ratio",
        how=f"{_refused(part)} throttled, shed or out of quota of {part.ended} requests that ended"
        " in that time",
    )


def _refused(part: Totals) -> int:
    return part.refused - sum(part.count("refused", reason) for reason in _LIKE_FAILURES)


def fast_fail_errors(part: Totals, *, had_share: bool) -> Figure:
    """Return which part of all requests failed while one backend failed everything.

    To avoid a backend that got nothing before either is no merit.
    """
    ended = part.ended
    return Figure(
        name="fast_fail_errors",
        what="failed requests while one backend fails fast",
        value=failures(part) / ended if ended and had_share else None,
        bound=max(MOST_ERRORS_RATIO, _FEW_ERRORS / ended if ended else 0.0),
        relation="<",
        unit="ratio",
        how=f"{failures(part)} failed of {ended} requests that ended from the moment the backend"
        f" began to fail until it was repaired; {_share(had_share=had_share)}",
        failed_by=failures_by(part),
    )


def errors_fall(first: Totals, second: Totals, *, had_share: bool) -> Figure:
    """Compare the errors of the two halves of that time: the fleet must learn."""
    return Figure(
        name="fast_fail_errors_late",
        what="failed in the second half of that, against the first",
        value=failures(second) if first.ended and second.ended and had_share else None,
        # Fewer than before; and none at all is enough where there were none.
        bound=max(1, failures(first)),
        relation="<",
        unit="requests",
        how=f"{failures(second)} failed requests in the second half of that time against"
        f" {failures(first)} in the first; none is few enough; {_share(had_share=had_share)}",
        failed_by=failures_by(second),
    )


def _share(*, had_share: bool) -> str:
    has = "had it" if had_share else "did not have it"
    return f"clients {has} in their subsets and were served by it before"


def overload_goodput(steady: Totals, capacity: float, load: float) -> Figure:
    """Compare what is served in overload with what the fleet can serve."""
    served = steady.ok
    value = served / (steady.at * capacity) if steady.at > 0 and capacity > 0 else None
    return Figure(
        name="overload_goodput",
        what=f"goodput at {load:g} × the capacity",
        value=value,
        bound=LEAST_GOODPUT_RATIO,
        relation="≥",
        unit="ratio",
        how=f"{served} requests served in {steady.at:.1f} s (the overload without its beginning),"
        f" over the capacity of {capacity:g} per second",
    )


def critical_plus(part: Totals, until_ended: Totals, *, never_ended: int) -> Figure:
    """Return which part of the most critical requests of an overload was served.

    `until_ended` goes on until what was under way at the end of the overload has had its timeout:
    whatever failed or was refused until then counts against it.
    """
    asked = part.of_criticality("asked", _CRITICAL_PLUS)
    failed, refused = (
        until_ended.of_criticality(ending, _CRITICAL_PLUS) for ending in ("failed", "refused")
    )
    return Figure(
        name="overload_critical_plus",
        what="CRITICAL_PLUS served in overload",
        value=1 - (failed + refused + never_ended) / asked if asked else None,
        bound=LEAST_CRITICAL_PLUS_RATIO,
        relation="≥",
        unit="ratio",
        how=f"of {asked} CRITICAL_PLUS requests in the whole overload, its beginning included,"
        f" {refused} were refused and {failed} failed, at the latest {until_ended.at - part.at:.1f}"
        f" s after it; {never_ended} never ended",
        failed_by=_lost_by(until_ended, _CRITICAL_PLUS),
    )


def recovery(track: Track, ended_at: float, until: float) -> Figure:
    """Return how long after the overload the last bad second ended, if things stay good then."""
    windows = track.windows(ended_at, until)
    are_good = [_is_good(window) for _, window in windows]
    value = None
    for index, is_good in enumerate(are_good):
        if not is_good or (index and are_good[index - 1]):
            continue  # It can only begin here after a bad one.
        began_at = windows[index - 1][0] if index else ended_at
        held = sum(are_good[index:]) / len(are_good[index:])
        if held >= _HELD_RATIO and _keeps_up(track.between(began_at, until)):
            value = began_at - ended_at
            break
    return Figure(
        name="recovery_seconds",
        what="time to recover from the overload",
        value=value,
        bound=MOST_RECOVERY_SECONDS,
        relation="≤",
        unit="seconds",
        how="from the end of the overload to the end of the last bad sliding second: one in which"
        f" < {_RECOVERED_OK_RATIO:.0%} of the requests that ended were served, or goodput was"
        f" < {_WINDOW_GOODPUT_RATIO:.0%} of what was asked.  From then until {until - ended_at:.1f}"
        f" s after the overload, ≥ {_HELD_RATIO:.0%} of the sliding seconds were good, and goodput"
        f" was ≥ {_RECOVERED_GOODPUT_RATIO:.0%} of what was asked",
    )


def _is_good(window: Totals) -> bool:
    ratio = ok_ratio(window)
    return (
        ratio is not None
        and ratio >= _RECOVERED_OK_RATIO
        and 0 < _WINDOW_GOODPUT_RATIO * window.asked <= window.ok
    )


def _keeps_up(rest: Totals) -> bool:
    return rest.ok >= _RECOVERED_GOODPUT_RATIO * rest.asked


def never_ended(requests: int, client_ends: int) -> Figure:
    """Count what nobody else does: requests without an end, and clients that took theirs along."""
    return Figure(
        name="never_ended",
        what="requests that never ended",
        value=requests + client_ends,
        bound=0,
        relation="≤",
        unit="requests",
        how=f"{requests} requests of the whole play that were asked for and had not ended seconds"
        f" after their timeout, when nobody asked any more + {client_ends} clients that ended",
    )
