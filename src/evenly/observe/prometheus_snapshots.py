"""Show the façades' snapshots as gauges at the moment of the scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar, final

from prometheus_client.core import GaugeMetricFamily

from evenly.core.backend_task import BackendTaskSnapshot
from evenly.core.client_task import ClientTaskSnapshot
from evenly.observe.labels import ATTEMPTS, LEVELS, MORE, OTHER, STATES, is_label
from evenly.observe.on_loop import ask

__all__ = ["Snapshots", "Task", "of_backend", "of_client", "reader"]

T_co = TypeVar("T_co", covariant=True)
_Count = Callable[..., None]
Sample = tuple[str, tuple[str, ...], float]

# Read from snapshots.  Where one process has several tasks of a service, their sum is shown ...
_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "client_backends": ("Backends in the subset, by state.", ("state",)),
    "client_known_backends": ("Backends of the service, in the subset or not.", ()),
    "client_active_requests": ("Attempts begun and not finished.", ()),
    "client_line": ("The level below which nothing is sent, 0 to 4.", ()),
    "client_throttle_probability": ("How likely a request is refused here.", ("criticality",)),
    "client_throttled_customers": ("Customers with a throttle of their own.", ()),
    "client_retry_balance": ("Retries that the budget has left.", ()),
    "backend_active_requests": ("Requests admitted and not finished.", ()),
    "backend_lame_duck": ("1 while clients are asked to send elsewhere.", ()),
    "backend_utilization": ("Used over provisioned, as reported to clients.", ()),
    "backend_signal": ("A utilization signal, smoothed; absent while unknown.", ("signal",)),
    "backend_cut": ("The cut-line: the level below which requests are rejected, 0 to 4.", ()),
    "backend_rejection_probability": ("How likely overload rejects.", ("criticality",)),
    "backend_degrading": ("1 while cheaper answers are wanted.", ()),
    "backend_recent_arrivals": ("Recent arrivals, by attempt.", ("attempt",)),
    "backend_quota_limit": ("CPU seconds per second granted here.", ("customer",)),
    "backend_quota_demand": ("CPU seconds per second asked for here.", ("customer",)),
}
# ... except of these, where a sum would mean nothing: the largest.
_LARGEST: Final = frozenset(
    {"client_line", "client_throttle_probability", "backend_utilization", "backend_signal"}
    | {"backend_cut", "backend_rejection_probability", "backend_degrading"}
)


class Running(Protocol):
    """Be the snapshot of what runs a backend's task."""

    @property
    def task(self) -> BackendTaskSnapshot:
        """What is known of the task."""
        ...


class Task(Protocol[T_co]):
    """Be anything with a snapshot: a façade, or what guards one with a lock."""

    def snapshot(self) -> T_co:
        """Return what is known now."""
        ...


@final
class Snapshots:
    """Collect what tasks show of themselves at the moment of the scrape."""

    def __init__(self) -> None:
        self._watches: list[tuple[str, Callable[[], Iterable[Sample]], _Count]] = []

    def watch(
        self, service: str, read: Callable[[], Iterable[Sample]], failed: _Count
    ) -> Callable[[], None]:
        """Read these samples at every scrape; return how to stop."""
        watch = (service, read, failed)
        # A new list rather than a changed one: a scrape may be walking along the old.
        self._watches = [*self._watches, watch]

        def stop() -> None:
            self._watches = [other for other in self._watches if other is not watch]

        return stop

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families without values."""
        for name, (text, labels) in _GAUGES.items():
            yield GaugeMetricFamily(f"evenly_{name}", text, labels=("service", *labels))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families with what the tasks show now."""
        found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _GAUGES}
        for service, read, failed in self._watches:
            try:
                samples = list(read())
            except Exception:  # noqa: BLE001 -- a task that fails must not end the whole scrape
                failed(1)
                continue
            for name, labels, value in samples:
                values, key = found[name], (service, *labels)
                before = values.get(key, 0.0)
                values[key] = max(before, value) if name in _LARGEST else before + value
        for family in self.describe():
            for key, value in found[family.name.removeprefix("evenly_")].items():
                family.add_metric(key, value)
            yield family


def of_client(shown: ClientTaskSnapshot) -> Iterator[Sample]:
    """Yield what a client task's snapshot says."""
    members = [backend.state.value for backend in shown.backends if backend.in_subset]
    for state, label in STATES.items():
        yield "client_backends", (label,), members.count(state)
    yield "client_known_backends", (), shown.known
    yield "client_active_requests", (), shown.active
    yield "client_line", (), shown.throttle.line
    for level, label in LEVELS:
        yield "client_throttle_probability", (label,), shown.throttle.rejection_probabilities[level]
    yield "client_throttled_customers", (), len(shown.throttle.throttled_customers)
    yield "client_retry_balance", (), shown.retry_balance


def of_backend(
    shown: BackendTaskSnapshot | Running, customers: Mapping[str, str]
) -> Iterator[Sample]:
    """Yield what a backend's snapshot says; `customers` has the labels of those that have one."""
    if not isinstance(shown, BackendTaskSnapshot):
        shown = shown.task
    yield "backend_active_requests", (), shown.active
    yield "backend_lame_duck", (), shown.is_lame_duck
    utilization = shown.utilization
    yield "backend_utilization", (), shown.reported_utilization
    for name, signal in utilization.signals.items():
        if signal.value is not None and is_label(name):
            yield "backend_signal", (name,), signal.value
    yield "backend_cut", (), shown.cut
    for level, label in LEVELS:
        yield "backend_rejection_probability", (label,), shown.rejection_probabilities[level]
    # Whatever is refused, the criticality above it is asked to make do with less.
    yield "backend_degrading", (), utilization.should_degrade or shown.cut > 0.0
    for number, count in enumerate(shown.attempts, 1):
        label = str(number) if number <= len(ATTEMPTS) else MORE
        yield "backend_recent_arrivals", (label,), count
    for name, customer in shown.customers.items():
        label = customers.get(name, OTHER)
        yield "backend_quota_limit", (label,), customer.limit_per_second
        yield "backend_quota_demand", (label,), customer.demand_per_second


def reader(task: Task[T_co], loop: asyncio.AbstractEventLoop | None) -> Callable[[], T_co]:
    """Return what takes a task's snapshot on its own event loop, from whatever thread."""
    home = loop or _running_loop()

    def read() -> T_co:
        if home is None or home is _running_loop():
            return task.snapshot()
        return ask(home, task.snapshot)

    return read


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
