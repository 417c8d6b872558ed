"""What one backend admits and reports: every number that its façade goes by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from evenly.core import check
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import AttemptHistogramConfig
from evenly.core.overload.utilization import UtilizationConfig

__all__ = ["BackendTaskConfig"]

_NO_TUNING: Final = (
    "the cut-line follows from the work in the queue and needs no setting;"
    " limits_queue=False turns it off"
)
_INSTEAD: Final = dict.fromkeys(
    ("runnable_slack", "unit_seconds", "harmless_seconds", "burst_seconds"), _NO_TUNING
)


@final
@check.gone(_INSTEAD)
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTaskConfig:
    """Set what one backend admits and reports."""

    cores: float = 1.0
    """CPUs that the process may use: how many requests are served at once."""
    limits_queue: bool = True
    """Whether requests are refused so that those before them wait little (`overload/cut_line.py`);
    if not, only the utilization's signals and quotas refuse any."""
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
        check.positive("rate_seconds", self.rate_seconds)
        check.number("drain_seconds", self.drain_seconds, 0.0, 86_400.0)
        check.number("quiet_seconds", self.quiet_seconds, 0.0, 86_400.0)
        if self.probe_port is not None:
            check.count("probe_port", self.probe_port, 1, 65535)
