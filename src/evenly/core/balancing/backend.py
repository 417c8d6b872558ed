"""A backend's identity, and what one client task knows of it.

The view holds *what is load*; the policies decide *how to choose*.  Load is the client task's own
active requests plus its recent errors, so that every policy sees a failing backend alike: one that
fails fast would otherwise look idle and draw traffic in like a sinkhole (SRE book, chapter 20,
"Least-Loaded Round Robin").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.core.balancing.health import Health, State
from evenly.core.report import LoadReport
from evenly.errors import ConfigError

__all__ = ["Backend", "BackendSnapshot", "BackendView", "check_distinct"]

_MAX_INDEX = 99_999
_MAX_ADDRESS = 512
# Errors weigh no more than a backend that is at the book's limit of active requests: enough to be
# picked last, and a bound on what a policy has to keep sorted.
_MAX_ERROR_LOAD = 100
# One error is forgotten after ln(100) = 4.6 decay times.
_FORGOTTEN_ERRORS = 0.01


@final
@dataclass(frozen=True, slots=True)
class Backend:
    """Identify one process that serves requests."""

    address: str
    index: int | None = None
    """Its stable position in its job, where discovery can tell; subsets are cut by it."""

    def __post_init__(self) -> None:
        if not (
            isinstance(self.address, str)
            and 0 < len(self.address) <= _MAX_ADDRESS
            and self.address.isprintable()
        ):
            shown = repr(self.address)[:80]
            raise ConfigError(
                f"address must be 1 to {_MAX_ADDRESS} printable characters, not {shown}"
            )
        if self.index is not None:
            check.count("index", self.index, 0, _MAX_INDEX)

    def __str__(self) -> str:
        return self.address


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSnapshot:
    """Show what a client task knows of one backend."""

    address: str
    index: int | None
    state: State
    in_subset: bool
    """False once it was removed: it is kept only until its attempts have finished."""
    active: int
    errors: float
    """Recent errors, decaying."""
    weight: float
    """The share it should get, relative to the mean of its equals."""
    utilization: float | None
    """As it last reported; `None` before its first report."""


@final
class BackendView:
    """Hold the counters of one backend in one client task.  Compared by identity."""

    __slots__ = (
        "_error_decay_seconds",
        "_errors",
        "_errors_at",
        "_failures",
        "active",
        "answered_probe_at",
        "averaged_at",
        "backend",
        "counts_as_refusing",
        "error_load",
        "health",
        "healthy_since",
        "in_subset",
        "is_pickable",
        "load",
        "mean_qps",
        "mean_used",
        "orca",
        "orca_at",
        "probed_at",
        "report",
        "reported_at",
        "reports_since",
        "shown_state",
        "tier",
        "told_at",
        "trim",
        "unused_since",
        "was_used",
        "weight",
    )

    def __init__(
        self, backend: Backend, health: Health, *, error_decay_seconds: float, now: float
    ) -> None:
        self.backend = backend
        self.health = health
        self.in_subset = True
        self.active = 0
        """Attempts begun and not finished."""
        self.error_load = 0
        """Recent errors as a whole number of active requests."""
        self.load = 0
        """Their sum.  Kept rather than computed, because policies read it once per request."""
        self._errors = 0.0
        self._failures = 0.0
        self._errors_at = now
        self._error_decay_seconds = error_decay_seconds
        self.tier = -1
        """Which of the candidates' tiers it stands in; -1 is none."""
        self.is_pickable = False
        """Whether the policy holds it now."""
        self.counts_as_refusing = False
        """Whether its refusal has been acted on."""
        self.shown_state = health.state
        """The state that the observer has been told."""
        self.healthy_since = now
        """Since when it has been warming up, as far as is known: slow start counts from here."""
        self.weight = 1.0
        """The relative share it should get (the book's "capability"); the mean is 1."""
        self.trim = 0.0
        """`probing`'s slow correction of the weight, as a logarithm."""
        self.report: LoadReport | None = None
        self.reported_at = -math.inf
        self.told_at = -math.inf
        """When a report last came with a response; in between they are left out."""
        self.orca: LoadReport | None = None
        self.orca_at = -math.inf
        """What a backend that is not ours said in ORCA, and when.  It makes weights and nothing
        else: it has no state, no queue and no word on what is admitted."""
        self.reports_since: float | None = None
        """Since when its reports have been usable for a weight without a gap."""
        self.mean_qps = 0.0
        self.mean_used = 0.0
        self.averaged_at = now
        """What its weight is made of, averaged, and when that was last done."""
        self.probed_at: float | None = None
        """When the probe that is under way was asked for."""
        self.answered_probe_at = -math.inf
        """When a probe by UDP was last answered: only such a backend can be left without a
        connection."""
        self.was_used = False
        """Whether an attempt was begun since the last health check ..."""
        self.unused_since = now
        """... and since when none was, or is, as health checks have seen it."""

    def __repr__(self) -> str:
        return (
            f"<BackendView {self.backend} {self.health.state.value} active={self.active}"
            f" error_load={self.error_load} weight={self.weight:.3g}>"
        )

    def begin(self) -> None:
        """Count an attempt in."""
        self.was_used = True
        self.active += 1
        self.load += 1

    def finish(self) -> None:
        """Count an attempt out."""
        self.active -= 1
        self.load -= 1

    @property
    def is_erring(self) -> bool:
        """Whether it has recent errors, however faded."""
        return self._errors > 0.0

    def errors(self, now: float) -> float:
        """Return the recent errors: each counts 1 at first and fades with the decay time."""
        if self._errors == 0.0:
            return 0.0
        age = max(0.0, now - self._errors_at)
        return self._errors * math.exp(-age / self._error_decay_seconds)

    def failures(self, now: float) -> float:
        """Return the recent errors of which the backend says nothing: timeouts, lost connections.

        One that rejects says why, and one that answers with errors reports their rate.
        """
        if self._failures == 0.0:
            return 0.0
        age = max(0.0, now - self._errors_at)
        return self._failures * math.exp(-age / self._error_decay_seconds)

    def record_error(self, now: float, *, is_failure: bool) -> None:
        """Count one error; a failure is one that the backend's reports do not tell of."""
        failures = self.failures(now) + is_failure
        self._set_errors(self.errors(now) + 1.0, failures, now)

    def fade_errors(self, now: float) -> bool:
        """Let time pass over the errors; return whether the load changed."""
        before = self.load
        errors = self.errors(now)
        if errors >= _FORGOTTEN_ERRORS:
            self._set_errors(errors, self.failures(now), now)
        else:
            self._set_errors(0.0, 0.0, now)
        return self.load != before

    def _set_errors(self, errors: float, failures: float, now: float) -> None:
        self._errors = errors
        self._failures = failures
        self._errors_at = now
        self.error_load = min(_MAX_ERROR_LOAD, round(errors))
        self.load = self.active + self.error_load

    def newest_report(self) -> tuple[LoadReport | None, float]:
        """Return what it last said of its rates, in our words or ORCA's, and when."""
        if self.orca_at > self.reported_at:
            return self.orca, self.orca_at
        return self.report, self.reported_at

    def forget_orca(self) -> None:
        """Forget what was said in ORCA, which names no process: it may have been another's."""
        if self.orca is not None:
            self.orca = None
            self.orca_at = -math.inf
            self.reports_since = None

    def snapshot(self, now: float) -> BackendSnapshot:
        """Return what is known now."""
        report, _ = self.newest_report()
        return BackendSnapshot(
            address=self.backend.address,
            index=self.backend.index,
            state=self.health.state,
            in_subset=self.in_subset,
            active=self.active,
            errors=self.errors(now),
            weight=self.weight,
            utilization=None if report is None else report.utilization,
        )


def check_distinct(backends: Sequence[Backend]) -> None:
    """Refuse a list in which two backends share an address or an index."""
    addresses: dict[str, int] = {}
    indices: dict[int, int] = {}
    for place, backend in enumerate(backends):
        other = addresses.setdefault(backend.address, place)
        if other != place:
            raise ConfigError(
                f"backends[{other}] and backends[{place}] have the same address {backend.address!r}"
            )
        if backend.index is not None:
            other = indices.setdefault(backend.index, place)
            if other != place:
                raise ConfigError(
                    f"backends[{other}] and backends[{place}] have the same index {backend.index}"
                )
