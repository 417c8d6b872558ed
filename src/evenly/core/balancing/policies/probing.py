"""Use the backends' own truth, mostly for free: our default policy.

A *fact* is a backend's `runnable` (requests on a CPU there or waiting for one), from a response or
from a probe's answer.  It counts every client's requests, and only those that need a CPU, which are
the two things that the book finds missing in least loaded (chapter 20, "Least-Loaded Round Robin").

    score = (runnable + 1 + 10 * errors) / weight

The best live fact is picked and used up, because a fact that is used again locks clients onto a few
backends.  Where facts are few, or even the best is bad, two backends are probed first, and the
request waits for about a round trip.  The weight is gRFC A58's (`weights.py`) times exp(trim),
where the trim is the integral of how far a backend's utilization lies from the mean.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from evenly.core import check
from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.policies.weighted_least_loaded import WeightedLeastLoaded
from evenly.core.balancing.roster import Roster
from evenly.core.balancing.view_heap import ViewHeap
from evenly.core.balancing.weights import WeightConfig, Weights
from evenly.core.report import LoadReport
from evenly.core.window import TokenBucket

__all__ = ["Probing", "ProbingConfig"]

# Draws before a weighted draw settles for whatever came last.  Weights are within a few times the
# mean, so that a draw is taken with a chance of a quarter or more, and 0.75 ** 8 is a tenth.
_DRAWS = 8
# Two health checks: whoever is alive has reported within them.
_FRESH_SECONDS = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingConfig:
    """Set how facts are used and when a probe is worth its wait."""

    fact_seconds: float = 0.1
    """How long a fact lives."""
    error_score: float = 10.0
    """How many runnable requests one recent error weighs."""
    worse_ratio: float = 1.2
    """Probe first when the best score is above this many times the usual one."""
    usual_gain: float = 0.05
    """How fast the usual `runnable` follows new facts."""
    probes: int = 2
    """Backends that are asked at once."""
    probes_per_second: float = 5000.0
    """Probing must never be able to hurt: above this rate, the policy picks without."""
    unanswered_asks: int = 5
    unanswered_seconds: float = 0.5
    """So many asks over so long without any answer: stop asking, until a probe is answered again.
    Both, because many requests may ask at once, and because one lost datagram proves nothing."""
    trim_gain: float = 0.2
    """Per second, for the logarithm of mean over own utilization."""
    trim_keep_ratio: float = 0.99
    """What is left of the trim after a second, so that old errors of it fade."""
    trim_limit: float = 1.4
    """The trim stays within ± this: at most about 4 × up or down."""
    newcomer_trim: float = -1.0
    """The trim of a backend that has just become healthy ..."""
    newcomer_seconds: float = 3.0
    """... for so long."""

    def __post_init__(self) -> None:
        check.positive("fact_seconds", self.fact_seconds)
        check.number("error_score", self.error_score, 0.0, 1e6)
        check.number("worse_ratio", self.worse_ratio, 1.0, 1e6)
        check.fraction("usual_gain", self.usual_gain)
        check.count("probes", self.probes, 1, 10)
        check.positive("probes_per_second", self.probes_per_second)
        check.count("unanswered_asks", self.unanswered_asks, 1, 1000)
        check.positive("unanswered_seconds", self.unanswered_seconds)
        check.number("trim_gain", self.trim_gain, 0.0, 10.0)
        check.fraction("trim_keep_ratio", self.trim_keep_ratio)
        check.number("trim_limit", self.trim_limit, 0.0, 10.0)
        check.number("newcomer_trim", self.newcomer_trim, -10.0, 0.0)
        check.number("newcomer_seconds", self.newcomer_seconds, 0.0, 3600.0)


@final
class Probing(Policy):
    """Pick the backend with the best live fact; ask first when facts are few or bad."""

    asks: ClassVar[bool] = True

    def __init__(
        self, config: ProbingConfig, *, weight_config: WeightConfig, rng: random.Random, now: float
    ) -> None:
        self._config = config
        self._rng = rng
        self._weights = Weights(weight_config)
        self._roster = Roster()
        self._scores = ViewHeap()
        # When each live fact was received, oldest first.
        self._fact_at: OrderedDict[BackendView, float] = OrderedDict()
        self._usual = 0.0
        self._max_weight = 1.0
        self._budget = TokenBucket(config.probes_per_second, config.probes_per_second)
        self._budget.level(now)
        self._asks = 0  # Since a probe was last answered.
        self._asking_since = now
        self._trial: BackendView | None = None
        # Used while probes get no answer; kept in step only then.
        self._blind: WeightedLeastLoaded | None = None
        self._weight_config = weight_config

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend."""
        self._roster.add(view)
        if self._blind is not None:
            self._blind.add(view, now)

    def remove(self, view: BackendView) -> None:
        """Forget a backend and its fact."""
        self._roster.remove(view)
        self._drop_fact(view)
        if self._blind is not None:
            self._blind.remove(view)

    def changed(self, view: BackendView) -> None:
        """Learn that a backend's load changed: it matters only without probes."""
        if self._blind is not None:
            self._blind.changed(view)

    def record_error(self, view: BackendView, now: float) -> None:
        """Delete the fact: what a backend that fails says of itself is worth nothing."""
        self._drop_fact(view)

    def record_report(
        self, view: BackendView, report: LoadReport, now: float, *, is_probe: bool
    ) -> None:
        """Keep what a backend said as its newest fact."""
        if is_probe:
            self._asks = 0
            self._blind = None
        if view not in self._roster:
            return
        config = self._config
        weight = view.weight
        self._usual += config.usual_gain * (report.runnable / weight - self._usual)
        penalty = config.error_score * view.errors(now)
        self._scores.put(view, (report.runnable + 1.0 + penalty) / weight)
        self._fact_at[view] = now
        self._fact_at.move_to_end(view)

    def ask(self, now: float) -> Sequence[BackendView]:
        """Return backends to probe when facts are few or even the best is bad."""
        self._drop_old(now)
        if self._blind is not None or len(self._roster) < 2 or self._has_good_fact():
            return ()
        if not self._budget.take(now, self._config.probes):
            return ()
        if self._asks == 0:
            self._asking_since = now
        self._asks += 1
        if (
            self._asks > self._config.unanswered_asks
            and now - self._asking_since >= self._config.unanswered_seconds
        ):
            self._go_blind(now)
            return ()
        return self._draw_some()

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend with the best fact and use the fact up; without facts, by weight."""
        self._drop_old(now)
        if self._blind is not None and not self._has_good_fact():
            return self._blind.pick(now, avoid)
        best = self._scores.first(avoid)
        if best is None or (avoid and best[3] in avoid):
            return self._draw(avoid)
        view = best[3]
        self._drop_fact(view)
        return view

    def take_probes(self) -> Sequence[BackendView]:
        """Return one backend now and then while probes get no answer: they may get one again."""
        view = self._trial
        self._trial = None
        return () if view is None or view not in self._roster else (view,)

    def wake(self, now: float) -> None:
        """Learn the weights anew and trim them by utilization."""
        views = list(self._roster)
        self._weights.refresh(views, now)
        self._trim(views, now)
        if self._blind is not None:
            for view in views:
                self._blind.changed(view)
            self._trial = self._roster.draw(self._rng)

    def _has_good_fact(self) -> bool:
        if len(self._fact_at) < 2:
            return False
        best = self._scores.first()
        limit = self._config.worse_ratio * (self._usual + 1.0)
        return best is not None and best[0] <= limit

    def _drop_fact(self, view: BackendView) -> None:
        if self._fact_at.pop(view, None) is not None:
            self._scores.discard(view)

    def _drop_old(self, now: float) -> None:
        oldest_at = now - self._config.fact_seconds
        facts = self._fact_at
        while facts:
            view = next(iter(facts))
            if facts[view] > oldest_at:
                return
            self._drop_fact(view)

    def _draw_some(self) -> list[BackendView]:
        """Draw backends by weight, preferring those without a fact."""
        drawn: list[BackendView] = []
        wanted = min(self._config.probes, len(self._roster))
        for _ in range(_DRAWS):
            view = self._draw(drawn)
            if view is not None and view not in self._fact_at:
                drawn.append(view)
                if len(drawn) == wanted:
                    return drawn
        while len(drawn) < wanted:
            view = self._draw(drawn)
            if view is None or view in drawn:
                break
            drawn.append(view)
        return drawn

    def _draw(self, avoid: Collection[BackendView]) -> BackendView | None:
        """Return a backend with a chance in proportion to its weight."""
        rng = self._rng
        view = None
        for _ in range(_DRAWS):
            view = self._roster.draw(rng, avoid)
            if view is None or rng.random() * self._max_weight <= view.weight:
                return view
        return view

    def _trim(self, views: Sequence[BackendView], now: float) -> None:
        config = self._config
        known = [(view, used) for view in views if (used := _utilization(view, now)) > 0.0]
        mean = sum(used for _, used in known) / (len(known) or 1)
        for view in views:
            view.trim *= config.trim_keep_ratio
        for view, used in known:
            trim = view.trim + config.trim_gain * math.log(mean / used)
            view.trim = min(config.trim_limit, max(-config.trim_limit, trim))
        for view in views:
            if now - view.healthy_since < config.newcomer_seconds:
                view.trim = config.newcomer_trim
            view.weight *= math.exp(view.trim)
        # Back to a mean of 1, so that scores of different seconds can be compared.
        total = sum(view.weight for view in views)
        for view in views:
            view.weight *= len(views) / total
        self._max_weight = max((view.weight for view in views), default=1.0)

    def _go_blind(self, now: float) -> None:
        self._blind = WeightedLeastLoaded(self._weight_config)
        for view in self._roster:
            self._blind.add(view, now)


def _utilization(view: BackendView, now: float) -> float:
    """Return what a backend lately reported, or 0 where that is unknown or old.

    An integral over an old value would run to its limit.
    """
    if view.report is None or now - view.reported_at > _FRESH_SECONDS:
        return 0.0
    return view.report.utilization
