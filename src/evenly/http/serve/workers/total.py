"""Add up what the workers of one backend say: clients see one backend, and not its processes.

A request may land on any worker, because the kernel hands connections to whoever accepts first.  So
the sum tells a client what it meets on average:

    active, runnable, qps, eps    their sums: with N workers N times as much is served
    utilization                   the mean of those that know theirs (0 is unknown)
    latency                       the mean, weighed by qps: that of a request, not of a worker
    admits                        a criticality that at least half of the workers admit

The last is the likelier answer.  One worker that is stuck must not make clients throttle what all
others would take, and one idle worker must not invite what all others refuse; what the fewer say
still reaches the client, as a rejection or as a response.  The order of criticalities is kept: if
half admit one, they admit all higher ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from evenly.core.report import LoadReport

__all__ = ["Total", "total_of"]

# Four counts in one number, 16 bits each: how many workers admit each criticality.
_LANE_BITS: Final = 16
_LANE: Final = (1 << _LANE_BITS) - 1
_LANES: Final = tuple(
    sum((admits >> place & 1) << _LANE_BITS * place for place in range(4)) for admits in range(16)
)
# The bounds of a LoadReport, which a sum of reports could pass.
_MOST_ACTIVE: Final = 2**32 - 1
_MOST: Final = 1e15
# Rates decay for ever, down to where products of floats vanish.
_LEAST_QPS: Final = 1e-9


class Total(NamedTuple):
    """Be the sum of some reports; a tuple, because a worker makes one per response."""

    workers: int = 0
    active: int = 0
    runnable: float = 0.0
    qps: float = 0.0
    eps: float = 0.0
    compute_units: float = 0.0
    utilization: float = 0.0
    utilization_known: int = 0
    latency_seconds: float = 0.0
    latency_known: int = 0
    spent: float = 0.0
    """qps × latency, ..."""
    spent_qps: float = 0.0
    """... and the qps in it."""
    admitting: int = 0

    def plus(self, report: LoadReport) -> Total:
        """Return the sum with one report more."""
        latency_seconds = report.latency_seconds
        qps = report.qps
        return Total(
            self.workers + 1,
            self.active + report.active,
            self.runnable + report.runnable,
            self.qps + qps,
            self.eps + report.eps,
            self.compute_units + report.compute_units,
            self.utilization + report.utilization,
            self.utilization_known + (report.utilization > 0.0),
            self.latency_seconds + latency_seconds,
            self.latency_known + (latency_seconds > 0.0),
            self.spent + qps * latency_seconds,
            self.spent_qps + (qps if latency_seconds else 0.0),
            self.admitting + _LANES[report.admits],
        )

    def report(self, backend: LoadReport) -> LoadReport:
        """Return the sum as what `backend` says: its state, its boot and its port for probes."""
        count = self.workers
        if not count:
            return backend
        if self.spent_qps > _LEAST_QPS:
            latency_seconds = self.spent / self.spent_qps
        else:
            latency_seconds = self.latency_seconds / max(1, self.latency_known)
        return LoadReport(
            boot=backend.boot,
            sequence=backend.sequence,
            lame_duck=backend.lame_duck,
            probe_port=backend.probe_port,
            admits=0b1111 if self.admitting == count * _LANES[0b1111] else self._admits(),
            runnable=min(_MOST, self.runnable),
            active=min(_MOST_ACTIVE, self.active),
            utilization=self.utilization / max(1, self.utilization_known),
            qps=min(_MOST, self.qps),
            eps=min(_MOST, self.eps),
            latency_seconds=latency_seconds,
            compute_units=self.compute_units / count,
        )

    def _admits(self) -> int:
        return sum(
            1 << place
            for place in range(4)
            if 2 * (self.admitting >> _LANE_BITS * place & _LANE) >= self.workers
        )


def total_of(reports: Iterable[LoadReport]) -> Total:
    """Add up reports."""
    total = Total()
    for report in reports:
        total = total.plus(report)
    return total
