from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.attempt import Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.overload.utilization import Ramp, SignalConfig, UtilizationConfig
from evenly.core.request import Outcome, Reason, Request
from evenly.errors import ConfigError
from evenly.observe import LogObserver
from evenly.testing import ManualClock
from tests.observe.test_tee import CALLS

A, B = Backend("a:1"), Backend("b:1")
REQUEST = Request()
RAMPS = (Ramp(0.5, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0))
# SHEDDABLE is rejected where "pressure" is above 0.5, entirely from 1 on.
PRESSED = UtilizationConfig(signals={"pressure": SignalConfig(ramps=RAMPS, decay_seconds=0.1)})


class Lines(logging.Handler):
    """Keep records, each formatted as a handler would: what cannot be formatted shows."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert record.getMessage().isprintable()
        self.records.append(record)

    def take(self) -> list[tuple[str, str]]:
        taken = [(record.levelname, record.getMessage()) for record in self.records]
        self.records.clear()
        return taken


@pytest.fixture
def lines() -> Iterator[Lines]:
    yield from new_lines()


def new_lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("evenly.test")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def new_observer(clock: ManualClock, **settings: Any) -> LogObserver:
    return LogObserver(logging.getLogger("evenly.test"), clock=clock, **settings)


def test_a_client_task_logs_changes_and_counts_requests(lines: Lines) -> None:
    clock = ManualClock()
    config = ClientTaskConfig(policy=PolicyConfig(name="round_robin"))
    observer = new_observer(clock)
    task = ClientTask(config, clock=clock, rng=random.Random(1), observer=observer)
    task.update([A, B])
    for backend in (A, B):
        task.record_connection(backend, ConnectionEvent.OPENED)
    task.record_connection(B, ConnectionEvent.LOST)

    assert lines.take() == [
        ("INFO", "the subset has changed; backends in it: 2"),
        ("INFO", "backend a:1 is healthy"),
        ("INFO", "backend b:1 is healthy"),
        ("WARNING", "backend b:1 is refusing"),
    ]

    for outcome in (Outcome.OK, Outcome.OK, Outcome.ERROR):
        attempt = task.begin(REQUEST)
        assert isinstance(attempt, Attempt)
        attempt.finish(outcome)
    assert lines.take() == []

    clock.advance(10.0)
    task.update([])  # Whatever happens next tells the counts first.
    assert lines.take() == [
        ("INFO", "in 10.0 s: attempts=3 attempts_error=1 attempts_ok=2"),
        ("WARNING", "the subset has changed; backends in it: 0"),
    ]


def test_a_backend_task_logs_changes_and_counts_requests(lines: Lines) -> None:
    clock = ManualClock()
    observer = new_observer(clock)
    task = BackendTask(
        BackendTaskConfig(utilization=PRESSED),
        clock=clock,
        rng=random.Random(1),
        boot=1,
        observer=observer,
    )
    task.announce_healthy()
    admission = task.admit(REQUEST)
    assert isinstance(admission, Admission)
    admission.finish(Outcome.OK, 0.5)
    task.record_signal("pressure", 1.0)
    task.admit(Request(criticality=Criticality.SHEDDABLE))
    clock.advance(1.0)
    task.record_signal("pressure", 0.0)
    clock.advance(1.0)  # Ten decay times.
    task.record_signal("pressure", 0.0)
    task.enter_lame_duck()
    observer.summarize()

    assert lines.take() == [
        ("INFO", "healthy"),
        ("WARNING", "SHEDDABLE requests are being rejected"),
        ("INFO", "SHEDDABLE requests are all admitted"),
        ("INFO", "lame duck: clients are asked to send elsewhere"),
        ("WARNING", "in 2.0 s: admitted=1 rejected_overloaded=1 served_ok=1"),
    ]


def test_a_report_logs_that_a_signal_has_expired(lines: Lines) -> None:
    clock = ManualClock()
    observer = new_observer(clock)
    task = BackendTask(
        BackendTaskConfig(utilization=PRESSED),
        clock=clock,
        rng=random.Random(1),
        boot=1,
        observer=observer,
    )
    task.record_signal("pressure", 1.0)
    assert lines.take() == [("WARNING", "SHEDDABLE requests are being rejected")]
    clock.advance(5.25)
    task.report()

    assert lines.take() == [("INFO", "SHEDDABLE requests are all admitted")]


def test_a_storm_of_rejections_is_one_line_per_interval(lines: Lines) -> None:
    clock = ManualClock()
    observer = new_observer(clock, summary_seconds=5.0)
    for _ in range(12 * 1_000):
        observer.request_rejected(REQUEST, Reason.OVERLOADED)
        observer.request_refused(REQUEST, Reason.THROTTLED)
        clock.advance(1 / 1024)  # 12,000 / 1,024 = 11.7 s, without rounding.

    assert lines.take() == [
        # 5 · 1,024 in the first five seconds, and as many in the next.
        ("WARNING", "in 5.0 s: refused_throttled=5120 rejected_overloaded=5120"),
        ("WARNING", "in 5.0 s: refused_throttled=5120 rejected_overloaded=5120"),
    ]
    observer.summarize()
    assert lines.take() == [
        ("WARNING", "in 1.7 s: refused_throttled=1760 rejected_overloaded=1760")
    ]
    observer.summarize()
    assert lines.take() == []  # Nothing happened: nothing is said.


def test_a_flapping_backend_is_bounded_too(lines: Lines) -> None:
    clock = ManualClock()
    observer = new_observer(clock, changes=3)
    for _ in range(10):
        observer.backend_moved("a:1", "refusing")
    clock.advance(10.0)
    observer.backend_moved("a:1", "healthy")

    assert lines.take() == [
        *[("WARNING", "backend a:1 is refusing")] * 3,
        ("WARNING", "in 10.0 s: changes_not_logged=7"),
        ("INFO", "backend a:1 is healthy"),
    ]


def test_records_are_structured(lines: Lines) -> None:
    clock = ManualClock()
    observer = new_observer(clock)
    observer.backend_moved("a:1", "lame duck")
    observer.subset_changed(3)
    observer.admission_changed(Criticality.CRITICAL, is_admitted=False)
    observer.lame_duck_changed(is_lame_duck=True)
    observer.attempt_begun("a:1", REQUEST, 1)
    observer.attempt_begun("b:1", REQUEST, 2)
    observer.asked(2)
    observer.retry_refused(REQUEST)
    clock.advance(2.5)
    observer.summarize()

    found = [
        {key: value for key, value in vars(record).items() if key.startswith("evenly_")}
        for record in lines.records
    ]
    assert found == [
        {"evenly_event": "backend_moved", "evenly_address": "a:1", "evenly_state": "lame duck"},
        {"evenly_event": "subset_changed", "evenly_size": 3},
        {
            "evenly_event": "admission_changed",
            "evenly_criticality": "CRITICAL",
            "evenly_is_admitted": False,
        },
        {"evenly_event": "lame_duck_changed", "evenly_is_lame_duck": True},
        {
            "evenly_event": "summary",
            "evenly_seconds": 2.5,
            "evenly_counts": {
                "attempts": 1,
                "retries": 1,
                "asked": 1,
                "probes": 2,
                "retries_refused": 1,
            },
        },
    ]


def test_no_text_forges_a_line(lines: Lines) -> None:
    new_observer(ManualClock()).backend_moved("a:1\nWARNING all is lost", "x" * 1_000_000)

    ((_, message),) = lines.take()
    assert message == rf"backend 'a:1\nWARNING all is lost' is {'x' * 200}"


@pytest.mark.parametrize("count", [-1, 10**5000, 0.5, None], ids=["-1", "10**5000", "0.5", "None"])
def test_odd_counts_are_not_added(lines: Lines, count: int) -> None:
    observer = new_observer(ManualClock())
    observer.asked(count)
    observer.asked(2)
    observer.summarize()

    assert lines.take() == [("WARNING", "in 0.0 s: asked=2 odd_values=1 probes=2")]


def test_the_default_logger_and_clock() -> None:
    LogObserver().attempt_begun("a:1", REQUEST, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("summary_seconds", 0.0), ("summary_seconds", float("nan")), ("changes", 0)],
)
def test_wrong_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        new_observer(ManualClock(), **{name: value})


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**5000),
    st.floats(),
    st.text(),
    st.binary(),
    st.just("\ud800\x00\n" * 100_000),
    st.lists(st.integers(), max_size=2),
    st.builds(object),
    st.sampled_from([*Outcome, *Reason, *Criticality]),
)
REQUESTS = ODD | st.builds(Request, criticality=ODD, customer=ODD, deadline_at=ODD)
ODD_CALLS = st.lists(
    st.sampled_from(CALLS).flatmap(
        lambda call: st.tuples(
            st.just(call[0]),
            st.tuples(*(REQUESTS for _ in call[1])),
            st.fixed_dictionaries(dict.fromkeys(call[2], ODD)),
        )
    ),
    max_size=20,
)


def tell(
    observer: Observer, calls: list[tuple[str, tuple[object, ...], dict[str, object]]]
) -> None:
    for name, args, kwargs in calls:
        getattr(observer, name)(*args, **kwargs)


@given(ODD_CALLS)
def test_nothing_raises(calls: list[tuple[str, tuple[object, ...], dict[str, object]]]) -> None:
    for _ in new_lines():
        observer = new_observer(ManualClock(), changes=5)
        tell(observer, calls)
        observer.summarize()
