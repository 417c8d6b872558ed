"""Pick from a pool of recent probes, as Prequal does.

B. Wydrowski et al., "Load is not what you should balance: Introducing Prequal" (NSDI 2024).  Kept
as published, so that `probing` can be compared with it; four things are ours: recent errors count
as requests in flight, which closes the sinkhole; with no more backends than the pool has places,
where the published rules degenerate, it is least loaded; where a backend reports no latency, they
are compared by requests in flight alone; and a latency that no machine could have is the median's.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

from evenly.core import check
from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.least_loaded import LeastLoaded
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.roster import Roster
from evenly.core.report import LoadReport

__all__ = ["Prequal", "PrequalConfig"]

# How many recent probes the distribution of requests in flight is estimated from.
_RECENT_PROBES = 128
# Who claims to be quicker than this part of the median has a wrong unit.
_LEAST_LATENCY_RATIO = 1.0 / 30.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrequalConfig:
    """Set the published parameters, with the published defaults."""

    pool_size: int = 16
    probes_per_request: int = 3
    removals_per_request: int = 1
    hot_quantile: float = 0.84
    """A probe is hot when its requests in flight lie above this quantile of the recent probes."""
    probe_age_seconds: float = 1.0
    reuse_slack: float = 1.0
    """The paper's delta: by how much probes may come in faster than they are used up."""

    def __post_init__(self) -> None:
        check.count("pool_size", self.pool_size, 2, 1000)
        check.count("probes_per_request", self.probes_per_request, 1, 100)
        check.count("removals_per_request", self.removals_per_request, 0, 100)
        check.fraction("hot_quantile", self.hot_quantile)
        check.positive("probe_age_seconds", self.probe_age_seconds)
        check.number("reuse_slack", self.reuse_slack, 0.0, 1000.0)


@final
class _Probe:
    """Hold one answer in the pool."""

    __slots__ = ("at", "in_flight", "latency_seconds", "uses_left", "view")

    def __init__(
        self, view: BackendView, *, in_flight: int, latency_seconds: float, at: float, uses: int
    ) -> None:
        self.view = view
        self.in_flight = in_flight
        self.latency_seconds = latency_seconds
        self.at = at
        self.uses_left = uses


@final
class Prequal(Policy):
    """Pick the coldest probe: the quickest below the hot line, else the one with fewest in flight.

    Each pick asks for three probes in the background, for later picks to use; each probe is used a
    few times, counting its own uses, and one probe a request leaves the pool, the oldest and the
    worst in turn.
    """

    wants_probes = True

    def __init__(self, config: PrequalConfig, *, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._roster = Roster()
        self._few = LeastLoaded()
        self._pool: list[_Probe] = []  # Oldest first.
        self._wanted: list[BackendView] = []
        self._removes_oldest = True
        self._recent: deque[int] = deque()
        self._recent_sorted: list[int] = []

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend."""
        self._roster.add(view)
        self._few.add(view, now)

    def remove(self, view: BackendView) -> None:
        """Forget a backend and what its probes said."""
        self._roster.remove(view)
        self._few.remove(view)
        self._pool = [probe for probe in self._pool if probe.view is not view]

    def changed(self, view: BackendView) -> None:
        """Learn that a backend's load changed."""
        self._few.changed(view)

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend of the best probe, and ask for new probes."""
        if len(self._roster) <= self._config.pool_size:
            return self._few.pick(now, avoid)
        self._drop_old(now)
        best = self._best(avoid)
        # "If the pool has fewer than two probes, fall back on a random replica."
        view = self._roster.draw(self._rng, avoid) if best is None else best.view
        if best is not None:
            self._use(best)
        self._remove_some()
        self._want_probes()
        return view

    def record_report(
        self, view: BackendView, report: LoadReport, now: float, *, is_probe: bool
    ) -> None:
        """Put a probe's answer into the pool; what comes with responses is not used."""
        if not is_probe or view not in self._roster:
            return
        # No fewer than this client task has there, whatever the backend says.
        in_flight = max(report.active, view.active) + view.error_load
        self._note_in_flight(in_flight)
        self._pool.append(
            _Probe(
                view,
                in_flight=in_flight,
                latency_seconds=self._believed(report.latency_seconds),
                at=now,
                uses=self._uses(),
            )
        )
        if len(self._pool) > self._config.pool_size:
            del self._pool[0]

    def take_probes(self) -> Sequence[BackendView]:
        """Return the backends to probe for later picks."""
        wanted = [view for view in self._wanted if view in self._roster]
        self._wanted = []
        return wanted

    def _best(self, avoid: Collection[BackendView]) -> _Probe | None:
        if len(self._pool) < 2:
            return None
        usable = [probe for probe in self._pool if probe.view not in avoid]
        hot_line = self._hot_line()
        cold = [probe for probe in usable if probe.in_flight <= hot_line]
        if cold and all(probe.latency_seconds > 0.0 for probe in cold):
            return min(cold, key=lambda probe: (probe.latency_seconds, probe.in_flight))
        return min(usable, key=lambda probe: probe.in_flight, default=None)

    def _use(self, probe: _Probe) -> None:
        probe.uses_left -= 1
        probe.in_flight += 1  # The request that is about to be sent.
        if probe.uses_left <= 0:
            self._pool.remove(probe)

    def _remove_some(self) -> None:
        for _ in range(self._config.removals_per_request):
            if not self._pool:
                return
            if self._removes_oldest:
                del self._pool[0]
            else:
                hot_line = self._hot_line()
                # Any hot one is worse than any cold one; the hottest, else the slowest.
                self._pool.remove(
                    max(
                        self._pool,
                        key=lambda probe: (
                            probe.in_flight if probe.in_flight > hot_line else -1,
                            probe.latency_seconds,
                        ),
                    )
                )
            self._removes_oldest = not self._removes_oldest

    def _want_probes(self) -> None:
        # With nobody draining them they must not pile up.
        room = self._config.pool_size - len(self._wanted)
        for _ in range(min(room, self._config.probes_per_request)):
            view = self._roster.draw(self._rng, self._wanted)
            if view is not None:
                self._wanted.append(view)

    def _believed(self, latency_seconds: float) -> float:
        """Return a latency; for one that no machine could have, the median of the pool's."""
        if not self._pool:
            return latency_seconds
        usual = median(probe.latency_seconds for probe in self._pool)
        is_mistake = 0.0 < latency_seconds < usual * _LEAST_LATENCY_RATIO
        return usual if is_mistake else latency_seconds

    def _uses(self) -> int:
        """Return how often a new probe may be used, a fraction rounded at random.

        max(1, (1 + delta) / ((1 - pool / backends) * probes - removals)), and where the
        denominator is not positive, as often as the pool has places.
        """
        config = self._config
        share = 1.0 - config.pool_size / max(1, len(self._roster))
        gain = share * config.probes_per_request - config.removals_per_request
        limit = float(config.pool_size)
        uses = limit if gain <= 0.0 else (1.0 + config.reuse_slack) / gain
        uses = min(limit, max(1.0, uses))
        whole = int(uses)
        return whole + (self._rng.random() < uses - whole)

    def _drop_old(self, now: float) -> None:
        oldest_at = now - self._config.probe_age_seconds
        while self._pool and self._pool[0].at < oldest_at:
            del self._pool[0]

    def _note_in_flight(self, in_flight: int) -> None:
        self._recent.append(in_flight)
        insort(self._recent_sorted, in_flight)
        if len(self._recent) > _RECENT_PROBES:
            gone = self._recent.popleft()
            del self._recent_sorted[bisect_left(self._recent_sorted, gone)]

    def _hot_line(self) -> int:
        values = self._recent_sorted
        return values[int(self._config.hot_quantile * (len(values) - 1))]
