"""Add up what the workers of one backend say: clients see one backend, and not its processes.

A request may land on any worker, because the kernel hands connections to whoever accepts first.  So
the sum tells a client what it meets on average:

    active, runnable, qps, eps    their sums: with N workers N times as much is served
    utilization                   the mean of those that know theirs (0 is unknown)
    latency                       the mean, weighed by qps: that of a request, not of a worker
    cut                           the mean cut-line

The last is a mean too.  One worker that is stuck must not make clients hold back what all others
would take, and one idle worker must not invite what all others refuse.  Each refuses by its own
cut-line all the same; what the fewer say still reaches the client, as a rejection or as a response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from evenly.core.report import LoadReport

__all__ = ["Total", "total_of"]

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
    cut: float = 0.0

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
            self.cut + report.cut,
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
            cut=self.cut / count,
            runnable=min(_MOST, self.runnable),
            active=min(_MOST_ACTIVE, self.active),
            utilization=self.utilization / max(1, self.utilization_known),
            qps=min(_MOST, self.qps),
            eps=min(_MOST, self.eps),
            latency_seconds=latency_seconds,
            compute_units=self.compute_units / count,
        )


def total_of(reports: Iterable[LoadReport]) -> Total:
    """Add up reports."""
    total = Total()
    for report in reports:
        total = total.plus(report)
    return total
