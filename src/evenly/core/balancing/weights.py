"""How much each backend should get, from what the backends say of themselves.

SRE book, chapter 20, "Weighted Round Robin": clients keep a capability score from the "number of
successful requests handled and at what utilization cost; failed requests result in a penalty".  The
formula is gRFC A58's:

    weight = qps / (utilization + eps / qps * error_penalty)

with every weight held within 0.1 to 10 times the median, and then divided by the mean, so that a
weight of 1 is a fair share.  Where we differ from A58: the median, because one wrong unit moves a
mean as far as it likes; a quotient far beyond any machine is a mistake, and not the best of offers
(`unbelievable_ratio`); the lower bound (C-core: 0.01); a backend that has just become healthy
starts low and ramps up, instead of being sent a fair share while it is still cold; and the quotient
is trusted as far as the backend is busy (`Weights.trust`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import final

from evenly.core import check
from evenly.core.balancing.backend import BackendView
from evenly.core.report import LoadReport

__all__ = ["WeightConfig", "Weights", "scale_to_mean"]


# Below a thousandth of what was provisioned, one request more or less changes the ratio; and the
# quotient of a vanishing number would be infinite.
_LEAST_UTILIZATION = 0.001


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightConfig:
    """Set how weights follow from reports.  Defaults are gRFC A58's where it has one."""

    error_penalty: float = 1.0
    """How much a backend that fails everything adds to its utilization.  At 0 a backend that fails
    at no cost looks infinitely capable: the sinkhole."""
    blackout_seconds: float = 10.0
    """Reports must have come for so long before they count: first reports cover too little."""
    expiry_seconds: float = 180.0
    """A weight without a new report for so long is forgotten."""
    min_ratio: float = 0.1
    max_ratio: float = 10.0
    """Weights are held within these multiples of the median weight."""
    unbelievable_ratio: float = 3.0
    """Beyond this multiple of `max_ratio` a weight is the less believed the larger it is: the share
    falls from `max_ratio` in inverse proportion, down to that of the median."""
    idle_utilization: float = 0.1
    """Where a backend uses so much, half of what its reports say of its weight is believed, and
    half that it is as good as the others: what a process uses without any request is a few
    hundredths.  At 0 all is believed."""
    smoothing_seconds: float = 10.0
    """Rate and utilization are averaged over so long, where reports have noisier ones."""
    slow_start_seconds: float = 10.0
    """A backend just become healthy ramps from `min_ratio` to its full weight; 0 switches off."""

    def __post_init__(self) -> None:
        check.number("error_penalty", self.error_penalty, 0.0, 1000.0)
        check.number("blackout_seconds", self.blackout_seconds, 0.0, 86400.0)
        check.positive("expiry_seconds", self.expiry_seconds)
        check.number("min_ratio", self.min_ratio, 0.001, 1.0)
        check.number("max_ratio", self.max_ratio, 1.0, 1000.0)
        check.number("unbelievable_ratio", self.unbelievable_ratio, 1.0, 1e9)
        check.number("idle_utilization", self.idle_utilization, 0.0, 1.0)
        check.positive("smoothing_seconds", self.smoothing_seconds)
        check.number("slow_start_seconds", self.slow_start_seconds, 0.0, 86400.0)


@final
class Weights:
    """Turn reports into `BackendView.weight`, once a second."""

    __slots__ = ("_config", "_is_settled")

    def __init__(self, config: WeightConfig) -> None:
        self._config = config
        self._is_settled = False

    def welcome(self, view: BackendView, now: float) -> None:
        """Let a backend that joins start low, rather than from the next refresh on.

        Those that join before the first refresh are all equally new.
        """
        if self._is_settled and now - view.healthy_since < self._config.slow_start_seconds:
            view.weight = self._warmth(view, now)

    def refresh(self, views: Collection[BackendView], now: float) -> None:
        """Set every backend's weight; unknown ones get the mean of the known."""
        self._is_settled = True
        known: list[tuple[BackendView, float]] = []
        for view in views:
            weight = self._known_weight(view, now)
            if weight > 0.0:
                known.append((view, weight))
            else:
                view.weight = 1.0
        if known:
            usual = median(weight for _, weight in known)
            known = [(view, self._believed(view, weight / usual)) for view, weight in known]
            mean = sum(ratio for _, ratio in known) / len(known)
            for view, ratio in known:
                view.weight = ratio / mean
        if self._config.slow_start_seconds > 0.0:
            for view in views:
                view.weight *= self._warmth(view, now)
        scale_to_mean(views)

    def _known_weight(self, view: BackendView, now: float) -> float:
        config = self._config
        report, reported_at = view.newest_report()
        if report is None or now - reported_at >= config.expiry_seconds:
            view.reports_since = None
            return 0.0
        used = _used(report, config.error_penalty)
        if used <= 0.0:
            return 0.0
        if view.reports_since is None:
            view.reports_since = view.averaged_at = now
            view.mean_qps = report.qps
            view.mean_used = used
        else:
            # Means of both rather than of their quotient: in a second in which one long request
            # holds the CPU, few requests at some utilization say little, and so weigh little.
            seconds = max(0.0, now - view.averaged_at)  # A clock may step back.
            keep = math.exp(-seconds / config.smoothing_seconds)
            view.averaged_at = now
            # Not "mean += gain * (new - mean)": where the mean is 1e18 that leaves 0 of a new 0.5.
            view.mean_qps = keep * view.mean_qps + (1.0 - keep) * report.qps
            view.mean_used = keep * view.mean_used + (1.0 - keep) * used
        if now - view.reports_since < config.blackout_seconds:
            return 0.0
        return view.mean_qps / view.mean_used

    def trust(self, utilization: float) -> float:
        """Return how far a utilization tells what requests cost: from 0 when idle to 1 when busy.

        An idle process uses some CPU too.  There qps / utilization is larger for whoever happens to
        get more requests, who would then be sent still more.

            trust = u^2 / (u^2 + idle_utilization^2)

        A square: a busy backend must be believed (96 % at a half), one at rest not at all.
        """
        idle = self._config.idle_utilization
        return 1.0 / (1.0 + (idle / utilization) ** 2) if utilization > idle * 1e-3 else 0.0

    def _believed(self, view: BackendView, ratio: float) -> float:
        """Return a weight between the median's, which is 1, and what a backend's reports say."""
        config = self._config
        believable = config.unbelievable_ratio * config.max_ratio
        if ratio > believable:
            ratio = max(1.0, config.max_ratio * believable / ratio)
        trust = self.trust(view.mean_used)
        believed = trust * ratio + (1.0 - trust)
        return min(config.max_ratio, max(config.min_ratio, believed))

    def _warmth(self, view: BackendView, now: float) -> float:
        age = now - view.healthy_since
        config = self._config
        if age >= config.slow_start_seconds:
            return 1.0
        return max(config.min_ratio, age / config.slow_start_seconds)


def scale_to_mean(views: Collection[BackendView]) -> None:
    """Divide the weights by their mean, so that 1 is a fair share again."""
    total = sum(view.weight for view in views)
    for view in views:
        view.weight *= len(views) / total


def _used(report: LoadReport, error_penalty: float) -> float:
    """Return the denominator of gRFC A58's weight, or 0 where the report has too little to tell."""
    if report.qps <= 0.0 or report.utilization < _LEAST_UTILIZATION:
        return 0.0
    return report.utilization + min(1.0, report.eps / report.qps) * error_penalty
