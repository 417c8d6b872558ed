from __future__ import annotations

import asyncio
import gc
import random
import re
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig, BackendTaskSnapshot
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTask, ClientTaskConfig, ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.utilization import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.core.report import LoadReport
from evenly.core.request import Next, Outcome, Reason, Request
from evenly.errors import ConfigError
from evenly.observe.prometheus import PrometheusObserver
from evenly.runtime.backend import BackendRuntime
from evenly.testing import ManualClock
from tests.observe.test_log import ODD_CALLS, tell

A, B, C = Backend("a:1"), Backend("b:1"), Backend("c:1")
SHEDDABLE = Criticality.SHEDDABLE


class Scrape:
    """What Prometheus would read."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, service: str = "search", **labels: str) -> float | None:
        key = tuple(sorted({"service": service, **labels}.items()))
        return self.samples.get((f"evenly_{name}", key))

    def label_values(self, label: str) -> set[str]:
        return {value for _, labels in self.samples for key, value in labels if key == label}


def scrape(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def page(registry: CollectorRegistry) -> Iterator[Callable[[], Scrape]]:
    """Serve the registry on loopback, and return how to read it."""
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def read() -> Scrape:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return Scrape(answer.read().decode())

    yield read
    server.shutdown()
    server.server_close()
    thread.join()


def new_client(observer: PrometheusObserver, clock: ManualClock, *backends: Backend) -> ClientTask:
    config = ClientTaskConfig(retry=RetryConfig(initial_balance=1.0, budget_ratio=0.0))
    task = ClientTask(config, clock=clock, rng=random.Random(1), observer=observer)
    task.update(backends)
    return task


def new_backend(
    observer: PrometheusObserver, clock: ManualClock, quota: QuotaConfig | None = None
) -> BackendTask:
    # "pressure" is as high as the cut-line that follows from it, which begins at 0.
    ramps = (Ramp(0.0, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0))
    signals = {**default_signals(), "pressure": SignalConfig(ramps=ramps, degrade_at=1.5)}
    config = BackendTaskConfig(quota=quota, utilization=UtilizationConfig(signals=signals))
    return BackendTask(config, clock=clock, rng=random.Random(1), boot=1, observer=observer)


def test_a_client_task_over_http(registry: CollectorRegistry, page: Callable[[], Scrape]) -> None:
    clock = ManualClock()
    observer = PrometheusObserver(service="search", registry=registry)
    task = new_client(observer, clock, A, B, C)
    observer.watch_client(task)
    for backend in (A, B):
        task.record_connection(backend, ConnectionEvent.OPENED)
    task.record_serving(B, serving=False)
    found = page()
    assert found("client_backends", state="healthy") == 1
    assert found("client_backends", state="lame_duck") == 1
    assert found("client_backends", state="refusing") == 1
    assert found("client_known_backends") == 3
    assert found("client_backend_moves_total", state="healthy") == 2
    assert found("client_backend_moves_total", state="lame_duck") == 1
    assert found("client_subset_changes_total") == 1
    assert found("client_attempts_total", criticality="critical", attempt="1") == 0  # Not absent.

    task.record_serving(B, serving=True)
    ask = task.begin(Request())
    assert isinstance(ask, Ask)
    first = ask.resume()
    assert isinstance(first, Attempt)
    assert page()("client_active_requests") == 1
    clock.advance(0.25)
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    second = task.begin(Request(), first)
    assert isinstance(second, Attempt)
    clock.advance(0.25)
    assert second.finish(Outcome.OVERLOADED) is Next.GIVE_UP  # The budget had one.
    task.update([])
    task.begin(Request(criticality=SHEDDABLE))

    found = page()
    assert found("client_active_requests") == 0
    assert found("client_known_backends") == 0
    assert found("client_probes_total") == 2
    assert found("client_attempts_total", criticality="critical", attempt="1") == 1
    assert found("client_attempts_total", criticality="critical", attempt="2") == 1
    assert found("client_attempt_seconds_count", outcome="overloaded") == 2
    assert found("client_attempt_seconds_sum", outcome="overloaded") == 0.5
    assert found("client_attempt_seconds_bucket", outcome="overloaded", le="0.2") == 0
    assert found("client_attempt_seconds_bucket", outcome="overloaded", le="0.5") == 2
    assert found("client_retries_refused_total", criticality="critical") == 1
    assert found("client_refused_total", criticality="sheddable", reason="no_backend") == 1
    assert found("client_retry_balance") == 0
    assert found("client_throttle_probability", criticality="critical_plus") == 0
    assert found("client_throttle_probability", criticality="critical") > 0  # type: ignore[operator]
    assert found("observer_odd_total") == 0
    assert not any("backend_requests" in str(key) for key in found.samples)  # It serves nothing.


def test_the_line_of_a_client_task(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    task = new_client(observer, ManualClock(), A)
    observer.watch_client(task)
    assert scrape(registry)("client_line") == 0.0

    task.record_report(A, LoadReport(boot=1, cut=1.75))

    found = scrape(registry)
    line = found("client_line")
    assert line is not None
    assert 1.5 < line < 1.75  # A little less than what backends report, so that all see room again.
    assert found("client_throttle_probability", criticality="sheddable") == 1.0
    sheddable_plus = found("client_throttle_probability", criticality="sheddable_plus")
    assert sheddable_plus == pytest.approx(line - 1.0)


async def test_a_runtime_is_shown_as_its_task(registry: CollectorRegistry) -> None:
    runtime = BackendRuntime()
    observer = PrometheusObserver(service="search", registry=registry)
    stop = observer.watch_backend(runtime)
    assert registry.get_sample_value("evenly_backend_lame_duck", {"service": "search"}) == 1
    runtime.announce_healthy()
    assert registry.get_sample_value("evenly_backend_lame_duck", {"service": "search"}) == 0
    assert registry.get_sample_value("evenly_observer_odd_total", {"service": "search"}) == 0
    stop()


def test_a_backend_task_over_http(registry: CollectorRegistry, page: Callable[[], Scrape]) -> None:
    clock = ManualClock()
    observer = PrometheusObserver(service="search", customers=["indexer"], registry=registry)
    # With a burst of one second and 0.01 s expected, one request of 3 s is a debt of 2 s.
    quota = QuotaConfig(limits={"indexer": 1.0, "unlisted": 2.0}, default_limit=4.0)
    task = new_backend(observer, clock, quota)
    observer.watch_backend(task)
    assert page()("backend_lame_duck") == 1  # It warms up.
    task.announce_healthy()
    for customer in ("indexer", "unlisted", "", "invented"):
        admission = task.admit(Request(customer=customer))
        assert isinstance(admission, Admission)
        assert page()("backend_active_requests") == 1
        admission.finish(Outcome.OK, 3.0 if customer == "indexer" else 0.25)
    task.admit(Request(customer="indexer"), attempt=2)
    task.admit(Request(deadline_at=clock()), attempt=3)
    task.admit(Request(deadline_at=clock()), attempt=9)
    task.record_signal("pressure", 1.25)
    task.record_signal("cpu", 0.75)
    task.admit(Request(criticality=SHEDDABLE, customer="\n"))

    found = page()
    assert found("backend_lame_duck") == 0
    assert found("backend_active_requests") == 0
    assert found("backend_admitted_total", criticality="critical") == 4
    assert found("backend_requests_total", criticality="critical", outcome="ok") == 4
    assert found("backend_cost_seconds_total", customer="indexer") == 3.0
    assert found("backend_cost_seconds_total", customer="other") == 0.75
    assert found("backend_rejected_total", criticality="critical", reason="out_of_quota") == 1
    assert found("backend_out_of_quota_total", customer="indexer") == 1
    assert found("backend_out_of_quota_total", customer="other") == 0
    assert found("backend_rejected_total", criticality="critical", reason="expired") == 2
    assert found("backend_rejected_total", criticality="sheddable", reason="overloaded") == 1
    assert found("backend_admission_shut_total", criticality="sheddable") == 1
    assert found("backend_admission_shut_total", criticality="critical") == 0
    assert found("backend_cut") == 1.25
    assert found("backend_rejection_probability", criticality="sheddable") == 1.0
    assert found("backend_rejection_probability", criticality="sheddable_plus") == 0.25
    assert found("backend_rejection_probability", criticality="critical") == 0.0
    assert found("backend_degrading") == 1  # The signal alone would say so from 1.5 on.
    assert found("backend_utilization") == 0.75
    assert found("backend_signal", signal="pressure") == 1.25
    assert found("backend_signal", signal="cpu") == 0.75
    assert found("backend_signal", signal="memory") is None  # Unknown is not 0.
    assert found("backend_recent_arrivals", attempt="1") == 5
    assert found("backend_recent_arrivals", attempt="2") == 1
    assert found("backend_recent_arrivals", attempt="3") == 1
    assert found("backend_recent_arrivals", attempt="more") == 1
    assert found("backend_quota_limit", customer="indexer") == 1.0
    assert found("backend_quota_limit", customer="other") == 6.0  # 2 and the default 4
    assert found("observer_odd_total") == 0
    task.enter_lame_duck()
    assert page()("backend_lame_duck") == 1


def test_services_and_tasks_share_a_registry(registry: CollectorRegistry) -> None:
    clock = ManualClock()
    search = PrometheusObserver(service="search", registry=registry)
    again = PrometheusObserver(service="search", registry=registry)
    store = PrometheusObserver(service="store", registry=registry)
    tasks = [new_client(one, clock, A, B) for one in (search, again, store)]
    stops = [
        one.watch_client(task) for one, task in zip((search, again, store), tasks, strict=True)
    ]

    found = scrape(registry)
    assert found("client_known_backends") == 4  # Counts of one service add up ...
    assert found("client_retry_balance") == 2.0
    assert found("client_known_backends", service="store") == 2
    assert found("client_subset_changes_total") == 2

    stops[0]()
    stops[0]()
    stops[2]()
    found = scrape(registry)
    assert found("client_known_backends") == 2
    assert found("client_known_backends", service="store") is None
    assert found("client_subset_changes_total", service="store") == 1  # What happened, happened.


def test_a_backend_that_has_left_is_not_in_the_subset(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    task = new_client(observer, ManualClock(), A)
    observer.watch_client(task)
    task.record_connection(A, ConnectionEvent.OPENED)
    answer = task.begin(Request())
    attempt = answer.resume() if isinstance(answer, Ask) else answer
    assert isinstance(attempt, Attempt)
    task.update([])

    found = scrape(registry)
    assert found("client_active_requests") == 1
    assert found("client_backends", state="healthy") == 0


def test_a_signal_that_cannot_be_a_label_is_left_out(registry: CollectorRegistry) -> None:
    signals = {**default_signals(), "\ud800": default_signals()["memory"]}
    config = BackendTaskConfig(utilization=UtilizationConfig(signals=signals))
    task = BackendTask(config, clock=ManualClock(), rng=random.Random(1), boot=1)
    task.record_signal("\ud800", 0.5)
    task.record_signal("memory", 0.5)
    PrometheusObserver(service="search", registry=registry).watch_backend(task)

    found = scrape(registry)
    assert found.label_values("signal") == {"memory"}


def test_probabilities_do_not_add_up(registry: CollectorRegistry) -> None:
    clock = ManualClock()
    observer = PrometheusObserver(service="search", registry=registry)
    for pressure, cpu in ((0.75, 0.5), (1.5, 0.75), (0.0, 0.25)):
        task = new_backend(observer, clock)
        task.record_signal("pressure", pressure)
        task.record_signal("cpu", cpu)
        observer.watch_backend(task)

    found = scrape(registry)
    assert found("backend_cut") == 1.5
    assert found("backend_rejection_probability", criticality="sheddable") == 1.0
    assert found("backend_rejection_probability", criticality="sheddable_plus") == 0.5
    assert found("backend_utilization") == 0.75
    assert found("backend_lame_duck") == 3.0


def test_attempts_beyond_the_third_share_a_label(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    for number in (1, 2, 3, 4, 10, 10**9, -1):
        observer.attempt_begun("a:1", Request(), number)

    found = scrape(registry)
    counts = [
        found("client_attempts_total", criticality="critical", attempt=label)
        for label in ("1", "2", "3", "more")
    ]
    assert counts == [1, 1, 1, 4]


def test_every_reason_is_counted_on_its_side(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    client = (Reason.THROTTLED, Reason.NO_BACKEND, Reason.NO_CONNECTION, Reason.AT_LIMIT)
    for reason in Reason:
        if reason in client:
            observer.request_refused(Request(), reason)
        else:
            observer.request_rejected(Request(), reason)

    found = scrape(registry)
    assert found("observer_odd_total") == 0
    assert found.label_values("reason") == {reason.name.lower() for reason in Reason}


def test_invented_customers_make_no_series(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", customers=["indexer"], registry=registry)
    before = set(scrape(registry).samples)
    for n in range(2_000):
        request = Request(customer=f"customer-{n}")
        observer.request_finished(request, Outcome.OK, 0.5, 0.5)
        observer.request_rejected(request, Reason.OUT_OF_QUOTA)
        observer.attempt_begun(f"10.0.0.1:{n}", request, 1)
        observer.backend_moved(f"10.0.0.1:{n}", f"state-{n}")

    found = scrape(registry)
    assert found.label_values("customer") == {"indexer", "other"}
    assert found("backend_cost_seconds_total", customer="other") == 1_000.0
    assert found("backend_out_of_quota_total", customer="other") == 2_000
    assert found("observer_odd_total") == 2_000  # The states.
    assert not any("10.0.0.1" in str(key) for key in found.samples)
    assert before < set(found.samples)


def test_a_request_that_expired_before_it_was_sent_is_a_refusal(
    registry: CollectorRegistry,
) -> None:
    clock = ManualClock()
    task = new_client(PrometheusObserver(service="search", registry=registry), clock)
    task.begin(Request(deadline_at=clock() - 1.0))

    labels = {"service": "search", "criticality": "critical", "reason": "expired"}
    assert registry.get_sample_value("evenly_client_refused_total", labels) == 1.0
    assert registry.get_sample_value("evenly_observer_odd_total", {"service": "search"}) == 0.0


@pytest.mark.parametrize(
    ("customers", "message"),
    [
        pytest.param([f"c{n}" for n in range(1_001)], "at most 1000", id="too many"),
        pytest.param([""], "names of customers, not ''", id="nameless"),
        pytest.param(["other"], "not 'other'", id="the name of the rest"),
        pytest.param(["a\n"], "names of customers", id="control character"),
        pytest.param(["x" * 1_000_000], "names of customers", id="a megabyte"),
    ],
)
def test_wrong_customers_are_refused(
    registry: CollectorRegistry, customers: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        PrometheusObserver(service="search", customers=customers, registry=registry)
    assert len(str(refused.value)) < 200


def test_a_thousand_customers_are_allowed(registry: CollectorRegistry) -> None:
    names = [f"c{n}" for n in range(1_000)]
    observer = PrometheusObserver(service="search", customers=names, registry=registry)
    observer.request_finished(Request(customer="c999"), Outcome.OK, 2.0, 1.0)

    assert scrape(registry)("backend_cost_seconds_total", customer="c999") == 2.0


@pytest.mark.parametrize("service", ["", "a\nb", "\ud800", "x" * 129, None, 7])
def test_a_wrong_service_is_refused(registry: CollectorRegistry, service: str) -> None:
    with pytest.raises(ConfigError, match="service must be 1 to 128 printable characters"):
        PrometheusObserver(service=service, registry=registry)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 10**400])
def test_no_value_spoils_a_sum(registry: CollectorRegistry, odd: float) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    observer.attempt_finished("a:1", Outcome.OK, odd)
    observer.attempt_finished("a:1", Outcome.OK, 0.5)
    observer.request_finished(Request(), Outcome.OK, odd, odd)
    observer.request_finished(Request(), Outcome.OK, 0.5, odd)
    observer.asked(cast(int, odd))
    observer.asked(2)

    found = scrape(registry)
    assert found("client_attempt_seconds_sum", outcome="ok") == 0.5
    assert found("backend_cost_seconds_total", customer="other") == 0.5
    assert found("backend_requests_total", criticality="critical", outcome="ok") == 2
    assert found("client_probes_total") == 2
    assert found("observer_odd_total") == 3


@given(ODD_CALLS)
def test_nothing_raises_and_nothing_odd_is_shown(
    calls: list[tuple[str, tuple[object, ...], dict[str, object]]],
) -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(service="search", customers=["indexer"], registry=registry)
    observer.asked(1)
    observer.request_admitted(Request())
    before = set(scrape(registry).samples)
    tell(observer, calls)

    assert set(scrape(registry).samples) == before


class Failing:
    def snapshot(self) -> ClientTaskSnapshot:
        raise RuntimeError("dictionary changed size during iteration")


def test_a_task_that_fails_does_not_end_the_scrape(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    observer.watch_client(Failing())
    observer.watch_client(new_client(observer, ManualClock(), A))

    assert scrape(registry)("client_known_backends") == 1
    assert scrape(registry)("observer_odd_total") >= 1  # type: ignore[operator]


class Placed:
    """Remember the threads that a snapshot was taken on."""

    def __init__(self, task: BackendTask) -> None:
        self._task = task
        self.threads: list[threading.Thread] = []

    def snapshot(self) -> BackendTaskSnapshot:
        self.threads.append(threading.current_thread())
        return self._task.snapshot()


async def test_snapshots_are_taken_on_the_loop(
    registry: CollectorRegistry, page: Callable[[], Scrape]
) -> None:
    # Façades are not thread-safe, and `start_http_server` answers on a thread of its own.
    observer = PrometheusObserver(service="search", registry=registry)
    task = Placed(new_backend(observer, ManualClock()))
    observer.watch_backend(task)

    found = await asyncio.to_thread(page)
    assert found("backend_lame_duck") == 1
    assert scrape(registry)("backend_lame_duck") == 1  # On the loop itself: no waiting for oneself.
    assert task.threads == [threading.current_thread()] * 2


def test_a_closed_loop_costs_its_gauges_only(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    loop = asyncio.new_event_loop()
    observer.watch_backend(new_backend(observer, ManualClock()), loop=loop)
    loop.close()

    found = scrape(registry)
    assert found("backend_lame_duck") is None
    assert found("backend_admitted_total", criticality="critical") == 0
    assert scrape(registry)("observer_odd_total") >= 1  # type: ignore[operator]


async def test_an_error_on_the_loop_reaches_the_scrape(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    observer.watch_client(Failing())

    found = await asyncio.to_thread(scrape, registry)
    assert found("client_known_backends") is None


def test_a_registry_is_not_kept_alive() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(service="search", registry=registry)
    ended = weakref.ref(registry)
    del registry
    gc.collect()

    assert ended() is None


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import evenly.observe\n"
        "try: import evenly.observe.prometheus\n"
        "except ImportError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert 'pip install "evenly[prometheus]"' in found.stdout


def test_every_metric_is_documented_with_its_labels(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(service="search", registry=registry)
    clock = ManualClock()
    quota = QuotaConfig(limits={}, default_limit=4.0)
    task = new_backend(observer, clock, quota)
    task.record_signal("cpu", 0.5)
    observer.watch_backend(task)
    observer.watch_client(new_client(observer, clock))
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = {
        (name, kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(r"^\| `(evenly_\w+)` \| (\w+) \|([^|]*)\|", page, re.M)
    }

    shown = set()
    for family in scrape(registry).families:
        if not family.name.endswith("_created"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {key for sample in family.samples for key in sample.labels} - {"service", "le"}
            shown.add((name, family.type, frozenset(labels)))
    assert shown == documented
