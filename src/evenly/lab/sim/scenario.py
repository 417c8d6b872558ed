"""Describe one story to simulate: who sends, who serves, over what network, and what goes wrong.

A scenario is a TOML file; its keys are the fields of these classes, unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from evenly.core import check
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.datacenter import DatacenterConfig
from evenly.core.balancing.policies.catalogue import POLICIES
from evenly.core.client_task import ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.errors import ConfigError
from evenly.lab.sim.fault_config import (
    FaultConfig,
    FaultOfBackends,
    PartitionFault,
    RestartClientsFault,
    SurgeFault,
)
from evenly.lab.sim.service import ServiceConfig

__all__ = [
    "OMNISCIENT",
    "OMNISCIENT_LEAST_CPU",
    "SIMULATED_POLICIES",
    "BurstConfig",
    "ClientsConfig",
    "CustomerConfig",
    "DatacenterShare",
    "NetworkConfig",
    "PhaseConfig",
    "Scenario",
    "WorkloadConfig",
]

OMNISCIENT: Final = "omniscient"
"""The limit: it knows every queue and every cost, and sends where a request completes first."""
OMNISCIENT_LEAST_CPU: Final = "omniscient_least_cpu"
"""It knows every CPU: it sends to the least used of those that can begin at once."""
SIMULATED_POLICIES: Final = (*POLICIES, OMNISCIENT_LEAST_CPU, OMNISCIENT)

_MOST_SECONDS = 86_400.0
_MOST_LOAD = 1_000.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerConfig:
    """Describe one customer: its part of the requests."""

    name: str
    share: float = 1.0
    """Its part of the requests, in proportion to the others'."""

    def __post_init__(self) -> None:
        check.number("share", self.share, 0.0, 1e9)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BurstConfig:
    """Multiply the load now and then, for everyone at once."""

    every_seconds: float
    seconds: float
    factor: float

    def __post_init__(self) -> None:
        check.number("every_seconds", self.every_seconds, 0.001, _MOST_SECONDS)
        check.number("seconds", self.seconds, 0.0, self.every_seconds)
        check.number("factor", self.factor, 0.0, 1000.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Describe the requests: a Poisson stream per client task, and what each request carries."""

    criticalities: Mapping[Criticality, float] = field(
        default_factory=lambda: {Criticality.CRITICAL: 1.0}
    )
    """Parts of the requests, in proportion."""
    customers: tuple[CustomerConfig, ...] = ()
    """Empty: all requests belong to the nameless one."""
    timeout_seconds: float = 10.0
    """How long a request may take before its caller gives it up."""
    idempotent: bool = False
    wait_for_ready: bool = False
    """Where there is no backend, requests wait for one until their time-out."""
    bursts: BurstConfig | None = None
    calls_per_user: int = 1
    """More: a user makes so many at once, and needs them all."""
    shares_luck: bool = True
    """Whether all calls of a user have the same luck; otherwise each is drawn by itself."""

    def __post_init__(self) -> None:
        for criticality, share in self.criticalities.items():
            check.number(f"criticalities.{criticality.name}", share, 0.0, 1e9)
        if not sum(self.criticalities.values()) > 0.0:
            raise ConfigError("criticalities must have at least one share above 0")
        if self.customers and not sum(customer.share for customer in self.customers) > 0.0:
            raise ConfigError("customers must have at least one share above 0")
        check.number("timeout_seconds", self.timeout_seconds, 0.001, _MOST_SECONDS)
        check.count("calls_per_user", self.calls_per_user, 1, 1000)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsConfig:
    """Describe the client tasks."""

    count: int = 20
    rate_sigma: float = 0.0
    """How unequal they are: the standard deviation of the logarithm of their request rates."""
    start_seconds: float = 1.0
    """They start over so long, at the beginning of the run."""

    def __post_init__(self) -> None:
        check.count("count", self.count, 1, 100_000)
        check.number("rate_sigma", self.rate_sigma, 0.0, 3.0)
        check.number("start_seconds", self.start_seconds, 0.0, _MOST_SECONDS)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Describe the network between clients and backends."""

    delay_seconds: float = 0.0005
    """One way, at the least."""
    jitter_ratio: float = 0.2
    """A message takes up to so much longer, in delays; uniform."""
    loss_ratio: float = 0.0
    """A lost probe is gone; anything else is sent again, `resend_seconds` later."""
    resend_seconds: float = 0.2
    between_seconds: float = 0.02
    """The delay between two datacenters, in place of `delay_seconds`."""

    def __post_init__(self) -> None:
        check.number("delay_seconds", self.delay_seconds, 0.0, 10.0)
        check.number("jitter_ratio", self.jitter_ratio, 0.0, 100.0)
        check.number("loss_ratio", self.loss_ratio, 0.0, 0.9)
        check.number("resend_seconds", self.resend_seconds, 0.0, 60.0)
        check.number("between_seconds", self.between_seconds, 0.0, 10.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """Offer one load for a while."""

    seconds: float
    load: float | None = None
    """As a multiple of capacity; `None`: the load of the row, and this phase is the measured
    one."""

    def __post_init__(self) -> None:
        check.number("seconds", self.seconds, 0.001, _MOST_SECONDS)
        if self.load is not None:
            check.number("load", self.load, 0.0, _MOST_LOAD)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatacenterShare:
    """Say how much of the clients and of the topmost service stands in one datacenter."""

    name: str
    clients_ratio: float
    backends_ratio: float

    def __post_init__(self) -> None:
        check.fraction("clients_ratio", self.clients_ratio)
        check.fraction("backends_ratio", self.backends_ratio)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Describe one story."""

    title: str
    seconds: float = 60.0
    """How long the story is, unless it has phases."""
    settle_seconds: float = 15.0
    """What is not measured at the beginning: weights have a blackout of 10 s."""
    phases: tuple[PhaseConfig, ...] = ()
    """Loads one after another; empty: one of `seconds` at the row's load."""
    loads: tuple[float, ...] = (0.7,)
    """Offered loads, as multiples of capacity: one row for each."""
    policies: tuple[str, ...] = ("probing",)
    """One row for each."""
    ideal: bool = True
    """Whether the omniscient balancer runs too, so that p99 can be compared with the limit; it
    does not where it is none: with datacenters, services below or I/O."""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)
    backends: ServiceConfig = field(default_factory=ServiceConfig)
    """The topmost service, which the clients call."""
    below: tuple[ServiceConfig, ...] = ()
    """The services under it; each backend calls the next one once per request, half way."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    faults: tuple[FaultConfig, ...] = ()
    datacenters: tuple[DatacenterShare, ...] = ()
    datacenter: DatacenterConfig = field(default_factory=DatacenterConfig)
    client_task: ClientTaskConfig = field(default_factory=ClientTaskConfig)
    """The façade's own configuration, for every client task."""
    backend_task: BackendTaskConfig = field(default_factory=BackendTaskConfig)
    """The façade's own configuration, for every backend; its cores are the service's."""

    def __post_init__(self) -> None:
        check.number("seconds", self.seconds, 0.1, _MOST_SECONDS)
        check.number("settle_seconds", self.settle_seconds, 0.0, self.total_seconds)
        if not self.loads:
            raise ConfigError("loads must name at least one")
        for load in self.loads:
            check.number("loads", load, 0.0, _MOST_LOAD)
        if not self.policies:
            raise ConfigError("policies must name at least one")
        for policy in self.policies:
            if policy not in SIMULATED_POLICIES:
                raise ConfigError(
                    f"policies must be among {', '.join(SIMULATED_POLICIES)}, not {policy!r}"
                )
        measured = [phase for phase in self.phases if phase.load is None]
        if self.phases and len(measured) != 1:
            raise ConfigError(
                "phases must have exactly one without a load of its own, which is at the row's load"
                f" and measured, not {len(measured)}"
            )
        self._check_services()
        self._check_faults()

    def _check_services(self) -> None:
        _check_distinct("below", [service.name for service in self.services])
        _check_distinct("workload.customers", [each.name for each in self.workload.customers])
        _check_distinct("datacenters", [each.name for each in self.datacenters])
        if self.backend_task.cores != 1.0:
            raise ConfigError(
                f"backend_task.cores must be left alone, not {self.backend_task.cores!r}:"
                " it is the service's, backends.cores"
            )
        if self.datacenters:
            for key in ("clients_ratio", "backends_ratio"):
                total = sum(getattr(share, key) for share in self.datacenters)
                if abs(total - 1.0) > 1e-6:
                    raise ConfigError(f"datacenters must have {key} that sum to 1, not {total!r}")
        for policy in self.policies:
            if policy.startswith(OMNISCIENT) and not self._has_limit:
                raise ConfigError(
                    "policies must be without the omniscient ones where there are datacenters,"
                    f" below or io_seconds, not {policy!r}: they know one service, in which"
                    " requests wait for CPUs only"
                )

    def _check_faults(self) -> None:
        counts = {service.name: service.count for service in self.services}
        customers = [customer.name for customer in self.workload.customers]
        for place, fault in enumerate(self.faults):
            key = f"faults.{place}"
            check.number(f"{key}.at_seconds", fault.at_seconds, 0.0, self.total_seconds)
            if isinstance(fault, FaultOfBackends):
                name = fault.service or self.backends.name
                if name not in counts:
                    known = ", ".join(counts)
                    raise ConfigError(f"{key}.service must be one of {known}, not {name!r}")
                check.count(f"{key}.first", fault.first, 0, counts[name] - 1)
                check.count(f"{key}.backends", fault.backends, 0, counts[name] - fault.first)
            if isinstance(fault, PartitionFault | RestartClientsFault):
                check.count(f"{key}.clients", fault.clients, 0, self.clients.count)
            if isinstance(fault, SurgeFault) and fault.customer not in customers:
                known = ", ".join(customers) or "none"
                raise ConfigError(
                    f"{key}.customer must be one of the workload's ({known}),"
                    f" not {fault.customer!r}"
                )

    @property
    def _has_limit(self) -> bool:
        return not (self.datacenters or self.below or self.backends.io_seconds)

    @property
    def runs_ideal(self) -> bool:
        """Return whether the omniscient balancer runs too."""
        return self.ideal and self._has_limit

    @property
    def services(self) -> tuple[ServiceConfig, ...]:
        """Return all services, the topmost first."""
        return (self.backends, *self.below)

    @property
    def total_seconds(self) -> float:
        """Return how long the story is."""
        if self.phases:
            return sum(phase.seconds for phase in self.phases)
        return self.seconds

    @property
    def capacity(self) -> float:
        """Return how many requests per second the narrowest service can serve: load 1."""
        return min(service.capacity for service in self.services)


def _check_distinct(key: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key} must have names of their own, not {name!r} twice")
