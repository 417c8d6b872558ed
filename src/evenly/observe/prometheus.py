"""Count decisions for Prometheus, and show the façades' snapshots when it scrapes.

Every label is bounded.  Outcomes, reasons, states and criticalities are core's own few values;
customers are those that were listed, at most 1,000, and all the rest are `other`; addresses are
never labels.  So no text that arrives from outside can make a time series.  `docs/metrics.md` lists
the metrics.

What happens per request goes to `prometheus_client`'s own counters, which work in its multi-process
mode too, through children that are bound before the first event.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, TypeVar, final
from weakref import WeakKeyDictionary

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ImportError as error:
    raise ImportError(
        'evenly.observe.prometheus needs prometheus_client: pip install "evenly[prometheus]"',
        name=error.name,
    ) from error

from evenly.core.backend_task import BackendTaskSnapshot
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason, Request
from evenly.errors import ConfigError
from evenly.observe.labels import (
    ATTEMPTS,
    CRITICALITIES,
    LABEL_MAX,
    LEVELS,
    MORE,
    OUTCOMES,
    STATES,
    customer_labels,
    is_label,
)
from evenly.observe.prometheus_snapshots import (
    Running,
    Snapshots,
    Task,
    of_backend,
    of_client,
    reader,
)

__all__ = ["PrometheusObserver"]

# ruff: noqa: ARG002 -- every observer has the same signatures.

K = TypeVar("K")
_Count = Callable[..., None]

# Beyond any cost or latency; one infinity or NaN would spoil a sum for good.
_SECONDS_MAX = 1e9
_COUNT_MAX = 1_000_000
# What a value of a wrong type or range can raise.  An observer must not.
_ODD: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Which side gives which reason; EXPIRED is given by both.
_REFUSALS: Final[dict[Reason, str]] = {
    reason: reason.name.lower()
    for reason in (
        Reason.THROTTLED,
        Reason.NO_BACKEND,
        Reason.NO_CONNECTION,
        Reason.AT_LIMIT,
        Reason.EXPIRED,
    )
}
_REJECTIONS: Final[dict[Reason, str]] = {
    reason: reason.name.lower()
    for reason in (Reason.EXPIRED, Reason.OUT_OF_QUOTA, Reason.OVERLOADED, Reason.DONT_RETRY)
}
_BUCKETS: Final = tuple(
    step * decade for decade in (0.001, 0.01, 0.1, 1.0, 10.0) for step in (1, 2, 5)
)

# Counted as it happens.  `service` comes first everywhere.
_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "client_attempts": ("Attempts begun.", ("criticality", "attempt")),
    "client_refused": ("Requests refused in this process.", ("criticality", "reason")),
    "client_retries_refused": ("Retries that the budget did not pay for.", ("criticality",)),
    "client_probes": ("Probes that requests waited for.", ()),
    "client_backend_moves": ("Changes of backends' state, by the new state.", ("state",)),
    "client_subset_changes": ("Changes of the subset.", ()),
    "backend_admitted": ("Requests admitted.", ("criticality",)),
    "backend_rejected": ("Requests rejected.", ("criticality", "reason")),
    "backend_out_of_quota": ("Requests rejected for want of quota.", ("customer",)),
    "backend_requests": ("Admitted requests that ended.", ("criticality", "outcome")),
    "backend_cost_seconds": ("Normalised CPU seconds of requests.", ("customer",)),
    "backend_admission_shut": ("How often rejection began.", ("criticality",)),
    "observer_odd": ("Values that could not be counted, and snapshots not taken.", ()),
}


@final
class PrometheusObserver(Observer):
    """Count the decisions about one service: as its client, as its backend, or both.

    Observers of several services, and several of one, share a registry.  `customers` names those
    that get a label value of their own: usually the ones that have a quota.
    """

    def __init__(
        self,
        *,
        service: str,
        customers: Iterable[str] = (),
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        if not is_label(service):
            raise ConfigError(
                f"service must be 1 to {LABEL_MAX} printable characters, not {service!r:.80}"
            )
        self._service = service
        self._customers = customer_labels(customers)
        self._metrics = _metrics_of(registry)
        self._odd = self._metrics.counters["observer_odd"].labels(service).inc

    def watch_client(
        self, task: Task[ClientTaskSnapshot], *, loop: asyncio.AbstractEventLoop | None = None
    ) -> Callable[[], None]:
        """Show a `ClientTask` at every scrape; return how to stop.

        Façades are not thread-safe, and scrapes often come on a thread of their own.  So the
        snapshot is taken on `loop`, by default the one that runs now; without one, on the thread
        that scrapes.  Where a lock guards the task, pass an object whose `snapshot` takes it.
        """
        _ = self._client  # Show zeros before the first event.
        read = reader(task, loop)
        return self._metrics.snapshots.watch(self._service, lambda: of_client(read()), self._odd)

    def watch_backend(
        self,
        backend: Task[BackendTaskSnapshot | Running],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Callable[[], None]:
        """Show a backend at every scrape, as `watch_client` does; return how to stop.

        That is a `BackendTask`, or the `runtime` of a middleware or server, which has one and finds
        the way to its loop by itself.
        """
        _ = self._backend
        read = reader(backend, loop)
        return self._metrics.snapshots.watch(
            self._service, lambda: of_backend(read(), self._customers), self._odd
        )

    # The calling side.

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        """Count it by criticality and number."""
        try:
            counts, more = self._client.attempts[request.criticality]
            counts.get(number, more)()
        except _ODD:
            self._odd()

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        """Time it by outcome."""
        try:
            observe = self._client.attempt_seconds[outcome]
            if 0.0 <= seconds <= _SECONDS_MAX:
                observe(seconds)
            else:
                self._odd()
        except _ODD:
            self._odd()

    def request_refused(self, request: Request, reason: Reason) -> None:
        """Count it by reason and criticality."""
        try:
            self._client.refused[reason][request.criticality]()
        except _ODD:
            self._odd()

    def retry_refused(self, request: Request) -> None:
        """Count it by criticality."""
        try:
            self._client.retries_refused[request.criticality]()
        except _ODD:
            self._odd()

    def asked(self, count: int) -> None:
        """Count the probes."""
        try:
            if 0 <= count <= _COUNT_MAX:
                self._client.probes(count)
            else:
                self._odd()
        except _ODD:
            self._odd()

    def backend_moved(self, address: str, state: str) -> None:
        """Count it by the state that it moved to."""
        try:
            self._client.moves[state]()
        except _ODD:
            self._odd()

    def subset_changed(self, size: int) -> None:
        """Count it; the size is in the snapshot."""
        self._client.subset_changes()

    # The serving side.

    def request_admitted(self, request: Request) -> None:
        """Count it by criticality."""
        try:
            self._backend.admitted[request.criticality]()
        except _ODD:
            self._odd()

    def request_rejected(self, request: Request, reason: Reason) -> None:
        """Count it by reason and criticality, and for want of quota by customer too."""
        try:
            self._backend.rejected[reason][request.criticality]()
            if reason is Reason.OUT_OF_QUOTA:
                backend = self._backend
                backend.out_of_quota.get(request.customer, backend.other_out_of_quota)()
        except _ODD:
            self._odd()

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        """Count it by criticality and outcome, and its cost by customer."""
        try:
            backend = self._backend
            backend.requests[outcome][request.criticality]()
            if 0.0 <= cost <= _SECONDS_MAX:
                backend.cost.get(request.customer, backend.other_cost)(cost)
            else:
                self._odd()
        except _ODD:
            self._odd()

    def admission_changed(self, criticality: Criticality, *, is_admitted: bool) -> None:
        """Count the beginnings of rejection by criticality."""
        try:
            if not is_admitted:
                self._backend.shut[criticality]()
        except _ODD:
            self._odd()

    @cached_property
    def _client(self) -> _Client:
        return _Client(self._metrics, self._service)

    @cached_property
    def _backend(self) -> _Backend:
        return _Backend(self._metrics, self._service, self._customers)


@final
class _Metrics:
    """The families of one registry, which its observers share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counters = {
            name: Counter(f"evenly_{name}_total", text, ("service", *labels), registry=registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self.attempt_seconds = Histogram(
            "evenly_client_attempt_seconds",
            "Time from the beginning of an attempt to its end.",
            ("service", "outcome"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.snapshots = Snapshots()
        registry.register(self.snapshots)


# A registry's families end with it.  They do not refer to it, or it never would.
_METRICS: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()
_METRICS_LOCK: Final = threading.Lock()


def _metrics_of(registry: CollectorRegistry) -> _Metrics:
    with _METRICS_LOCK:
        metrics = _METRICS.get(registry)
        if metrics is None:
            metrics = _METRICS[registry] = _Metrics(registry)
        return metrics


@final
class _Client:
    """What a client task counts with."""

    def __init__(self, metrics: _Metrics, service: str) -> None:
        counters = metrics.counters
        attempts = counters["client_attempts"]
        self.attempts = {
            level: (
                {int(number): attempts.labels(service, label, number).inc for number in ATTEMPTS},
                attempts.labels(service, label, MORE).inc,
            )
            for level, label in CRITICALITIES.items()
        }
        self.attempt_seconds = {
            outcome: metrics.attempt_seconds.labels(service, label).observe
            for outcome, label in OUTCOMES.items()
        }
        self.refused = _by_criticality(counters["client_refused"], service, _REFUSALS)
        self.retries_refused = _by(counters["client_retries_refused"], service, CRITICALITIES)
        self.probes = counters["client_probes"].labels(service).inc
        self.moves = _by(counters["client_backend_moves"], service, STATES)
        self.subset_changes = counters["client_subset_changes"].labels(service).inc


@final
class _Backend:
    """What a backend counts with."""

    def __init__(self, metrics: _Metrics, service: str, customers: Mapping[str, str]) -> None:
        counters = metrics.counters
        self.admitted = _by(counters["backend_admitted"], service, CRITICALITIES)
        self.rejected = _by_criticality(counters["backend_rejected"], service, _REJECTIONS)
        self.requests = _by_criticality(counters["backend_requests"], service, OUTCOMES)
        self.shut = _by(counters["backend_admission_shut"], service, CRITICALITIES)
        self.out_of_quota = _by(counters["backend_out_of_quota"], service, customers)
        self.cost = _by(counters["backend_cost_seconds"], service, customers)
        # The nameless customer is one of the rest.
        self.other_out_of_quota, self.other_cost = self.out_of_quota[""], self.cost[""]


def _by(counter: Counter, service: str, labels: Mapping[K, str]) -> dict[K, _Count]:
    return {key: counter.labels(service, label).inc for key, label in labels.items()}


def _by_criticality(
    counter: Counter, service: str, labels: Mapping[K, str]
) -> dict[K, dict[Criticality, _Count]]:
    return {
        key: {level: counter.labels(service, name, label).inc for level, name in LEVELS}
        for key, label in labels.items()
    }
