"""Describe one service of a scenario: its machines, what its requests cost, what troubles it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, final

from evenly.core import check
from evenly.errors import ConfigError

__all__ = ["AntagonistConfig", "RequestCostConfig", "RestartConfig", "ServiceConfig"]

_MOST_SECONDS = 86_400.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCostConfig:
    """Say what requests cost, in CPU seconds at speed 1."""

    kind: Literal["constant", "exponential", "lognormal", "bounded_pareto"] = "exponential"
    mean_seconds: float = 0.015
    sigma: float = 1.0
    """Of `lognormal`: the standard deviation of the logarithm."""
    shape: float = 1.5
    """Of `bounded_pareto`: the exponent of its tail."""
    spread: float = 1000.0
    """Of `bounded_pareto`: the most that a request costs over the least."""

    def __post_init__(self) -> None:
        check.number("mean_seconds", self.mean_seconds, 1e-6, 3600.0)
        check.number("sigma", self.sigma, 0.0, 5.0)
        check.number("shape", self.shape, 0.1, 100.0)
        check.number("spread", self.spread, 1.001, 1e9)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AntagonistConfig:
    """Let neighbours on the same machine slow a backend down now and then.

    Lengths are exponential; while an episode lasts, the backend's cores run at `speed_ratio`.
    """

    quiet_seconds: float = 20.0
    """The mean time between two episodes at one backend."""
    episode_seconds: float = 3.0
    speed_ratio: float = 0.6

    def __post_init__(self) -> None:
        check.number("quiet_seconds", self.quiet_seconds, 0.001, _MOST_SECONDS)
        check.number("episode_seconds", self.episode_seconds, 0.001, _MOST_SECONDS)
        check.number("speed_ratio", self.speed_ratio, 0.001, 1.0)

    @property
    def mean_speed_ratio(self) -> float:
        """Return what is left of the speed on average."""
        whole = self.quiet_seconds + self.episode_seconds
        return (self.quiet_seconds + self.episode_seconds * self.speed_ratio) / whole


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """Restart one backend after another, at random, all the time."""

    every_seconds: float = 5.0
    """The mean time between two restarts in the service."""

    def __post_init__(self) -> None:
        check.number("every_seconds", self.every_seconds, 0.01, _MOST_SECONDS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Describe the backends of one service."""

    name: str = "service"
    count: int = 20
    cores: int = 4
    """CPUs of one backend, behind one queue, first come first served."""
    speeds: tuple[float, float] = (1.0, 1.0)
    """The slowest and the fastest machine; the others lie evenly between them."""
    cost: RequestCostConfig = field(default_factory=RequestCostConfig)
    io_seconds: float = 0.0
    """The mean (exponential) time that a request waits for something else than a CPU, after half
    of its work."""
    reject_cost_ratio: float = 0.1
    """What refusing a request costs, in mean costs.  Refusals go before the queue, because they are
    made while requests are read off their sockets."""
    error_cost_ratio: float = 0.01
    """What an error costs while the backend fails fast, in mean costs."""
    probe_cost_seconds: float = 0.000009
    """What answering a probe costs (9 µs, measured on a socket drained in a loop)."""
    connect_cost_seconds: float = 0.0002
    """What accepting a connection costs, before the queue, as refusals do."""
    accept_backlog: int = 128
    """So many connections may wait to be accepted; the next is refused."""
    antagonists: AntagonistConfig | None = None
    restarts: RestartConfig | None = None
    down_seconds: float = 1.0
    """From the end of a process to its successor's listening."""
    warm_up_seconds: float = 1.0
    """How long a new process listens as lame duck before it announces itself."""
    cold_speed_ratio: float = 1.0
    """The speed at which a process begins to serve ..."""
    cold_seconds: float = 5.0
    """... and the time in which it comes up to full speed, in a straight line."""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ConfigError(f"name must be printable and not empty, not {self.name!r}")
        check.count("count", self.count, 1, 10_000)
        check.count("cores", self.cores, 1, 1_000)
        low, high = self.speeds
        check.number("speeds", low, 0.001, 1000.0)
        check.number("speeds", high, 0.001, 1000.0)
        if low > high:
            raise ConfigError(f"speeds must have the slowest first, not {self.speeds!r}")
        check.number("io_seconds", self.io_seconds, 0.0, 3600.0)
        check.number("reject_cost_ratio", self.reject_cost_ratio, 0.0, 10.0)
        check.number("error_cost_ratio", self.error_cost_ratio, 0.0, 10.0)
        check.number("probe_cost_seconds", self.probe_cost_seconds, 0.0, 1.0)
        check.number("connect_cost_seconds", self.connect_cost_seconds, 0.0, 10.0)
        check.count("accept_backlog", self.accept_backlog, 1, 1_000_000)
        check.number("down_seconds", self.down_seconds, 0.0, _MOST_SECONDS)
        check.number("warm_up_seconds", self.warm_up_seconds, 0.0, _MOST_SECONDS)
        check.number("cold_speed_ratio", self.cold_speed_ratio, 0.001, 1.0)
        check.number("cold_seconds", self.cold_seconds, 0.0, _MOST_SECONDS)
        if self.restarts is not None and not self._away_ratio() < 1.0:
            least = self._away_ratio() * self.restarts.every_seconds
            raise ConfigError(
                f"restarts.every_seconds must be above {least:g}, not"
                f" {self.restarts.every_seconds!r}: otherwise nobody is ever there to serve"
            )

    @property
    def capacity(self) -> float:
        """Return how many requests per second it can serve, by its mean cost and mean speed.

        Antagonists are taken off, and so is the time in which backends that restart serve nobody:
        draining (one second of quiet, by default), gone, warming up.
        """
        cpus = self.count * self.cores * math.fsum(self.speeds) / 2.0
        if self.antagonists is not None:
            cpus *= self.antagonists.mean_speed_ratio
        return cpus * (1.0 - self._away_ratio()) / self.cost.mean_seconds

    def _away_ratio(self) -> float:
        """Return which part of the backends is restarting, on average."""
        if self.restarts is None:
            return 0.0
        away_seconds = 1.0 + self.down_seconds + self.warm_up_seconds
        return away_seconds / self.restarts.every_seconds / self.count
