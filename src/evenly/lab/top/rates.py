"""Compare what one end point said at two instants: rates, gauges and percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

from evenly.lab.top.read import Labels, Page, is_counter

__all__ = ["Sight", "latency_of", "ratio", "rising", "total"]


@final
@dataclass(frozen=True, kw_only=True)
class Sight:
    """Be what is known of one end point: its page now, and one from before to compare with."""

    url: str
    instance: str
    page: Page | None = None
    problem: str | None = None
    """Why there is no page now."""
    is_of_others: bool = False
    """Whether there is one, but without anything of evenly's services."""
    is_listed: bool = True
    """Whether it is still to be asked; a list may have left it out."""
    before: Page | None = None
    """The last page before this one."""
    seconds: float | None = None
    """How much time lies between the two pages; `None` if that is too much, or not known."""

    @property
    def services(self) -> frozenset[str]:
        """What it is about, or was when it answered last."""
        known = self.page or self.before
        return frozenset() if known is None else known.services

    def is_about(self, service: str, prefix: str) -> bool:
        """Return whether it is a backend, or a client, of the service, or was one."""
        known = self.page or self.before
        return known is not None and known.has(service, prefix)

    def gauge(self, service: str, name: str, **labels: str) -> float | None:
        """Return the sum of the series with these labels, or `None` if there are none."""
        if self.page is None:
            return None
        series = self.page.series(service, name)
        return total(series[key] for key in _matching(series, labels))

    def rate(self, service: str, name: str, **labels: str) -> float | None:
        """Return by how much the series with these labels grow per second, or `None`."""
        if self.page is None or not self.seconds:
            return None
        series = self.page.series(service, name)
        if not series:
            return None
        risen = sum(self.rise(service, name, key) for key in _matching(series, labels))
        return risen / self.seconds

    def rise(self, service: str, name: str, key: Labels) -> float:
        """Return by how much one counter has grown between the two pages; 0 if they lie too far."""
        if self.page is None or self.before is None or not self.seconds:
            return 0.0
        now = self.page.series(service, name).get(key, 0.0)
        if self.has_restarted:
            return now
        return now - self.before.series(service, name).get(key, 0.0)

    def gauges_by(self, service: str, name: str, label: str) -> dict[str, float]:
        """Return the sums of the series, by a label's values."""
        series = {} if self.page is None else self.page.series(service, name)
        return _by_label(series, label)

    def rates_by(self, service: str, name: str, label: str) -> dict[str, float]:
        """Return by how much the series grow per second, by a label's values."""
        if self.page is None or not self.seconds:
            return {}
        risen = {
            key: self.rise(service, name, key) / self.seconds
            for key in self.page.series(service, name)
        }
        return _by_label(risen, label)

    @cached_property
    def has_restarted(self) -> bool:
        """Whether any counter fell: then all of them began again at zero.

        Not counter by counter, as Prometheus has to do it: one that has by now overtaken its old
        value would be read as slow, and the buckets of a histogram would no longer fit together.
        """
        if self.page is None or self.before is None:
            return False
        now = self.page.values
        return any(
            now.get(which, {}).get(key, 0.0) < value
            for which, series in self.before.values.items()
            if is_counter(which[1])
            for key, value in series.items()
        )


def _matching(series: Mapping[Labels, float], labels: Mapping[str, str]) -> Iterator[Labels]:
    wanted = labels.items()
    return (key for key in series if wanted <= key)


def _by_label(series: Mapping[Labels, float], label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in series.items():
        for what, label_value in key:
            if what == label:
                found[label_value] = found.get(label_value, 0.0) + value
    return found


def rising(sight: Sight, service: str, name: str) -> float:
    """Return by how much all series of a counter have grown between the two pages."""
    series = {} if sight.page is None else sight.page.series(service, name)
    return sum(sight.rise(service, name, key) for key in series)


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, or `None` if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return part over whole, or `None` where that says nothing."""
    return None if part is None or not whole or whole < 0.0 else part / whole


def latency_of(
    sights: Iterable[Sight], service: str, name: str, quantiles: Sequence[float]
) -> list[float] | None:
    """Return quantiles of what succeeded between the two pages, or `None` if nothing did."""
    buckets: dict[float, float] = {}
    for sight in sights:
        if sight.page is None:
            continue
        for key in sight.page.series(service, name):
            labels = dict(key)
            bound = _bound(labels.get("le", ""))
            if labels.get("outcome") == "ok" and bound is not None:
                buckets[bound] = buckets.get(bound, 0.0) + sight.rise(service, name, key)
    steps = _steps(buckets)
    # A histogram of one bucket, which has everything in it, says nothing.
    if len(steps) < 2 or steps[-1][1] <= 0.0:
        return None
    return [_quantile(steps, quantile) for quantile in quantiles]


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound >= 0.0 else None


def _steps(buckets: Mapping[float, float]) -> list[tuple[float, float]]:
    """Return bounds with how many lie at or below each: never fewer than at the one before."""
    steps, most = [], 0.0
    for bound in sorted(buckets):
        most = max(most, buckets[bound])
        steps.append((bound, most))
    return steps


def _quantile(steps: Sequence[tuple[float, float]], quantile: float) -> float:
    """Interpolate within the bucket, as Prometheus's histogram_quantile does."""
    rank = quantile * steps[-1][1]
    (low, below), (high, upto) = next(
        (under, over)
        for under, over in pairwise([(0.0, 0.0), *steps])
        if over[1] >= rank and over[1] > under[1]
    )
    if math.isinf(high):
        return low  # Nothing is known of it but that it is more.
    return low + (high - low) * (rank - below) / (upto - below)
