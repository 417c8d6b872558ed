"""Read a metrics page: Prometheus's text to the few series that are shown.

The page comes from the network, so that nothing about it is believed: lines that are not about us
are skipped unread, lines and pages have bounds, and values that no counter can have are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise ImportError(
        'evenly top needs prometheus_client: pip install "evenly[prometheus]"', name=error.name
    ) from error

__all__ = ["LINES_MAX", "Labels", "NotOursError", "Page", "PageError", "is_counter", "read_page"]

Labels: TypeAlias = frozenset[tuple[str, str]]
"""The labels of a series, but for its service."""

LINES_MAX = 20_000
"""Series of ours that a page may have: four times those of an observer with 1,000 customers."""
# The parser takes quadratic time for a long label, and much for many.  Ours are four, of at most
# 128 characters each; somebody in between may have added some.
_LINE_MAX = 600
_LABELS_MAX = 8
# A counter of nanoseconds since the epoch is 1.8e18; more would spoil every sum it is part of.
_VALUE_MAX = 1e18
_PREFIX = "evenly_"
# What no figure is made of: not reading these halves the work.
_SKIPPED: Final = ("_created", "_sum")
_COUNTERS: Final = ("_total", "_count", "_bucket")


class PageError(ValueError):
    """Report that an answer is no metrics page, or none of ours."""


class NotOursError(PageError):
    """Report a metrics page without any metric of evenly's services."""


@final
@dataclass(frozen=True, slots=True)
class Page:
    """Be what one end point said at one instant: values by service, name and labels."""

    values: Mapping[tuple[str, str], Mapping[Labels, float]] = field(default_factory=dict)

    @property
    def services(self) -> frozenset[str]:
        """The services that the page is about."""
        return frozenset(service for service, _ in self.values)

    def series(self, service: str, name: str) -> Mapping[Labels, float]:
        """Return the series with this name, by their other labels."""
        return self.values.get((service, name), {})

    def has(self, service: str, prefix: str) -> bool:
        """Return whether there is any series of the service whose name begins so."""
        return any(of == service and name.startswith(prefix) for of, name in self.values)


def is_counter(name: str) -> bool:
    """Return whether a series with this name only ever grows, until its process ends."""
    return name.endswith(_COUNTERS)


def read_page(body: bytes) -> Page:
    """Return what a page says of evenly's services, or raise `PageError`."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise PageError("the answer is not text") from None
    values: dict[tuple[str, str], dict[Labels, float]] = {}
    for name, labels, value in _samples(_own_lines(text)):
        service = labels.pop("service", None)
        if service is None or not abs(value) <= _VALUE_MAX:  # NaN fails it too.
            continue
        series = values.setdefault((service, name), {})
        key = frozenset(labels.items())
        series[key] = series.get(key, 0.0) + value
    if not values:
        raise _why_nothing(text)
    return Page(values)


def _own_lines(text: str) -> list[str]:
    lines = []
    # Not by splitlines: it also ends lines at characters that a label may have.
    for line in text.split("\n"):
        name = line[: line.find("{")] if "{" in line else line.partition(" ")[0]
        if not name.startswith(_PREFIX) or name.endswith(_SKIPPED):
            continue
        if len(line) > _LINE_MAX:
            raise PageError(f"a line of the answer is longer than {_LINE_MAX:,} characters")
        # A value that ends in a backslash hides a quote: up to twice as many may pass, never fewer.
        if line.count('"') - line.count('\\"') > 2 * _LABELS_MAX:
            raise PageError(f"a line of the answer has more than {_LABELS_MAX} labels")
        lines.append(line)
        if len(lines) > LINES_MAX:
            raise PageError(f"the answer has more than {LINES_MAX:,} series of evenly")
    return lines


def _samples(lines: list[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                yield sample.name, dict(sample.labels), _number(sample.value)
    # All that the parser says of what it cannot read, times of 400 digits included.
    except (ValueError, IndexError, OverflowError):
        raise PageError("the answer is not in Prometheus's text format") from None


def _number(value: float) -> float:
    try:
        return float(value)  # The parser makes an int of digits, however many.
    except OverflowError:
        return math.nan


def _why_nothing(text: str) -> PageError:
    """Say whether it is no metrics page at all, or one of somebody else."""
    samples = (line for line in text.split("\n") if line.strip() and not line.startswith("#"))
    first = next(samples, "")
    if first:
        list(_samples([first[:_LINE_MAX]]))
    return NotOursError("the page has no metrics of evenly")
