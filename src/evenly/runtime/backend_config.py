"""What a user may set about the serving side, whatever the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from evenly.core import check
from evenly.core.backend_task_config import BackendTaskConfig
from evenly.core.claim import Trust
from evenly.errors import ConfigError
from evenly.probe.config import ProbeConfig
from evenly.signals.cpu import effective_cores

__all__ = ["BackendConfig", "default_task"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Set how this process serves."""

    task: BackendTaskConfig | None = None
    """What is admitted and reported.  `None`: the defaults, with the CPUs that one event loop can
    use: one, or less where the control group allows less."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    trusted_networks: tuple[str, ...] = ()
    """Peers that are believed besides the near ones, such as `("203.0.113.0/24",)`."""
    trust_near: bool = True
    """Whether loopback and private networks are believed.  Turn it off where a proxy passes on what
    strangers claim."""
    own_signals: tuple[str, ...] = ()
    """Signals of `task`, or `runnable`, that the application records (`runtime.record_signal`), and
    for which the system is not read: `("cpu", "runnable")` where the work is done by an
    accelerator.  Signals of a name of your own need not be listed."""
    orca: Literal["foreign", "always", "never"] = "foreign"
    """Who gets an ORCA report with each response: clients that are not evenly's, all, or none."""
    orca_least_seconds: float = 1.0
    """Out-of-band ORCA reports come no more often, whatever a client asks for."""

    def __post_init__(self) -> None:
        Trust(self.trusted_networks)  # It checks them.
        if self.orca not in ("foreign", "always", "never"):
            raise ConfigError(f"orca must be 'foreign', 'always' or 'never', not {self.orca!r}")
        check.number("orca_least_seconds", self.orca_least_seconds, 0.01, 3600.0)
        task = BackendTaskConfig() if self.task is None else self.task
        known_signals = ("runnable", *task.utilization.signals)
        for name in self.own_signals:
            if name not in known_signals:
                known = ", ".join(known_signals)
                raise ConfigError(f"own_signals must be signals of the task: {known}; not {name!r}")


def default_task() -> BackendTaskConfig:
    """Return what a `BackendConfig` without a task has: the CPUs that one event loop can use."""
    return BackendTaskConfig(cores=min(1.0, effective_cores()))
