"""Use the backends' own truth, mostly for free: our default policy.

A *fact* is a backend's `runnable` (requests on a CPU there or waiting for one), from a response or
from a probe's answer.  It counts every client's requests, and only those that need a CPU, which are
the two things that the book finds missing in least loaded (chapter 20, "Least-Loaded Round Robin").

    score = (runnable + 1 + 10 * (failures + eps / qps)) / weight

Failures are recent errors of which the backend says nothing (timeouts, lost connections); eps / qps
is what it says that everyone gets: who has not met its errors yet need not, and one error in a
thousand is no reason to shun anyone.  Rejections do not count: a backend that rejects
tells its `runnable` too, and a penalty on top would drive all load to whichever has rejected least,
and round again.

The best live fact is picked and used up, because a fact that is used again locks clients onto a few
backends.  While the service is idle all facts are alike, and a draw by weight decides instead: the
best would be the heaviest, or one of the two that were just used and so have facts.  Where facts
are few, or even the best is bad, two backends are probed first, and the request waits for about a
round trip.  The weight is gRFC A58's (`weights.py`) times exp(trim), where the trim is the integral
of how far a backend's utilization lies from the median.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import ClassVar, final

from evenly.core import check
from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.doubts import Doubts
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.policies.weighted_least_loaded import WeightedLeastLoaded
from evenly.core.balancing.roster import Roster
from evenly.core.balancing.view_heap import ViewHeap
from evenly.core.balancing.weights import WeightConfig, Weights, scale_to_mean
from evenly.core.report import LoadReport
from evenly.core.window import TokenBucket

__all__ = ["Probing", "ProbingConfig"]

# How often to draw again for a backend that is not to be avoided, or has no fact yet, before taking
# what there is.
_DRAWS = 4
# Fewer probes in a second than this say little about how many are answered.
_FEW_PROBES = 10
# Beside so few requests per second, what became of them is history: by rates that decay with 1 s,
# that is 5 s after a single error, and then somebody may try again.
_LITTLE_QPS = 0.01
# Of a backend that fails so many, utilization tells nothing.
_MUCH_FAILING = 0.1
# Nor of one that gets so little of what its weight would give it: it is idle because it is avoided.
_LEAST_QPS_RATIO = 0.25
# Nor of one that says it is that far below the usual one, at no small part of its share: in a
# machine that is 30 times as fast nobody believes, but in a wrong unit.
_LEAST_USED_RATIO = 1.0 / 30.0
# So many times the usual load and one: a fact beyond moves the usual one no further.
_MOST_RATIO = 3.0
# Where the usual load, for a weight of 1, is less than this many runnable requests, the service is
# idle: at most every fifth request meets another.  Loads that differ by less are alike.
_ALIKE = 0.2
# A backend that refuses is not idle, whatever its trim says.  When all are full, utilization is the
# same and unwinds nothing, and the weight needs no trim: it is what they serve.
_REFUSING_KEEP_RATIO = 0.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingConfig:
    """Set how facts are used and when a probe is worth its wait."""

    fact_seconds: float = 0.12
    """How long a fact lives."""
    error_score: float = 10.0
    """How many runnable requests one recent error weighs."""
    worse_ratio: float = 1.1
    """Probe first when the best score is above this many times the usual one."""
    usual_gain: float = 0.05
    """How fast the usual `runnable` follows new facts."""
    probes: int = 2
    """Backends that are asked at once; 0 where the transport has no probes."""
    probes_per_second: float = 5000.0
    """Probing must never be able to hurt: above this rate, the policy picks without."""
    answered_min_ratio: float = 0.5
    """When fewer of a second's probes than this are answered: stop asking, because most requests
    would wait in vain."""
    unanswered_asks: int = 5
    unanswered_seconds: float = 0.5
    """So many asks over so long without any answer: stop asking, until a probe is answered again.
    Both, because many requests may ask at once, and because one lost datagram proves nothing."""
    trim_gain: float = 0.4
    """Per second, for the logarithm of median over own utilization."""
    trim_keep_ratio: float = 0.98
    """What is left of the trim after a second, so that old errors of it fade."""
    trim_limit: float = 1.4
    """The trim stays within ± this: at most about 4 × up or down."""
    fresh_seconds: float = 5.0
    """A utilization older than this moves no trim: an integral over it would run to its limit."""
    newcomer_trim: float = -1.0
    """The trim of a backend that has just become healthy ..."""
    newcomer_seconds: float = 3.0
    """... for so long."""

    def __post_init__(self) -> None:
        check.positive("fact_seconds", self.fact_seconds)
        check.number("error_score", self.error_score, 0.0, 1e6)
        check.number("worse_ratio", self.worse_ratio, 1.0, 1e6)
        check.fraction("usual_gain", self.usual_gain)
        check.count("probes", self.probes, 0, 10)
        check.number("probes_per_second", self.probes_per_second, max(1, self.probes), 1e9)
        check.fraction("answered_min_ratio", self.answered_min_ratio)
        check.count("unanswered_asks", self.unanswered_asks, 1, 1000)
        check.positive("unanswered_seconds", self.unanswered_seconds)
        check.number("trim_gain", self.trim_gain, 0.0, 10.0)
        check.fraction("trim_keep_ratio", self.trim_keep_ratio)
        check.number("trim_limit", self.trim_limit, 0.0, 10.0)
        check.positive("fresh_seconds", self.fresh_seconds)
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
        self._doubts = Doubts()
        self._roster = Roster()
        self._scores = ViewHeap()
        # When each live fact was received, oldest first.
        self._fact_at: OrderedDict[BackendView, float] = OrderedDict()
        # The load / weight that each tells.
        self._load_of: dict[BackendView, float] = {}
        self._usual = 0.0
        # Sums of the weights in the roster's order, for weighted draws; None after a change.
        self._sums: list[float] | None = None
        self._is_settled = False
        self._budget = TokenBucket(config.probes_per_second, config.probes_per_second)
        self._budget.level(now)
        self._asks = 0  # Since a probe was last answered.
        self._asked = 0  # Probes since the last wake, and their answers.
        self._answers = 0
        self._asking_since = now
        self._trial: BackendView | None = None
        # Used while probes get no answer; kept in step only then.
        self._blind: WeightedLeastLoaded | None = None
        self.follows_load = False
        self._weight_config = weight_config
        if config.probes == 0:
            self._go_blind(now)

    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend; one that joins after the first refresh starts low."""
        if self._is_settled and now - view.healthy_since < self._config.newcomer_seconds:
            view.weight = math.exp(self._config.newcomer_trim)
        self._roster.add(view)
        self._sums = None
        if self._blind is not None:
            self._blind.add(view, now)

    def remove(self, view: BackendView) -> None:
        """Forget a backend and its fact."""
        self._roster.remove(view)
        self._sums = None
        self._drop_fact(view)
        self._doubts.remove(view)
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
            self._answers += 1
            if self._config.probes:
                self._blind = None
                self.follows_load = False
        if view not in self._roster:
            return
        config = self._config
        failing = _failing(report)
        self._doubts.record_report(view, report, failing, len(self._roster) - 1, now)
        weight = view.weight
        load = report.runnable + self._penalty(view, failing, now)
        usual = self._usual
        # One that says a thousand times too much must not make any queue look short.
        told = min(load / weight, _MOST_RATIO * (usual + 1.0))
        self._usual = usual + config.usual_gain * (told - usual)
        self._load_of[view] = load / weight
        self._scores.put(view, (load + 1.0) / weight)
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
        self._asked += self._config.probes
        return self._draw_some()

    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend with the best fact and use the fact up; without facts, by weight."""
        self._drop_old(now)
        if self._blind is not None and not self._has_good_fact():
            return self._blind.pick(now, avoid)
        best = self._scores.first(avoid)
        if best is None or (avoid and best[3] in avoid):
            return self._better_of_two(avoid)
        view = best[3]
        if self._usual <= _ALIKE:
            drawn = self._draw(avoid)
            # Who keeps requests of ours waiting is not as good as usual, whatever is unheard of it:
            # its process may be stopped, or its event loop blocked.
            if (
                drawn is not None
                and drawn.load <= view.load + 1.0
                and abs(self._expected(drawn, now) - self._load_of[view]) <= _ALIKE
            ):
                view = drawn
        self._drop_fact(view)
        return view

    def take_probes(self) -> Sequence[BackendView]:
        """Return one backend now and then while probes get no answer: they may get one again."""
        view = self._trial
        self._trial = None
        self.wants_probes = False
        return () if view is None or view not in self._roster else (view,)

    def wake(self, now: float) -> None:
        """Learn the weights anew and trim them by utilization."""
        views = list(self._roster)
        self._is_settled = True
        self._weights.refresh(views, now)
        self._trim(views, now)
        self._sums = None
        self._judge_answers(now)
        if self._blind is not None:
            for view in views:
                self._blind.changed(view)
            self._trial = self._roster.draw(self._rng)
            self.wants_probes = True

    def _has_good_fact(self) -> bool:
        if len(self._fact_at) < 2:
            return False
        best = self._scores.first()
        limit = self._config.worse_ratio * (self._usual + 1.0)
        return best is not None and best[0] <= limit

    def _penalty(self, view: BackendView, failing: float, now: float) -> float:
        """Return how many runnable requests a backend's failures weigh."""
        told = max(failing, self._doubts.of(view, now))
        return self._config.error_score * (view.failures(now) + told)

    def _expected(self, view: BackendView, now: float) -> float:
        """Return the load / weight that a backend's fact tells; without one, the usual."""
        told = self._load_of.get(view)
        if told is not None:
            return told
        return self._usual + self._penalty(view, _failing(view.report), now) / view.weight

    def _drop_fact(self, view: BackendView) -> None:
        if self._fact_at.pop(view, None) is not None:
            del self._load_of[view]
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
        """Draw backends by weight, preferring those without a fact and long unheard of.

        The older of two: nothing is lost by it, and who is asked here needs no health check.
        """
        drawn: list[BackendView] = []
        wanted = min(self._config.probes, len(self._roster))
        for _ in range(_DRAWS):
            view = self._draw(drawn)
            other = self._draw(drawn)
            if view is None or other is None:
                break
            if other.reported_at < view.reported_at:
                view = other
            if view not in self._fact_at and view not in drawn:
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
        if not self._roster:
            return None
        if self._sums is None:
            self._sums = list(accumulate(view.weight for view in self._roster))
        rng = self._rng
        for _ in range(_DRAWS):
            place = bisect_right(self._sums, rng.random() * self._sums[-1])
            view = self._roster[min(place, len(self._sums) - 1)]
            if view not in avoid:
                return view
        return self._roster.draw(rng, avoid)

    def _better_of_two(self, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the less loaded of two that are drawn by weight: all that is known without facts.

        Load is this client task's own, and so is mostly zero with many clients: then it is the
        first, and the choice is in proportion to the weights.
        """
        first = self._draw(avoid)
        second = self._draw(avoid)
        if first is None or second is None:
            return first
        return second if second.load * first.weight < first.load * second.weight else first

    def _trim(self, views: Sequence[BackendView], now: float) -> None:
        config = self._config
        least_qps = _LEAST_QPS_RATIO * _usual_qps(views)  # at a weight of 1
        since = now - config.fresh_seconds
        told = [used for view in views if (used := _utilization(view, since)) > 0.0]
        least_used = _LEAST_USED_RATIO * median(told) if told else 0.0
        known = [
            (view, used)
            for view in views
            if (used := _utilization(view, since)) > least_used
            # One that fails fast is idle because it fails, or because nobody sends to it any more:
            # no reason to send it more.
            and view.report is not None
            and view.report.qps >= least_qps * view.weight
            and _failing(view.report) < _MUCH_FAILING
            and not self._doubts.of(view, now)
        ]
        usual = median(used for _, used in known) if known else 0.0
        gain = config.trim_gain * self._weights.trust(usual)
        for view in views:
            report = view.report
            # Without a word on its utilization nothing is known against a backend; but where it
            # fails, it has nothing to do, and says so.
            is_new = report is None or (report.utilization == 0.0 and report.eps == 0.0)
            view.trim = 0.0 if is_new else config.trim_keep_ratio * view.trim
        for view, used in known:
            trim = view.trim + gain * math.log(usual / used)
            if trim > 0.0 and view.report is not None and view.report.cut > 0.0:
                trim *= _REFUSING_KEEP_RATIO
            view.trim = min(config.trim_limit, max(-config.trim_limit, trim))
        for view in views:
            if now - view.healthy_since < config.newcomer_seconds:
                view.trim = config.newcomer_trim
            view.weight *= math.exp(view.trim)
        scale_to_mean(views)  # So that scores of different seconds can be compared.

    def _judge_answers(self, now: float) -> None:
        enough = self._config.answered_min_ratio * self._asked
        if self._asked >= _FEW_PROBES and self._answers < enough and self._blind is None:
            self._go_blind(now)
        self._asked = 0
        self._answers = 0

    def _go_blind(self, now: float) -> None:
        self._blind = WeightedLeastLoaded(self._weight_config, rng=self._rng)
        self.follows_load = True
        for view in self._roster:
            self._blind.add(view, now)


def _failing(report: LoadReport | None) -> float:
    """Return which part of its requests a backend says that it fails, if it has had any lately."""
    if report is None or report.eps == 0.0:
        return 0.0
    return min(1.0, report.eps / (report.qps + _LITTLE_QPS))


def _usual_qps(views: Sequence[BackendView]) -> float:
    """Return what a weight of 1 gets."""
    known = [view.report.qps / view.weight for view in views if view.report is not None]
    return median(known) if known else 0.0


def _utilization(view: BackendView, since: float) -> float:
    """Return what a backend reported since then, or 0 where that is unknown."""
    if view.report is None or view.reported_at < since:
        return 0.0
    return view.report.utilization
