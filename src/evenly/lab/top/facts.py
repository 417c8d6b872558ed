"""Make facts of two scrapes: what each service, backend and client does per second.

Pure: pages in, facts out.  `None` is what is not known, and is never shown as a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, final

from evenly.lab.top.rates import Sight, latency_of, ratio, rising, total
from evenly.observe.labels import LEVELS

__all__ = [
    "BackendFacts",
    "ClientFacts",
    "CustomerFacts",
    "EndPointFacts",
    "Facts",
    "Latency",
    "ServiceFacts",
    "make_facts",
]

_CLIENT, _BACKEND = "evenly_client_", "evenly_backend_"
BackendState = Literal["healthy", "lame duck", "unknown", "no answer", "no longer listed"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Be percentiles of the attempts that succeeded, as the histogram's buckets show them."""

    p50_seconds: float
    p95_seconds: float
    p99_seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """Be what one backend says of itself."""

    instance: str
    state: BackendState
    utilization: float | None
    active: float | None
    admitted_per_second: float | None
    ok_per_second: float | None
    rejected_per_second: float | None
    cost_per_second: float | None
    cut: float | None
    """Its cut-line: requests below this level are rejected, 0 to 4."""
    is_degrading: bool | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """Be what one client task says of itself."""

    instance: str
    is_answering: bool
    is_listed: bool
    """Whether it is still asked; a list of targets may have left it out."""
    requests_per_second: float | None
    """Requests that were sent, each counted once."""
    refused_per_second: float | None
    retry_ratio: float | None
    active: float | None
    line: float | None
    """Requests below this level are not sent, 0 to 4."""
    throttle_probability: dict[str, float | None]
    throttled_customers: float | None
    """Customers with a throttle of their own, because they are out of quota."""
    healthy: float | None
    lame_ducks: float | None
    refusing: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerFacts:
    """Be what all backends together say of one customer."""

    customer: str
    cost_per_second: float | None
    limit_per_second: float | None
    demand_per_second: float | None
    rejected_per_second: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """Be what all end points together say of one service."""

    service: str
    goodput_per_second: float | None
    goodput_of: Literal["backends", "clients"]
    """Who counted it: clients only where no backend is scraped."""
    requests_per_second: float | None
    rejected_per_second: dict[str, float]
    """By the backends, by reason."""
    refused_per_second: dict[str, float]
    """By the clients themselves, by reason."""
    retry_ratio: float | None
    latency: Latency | None
    utilization_mean: float | None
    utilization_most: float | None
    spread: float | None
    """The busiest backend's utilization over the mean; 1 is even.  Lame ducks do not count."""
    lame_ducks: int
    backends: tuple[BackendFacts, ...]
    clients: tuple[ClientFacts, ...]
    customers: tuple[CustomerFacts, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EndPointFacts:
    """Be what became of asking one end point."""

    instance: str
    url: str
    problem: str | None
    odd: float
    """How many values it could not count since the last time: a bug, or a blocked event loop."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Be everything that is shown at one instant."""

    at: float
    """In seconds since 1970."""
    services: tuple[ServiceFacts, ...]
    end_points: tuple[EndPointFacts, ...]

    def as_dict(self) -> dict[str, object]:
        """Return what JSON is made of."""
        return asdict(self)


def make_facts(sights: Sequence[Sight], *, at: float, service: str | None = None) -> Facts:
    """Return the facts of all services, or of the one that is named."""
    names = sorted({name for sight in sights for name in sight.services})
    return Facts(
        at=at,
        services=tuple(
            _service(name, sights) for name in names if service is None or name == service
        ),
        end_points=tuple(
            EndPointFacts(
                instance=sight.instance,
                url=sight.url,
                problem=sight.problem,
                odd=sum(
                    rising(sight, name, "evenly_observer_odd_total") for name in sight.services
                ),
            )
            for sight in sights
        ),
    )


def _service(name: str, sights: Sequence[Sight]) -> ServiceFacts:
    backends = [sight for sight in sights if sight.is_about(name, _BACKEND)]
    clients = [sight for sight in sights if sight.is_about(name, _CLIENT)]
    shown = tuple(_backend(name, sight) for sight in backends)
    busy = [
        backend.utilization
        for backend in shown
        if backend.state == "healthy" and backend.utilization is not None
    ]
    most = max(busy, default=None)
    mean = sum(busy) / len(busy) if busy else None
    first, again = _attempts(name, clients)
    return ServiceFacts(
        service=name,
        goodput_per_second=_goodput(name, backends, clients),
        goodput_of="backends" if backends else "clients",
        requests_per_second=first,
        rejected_per_second=_by_reason(name, backends, "evenly_backend_rejected_total"),
        refused_per_second=_by_reason(name, clients, "evenly_client_refused_total"),
        retry_ratio=ratio(again, first),
        latency=_latency(name, clients),
        utilization_mean=mean,
        utilization_most=most,
        spread=ratio(most, mean),
        lame_ducks=sum(backend.state == "lame duck" for backend in shown),
        backends=shown,
        clients=tuple(_client(name, sight) for sight in clients),
        customers=_customers(name, backends),
    )


def _goodput(name: str, backends: Sequence[Sight], clients: Sequence[Sight]) -> float | None:
    if backends:
        counter, sights = "evenly_backend_requests_total", backends
    else:
        counter, sights = "evenly_client_attempt_seconds_count", clients
    return total(sight.rate(name, counter, outcome="ok") for sight in sights)


def _attempts(name: str, clients: Iterable[Sight]) -> tuple[float | None, float | None]:
    """Return first attempts and retries per second."""
    first, every = [], []
    for sight in clients:
        first.append(sight.rate(name, "evenly_client_attempts_total", attempt="1"))
        every.append(sight.rate(name, "evenly_client_attempts_total"))
    sent, all_sent = total(first), total(every)
    return sent, None if sent is None or all_sent is None else all_sent - sent


def _latency(name: str, clients: Iterable[Sight]) -> Latency | None:
    found = latency_of(clients, name, "evenly_client_attempt_seconds_bucket", (0.5, 0.95, 0.99))
    if found is None:
        return None
    return Latency(p50_seconds=found[0], p95_seconds=found[1], p99_seconds=found[2])


def _by_reason(name: str, sights: Iterable[Sight], counter: str) -> dict[str, float]:
    """Return rates over all sights by reason, those that are not zero, the largest first."""
    rates = _merged(sight.rates_by(name, counter, "reason") for sight in sights)
    ordered = sorted(rates.items(), key=lambda item: (-item[1], item[0]))
    return {reason: rate for reason, rate in ordered if rate > 0.0}


def _merged(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in found:
        for key, value in each.items():
            sums[key] = sums.get(key, 0.0) + value
    return sums


def _backend(name: str, sight: Sight) -> BackendFacts:
    lame = sight.gauge(name, "evenly_backend_lame_duck")
    degrading = sight.gauge(name, "evenly_backend_degrading")
    state: BackendState
    if sight.page is None:
        state = "no answer" if sight.is_listed else "no longer listed"
    elif lame is None:
        state = "unknown"
    else:
        state = "lame duck" if lame > 0.0 else "healthy"
    return BackendFacts(
        instance=sight.instance,
        state=state,
        utilization=sight.gauge(name, "evenly_backend_utilization"),
        active=sight.gauge(name, "evenly_backend_active_requests"),
        admitted_per_second=sight.rate(name, "evenly_backend_admitted_total"),
        ok_per_second=sight.rate(name, "evenly_backend_requests_total", outcome="ok"),
        rejected_per_second=sight.rate(name, "evenly_backend_rejected_total"),
        cost_per_second=sight.rate(name, "evenly_backend_cost_seconds_total"),
        cut=sight.gauge(name, "evenly_backend_cut"),
        is_degrading=None if degrading is None else degrading > 0.0,
    )


def _client(name: str, sight: Sight) -> ClientFacts:
    first, again = _attempts(name, [sight])
    in_state = {
        state: sight.gauge(name, "evenly_client_backends", state=state)
        for state in ("healthy", "lame_duck", "refusing")
    }
    return ClientFacts(
        instance=sight.instance,
        is_answering=sight.page is not None,
        is_listed=sight.is_listed,
        requests_per_second=first,
        refused_per_second=sight.rate(name, "evenly_client_refused_total"),
        retry_ratio=ratio(again, first),
        active=sight.gauge(name, "evenly_client_active_requests"),
        line=sight.gauge(name, "evenly_client_line"),
        throttle_probability={
            label: sight.gauge(name, "evenly_client_throttle_probability", criticality=label)
            for _, label in LEVELS
        },
        throttled_customers=sight.gauge(name, "evenly_client_throttled_customers"),
        healthy=in_state["healthy"],
        lame_ducks=in_state["lame_duck"],
        refusing=in_state["refusing"],
    )


def _customers(name: str, backends: Sequence[Sight]) -> tuple[CustomerFacts, ...]:
    """Return what each customer costs and may, the most expensive first."""

    def rates(counter: str) -> dict[str, float]:
        return _merged(sight.rates_by(name, counter, "customer") for sight in backends)

    def gauges(gauge: str) -> dict[str, float]:
        return _merged(sight.gauges_by(name, gauge, "customer") for sight in backends)

    names = gauges("evenly_backend_cost_seconds_total")  # A total says who there is.
    costs = rates("evenly_backend_cost_seconds_total")
    limits = gauges("evenly_backend_quota_limit")
    demands = gauges("evenly_backend_quota_demand")
    rejected = rates("evenly_backend_out_of_quota_total")
    return tuple(
        CustomerFacts(
            customer=customer,
            cost_per_second=costs.get(customer),
            limit_per_second=limits.get(customer),
            demand_per_second=demands.get(customer),
            rejected_per_second=rejected.get(customer),
        )
        for customer in sorted(names, key=lambda customer: (-costs.get(customer, 0.0), customer))
    )
