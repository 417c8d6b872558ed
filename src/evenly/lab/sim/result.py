"""What one run of a scenario shows: one row of figures, and how they went over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

__all__ = ["Result", "Row", "Series"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Sum up the measured part of one run.  The fields, in this order, are the JSON keys.

    `None` stands for what there was nothing to measure: no request succeeded, no ideal run beside
    it, nothing to recover from.
    """

    policy: str
    seed: int
    load: float
    """Offered, as a multiple of capacity."""
    requests: int
    """Simulated in all, the unmeasured part included: what `cpu_seconds_spent` was spent on."""
    cpu_seconds_spent: float
    """CPU seconds of this machine: the only figure that differs between two runs."""
    goodput_ratio: float
    """Requests completed with success, over what could be: the smaller of offered and capacity."""
    errors_ratio: float
    """Requests that did not succeed, for whatever reason, over all."""
    p50_seconds: float | None
    p99_seconds: float | None
    """Of requests that succeeded, from the call site's begin; waiting for probes included."""
    p99_over_ideal: float | None
    cpu_p95_over_p5: float | None
    """Of the CPU used in 10 s, over the backends healthy throughout; the median of such windows."""
    cpu_max_over_min: float | None
    wasted_ratio: float | None
    """Σ(CPU[0] − CPU[i]) over n · CPU[0], where task 0 is the most loaded (book)."""
    success_by_criticality: Mapping[str, float]
    ideal_by_criticality: Mapping[str, float] = field(default_factory=dict)
    """What a system gives that serves the highest criticality first, up to capacity; empty where
    nothing has to be refused."""
    users_by_criticality: Mapping[str, float] = field(default_factory=dict)
    """Users all of whose calls succeeded, over all; empty where each makes one call."""
    success_by_client_rate: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By criticality: the success of the client tasks that send `seldom` and `often`, of which each
    have half of the requests; empty where all send alike."""
    attempts_per_request: float
    """Attempts that were sent to the lowest service, over the clients' requests."""
    probes_per_request: float
    """Every UDP question of the clients, health checks too, over the clients' requests."""
    recovery_seconds: float | None
    """From the end of the last overload or fault to the first of 2 s with ≥ 99 % success."""
    violations: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Show the run second by second; every list has one entry per simulated second."""

    measured: tuple[int, int]
    """The first second that is measured, and the one after the last."""
    has_recovered: bool
    """False if it had not by the end of the story: its recovery then took longer than it says."""
    capacity: float
    """Requests per second at load 1."""
    cpu: tuple[tuple[float, ...], ...]
    """Of each backend of the topmost service, for every second: busy cores over cores."""
    spread: tuple[float | None, ...]
    """p95 over p5 of the CPU of healthy backends."""
    wasted_ratio: tuple[float | None, ...]
    offered: Mapping[str, tuple[int, ...]]
    """Requests that began, by criticality."""
    succeeded: Mapping[str, tuple[int, ...]]
    """Those of them that succeeded."""
    p50_seconds: tuple[float | None, ...]
    p99_seconds: tuple[float | None, ...]
    attempts: tuple[int, ...]
    probes: tuple[int, ...]
    throttled: tuple[int, ...]
    """Requests refused by their own client task."""
    rejected: tuple[int, ...]
    """Attempts refused by backends."""
    connections: tuple[int, ...]
    """Connections opened."""
    success_by_customer: Mapping[str, float] = field(default_factory=dict)
    """Over the measured part as a whole; empty unless there are several customers."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Be one run's row and series."""

    row: Row
    series: Series
