"""Say which fleet is run: its backends, its clients, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final

from evenly.core import check
from evenly.core.criticality import Criticality
from evenly.errors import ConfigError
from evenly.lab.demo.bounds import MOST_EACH

__all__ = ["CUSTOMERS", "MIX", "USUAL_LOAD", "WILD", "WILD_LOAD", "BackendPlan", "Plan"]

MIX: Final[Mapping[Criticality, float]] = {
    Criticality.CRITICAL_PLUS: 0.1,
    Criticality.CRITICAL: 0.4,
    Criticality.SHEDDABLE_PLUS: 0.2,
    Criticality.SHEDDABLE: 0.3,
}
"""Which part of the requests has which criticality."""
CUSTOMERS: Final[Mapping[str, float]] = {"shop": 0.5, "search": 0.3, "ads": 0.2}
"""Which part of the requests is whose."""
WILD: Final = "wild"
"""The customer that can be made to run wild."""
WILD_LOAD: Final = 2.0
"""What it then asks for on top, in units of the capacity."""
USUAL_LOAD: Final = 0.7
"""What the clients ask for at first, in units of the capacity."""

# Four to one, as machines of several generations are; on average 1.
_SPEEDS: Final = (1.6, 1.4, 1.2, 1.0, 1.0, 0.8, 0.5, 0.5)
# Nobody listed can use so much here; they have a quota because customers have one.
_PLENTY: Final = 20.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPlan:
    """Describe one backend: a machine of its own speed."""

    name: str
    speed: float
    slots: int = 2
    """How many requests it works on at a time: its cores."""

    def __post_init__(self) -> None:
        check.number("speed", self.speed, 0.01, 100.0)
        check.count("slots", self.slots, 1, 1000)


def _backends() -> tuple[BackendPlan, ...]:
    return tuple(
        BackendPlan(name=f"b{number}", speed=speed) for number, speed in enumerate(_SPEEDS, 1)
    )


def _subset_size(backends: int, clients: int) -> int:
    """Return a size that shows what a subset is and leaves nobody without clients.

    Half of the backends, with two clients each at least; a lone client needs them all.
    """
    return min(backends, max(4, -(-backends // 2), -(-2 * backends // clients)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Describe the fleet; the defaults keep it below one core of this machine."""

    backends: tuple[BackendPlan, ...] = field(default_factory=_backends)
    clients: int = 4
    subset_size: int = 4
    work_seconds: float = 0.1
    """What a request takes on a machine of speed 1."""
    timeout_seconds: float = 2.0
    transport: Literal["grpc", "http"] = "grpc"
    is_real_cpu: bool = False
    """Whether backends burn CPU instead of sleeping: then the machine itself is the limit."""
    seed: int = 1

    def __post_init__(self) -> None:
        check.count("backends", len(self.backends), 1, MOST_EACH)
        check.count("clients", self.clients, 1, MOST_EACH)
        check.count("subset_size", self.subset_size, 1, 1000)
        check.number("work_seconds", self.work_seconds, 0.001, 10.0)
        check.number("timeout_seconds", self.timeout_seconds, 0.01, 60.0)
        if self.transport not in ("grpc", "http"):
            raise ConfigError(f"transport must be 'grpc' or 'http', not {self.transport!r}")

    @classmethod
    def of(
        cls,
        *,
        backends: int = 8,
        clients: int = 4,
        transport: Literal["grpc", "http"] = "grpc",
        is_real_cpu: bool = False,
    ) -> Plan:
        """Return the usual plan with so many processes, whatever their number."""
        check.count("backends", backends, 1, MOST_EACH)
        check.count("clients", clients, 1, MOST_EACH)
        chosen = tuple(
            BackendPlan(
                name=f"b{number + 1}",
                speed=_SPEEDS[number % len(_SPEEDS)],
                slots=1 if is_real_cpu else 2,
            )
            for number in range(backends)
        )
        return cls(
            backends=chosen,
            clients=clients,
            subset_size=_subset_size(backends, clients),
            work_seconds=0.02 if is_real_cpu else 0.1,
            transport=transport,
            is_real_cpu=is_real_cpu,
        )

    @property
    def capacity(self) -> float:
        """Requests per second that all backends together can serve."""
        if self.is_real_cpu:
            # They share this machine with their clients, which leave them about half of it.
            from evenly.signals.cpu import effective_cores  # noqa: PLC0415 -- only here

            return 0.5 * effective_cores() / self.work_seconds
        return sum(map(self.capacity_of, self.backends))

    def capacity_of(self, backend: BackendPlan) -> float:
        """Return how many requests per second one backend can serve."""
        return backend.slots * backend.speed / self.work_seconds

    def limits_of(self, backend: BackendPlan) -> dict[str, float]:
        """Return the customers' quotas at one backend, in normalised CPU seconds per second."""
        cores = backend.slots * backend.speed
        return dict.fromkeys(CUSTOMERS, _PLENTY * cores) | {WILD: 0.1 * cores}
