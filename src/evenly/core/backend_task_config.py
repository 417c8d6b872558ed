"""What one backend admits and reports: every number that its façade goes by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from evenly.core import check
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import AttemptHistogramConfig
from evenly.core.overload.utilization import UtilizationConfig

__all__ = ["BackendTaskConfig"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTaskConfig:
    """Set what one backend admits and reports."""

    cores: float = 1.0
    """CPUs that the process may use; `runnable` is compared per core ..."""
    runnable_slack: float = 4.0
    """... after so many requests are taken off.  Queues vary by a few requests however many cores
    there are: a single core at 70 % has 2.3 in it on average, and must not shed for that."""
    unit_seconds: float = 0.005
    """A request that takes less CPU than this counts as so much less of one: a queue of sixty that
    take 50 µs each is worked off in 3 ms, and is what a busy server has."""
    harmless_seconds: float = 0.05
    """A queue that is worked off sooner than this refuses nothing at once, only when it lasts."""
    burst_seconds: float = 0.25
    """A queue that is worked off sooner than this refuses nothing for `rate_seconds` after the CPU
    was idle, and however long it is, nothing before it is known what requests take: a process that
    has just started has no evidence that it cannot do the work in time.  0: every queue counts."""
    utilization: UtilizationConfig = field(default_factory=UtilizationConfig)
    quota: QuotaConfig | None = None
    """`None`: customers have no limits."""
    cost: CostConfig = field(default_factory=CostConfig)
    attempts: AttemptHistogramConfig = field(default_factory=AttemptHistogramConfig)
    rate_seconds: float = 1.0
    """Over which requests and errors per second are averaged for the load report."""
    drain_seconds: float = 30.0
    """A lame duck exits after so long even if requests are left (book: 10 to 150)."""
    quiet_seconds: float = 1.0
    """... and otherwise when there has been none for so long: one may be on its way."""
    probe_port: int | None = None
    """What is announced at first; see `announce_probe_port`."""

    def __post_init__(self) -> None:
        check.number("cores", self.cores, 0.001, 100_000.0)
        check.number("runnable_slack", self.runnable_slack, 0.0, 10_000.0)
        check.number("unit_seconds", self.unit_seconds, 0.0, 3600.0)
        check.number("harmless_seconds", self.harmless_seconds, 0.0, 3600.0)
        check.number("burst_seconds", self.burst_seconds, 0.0, 3600.0)
        check.positive("rate_seconds", self.rate_seconds)
        check.number("drain_seconds", self.drain_seconds, 0.0, 86_400.0)
        check.number("quiet_seconds", self.quiet_seconds, 0.0, 86_400.0)
        if self.probe_port is not None:
            check.count("probe_port", self.probe_port, 1, 65535)
