"""Each decision that keeps the order is passed over, and each that does not is told.

Whole runs around a façade that keeps none are in `test_checkers_sabotage.py`.
"""

from __future__ import annotations

import random
from typing import final

import pytest

from evenly.core.admission import Admission
from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.overload.utilization_config import Ramp, SignalConfig, UtilizationConfig
from evenly.core.report import LoadReport
from evenly.core.request import Cause, Reason, Rejection, Request
from evenly.lab.sim.order import Asked, Order
from evenly.lab.sim.scenario import Scenario
from evenly.testing import ManualClock

OVERLOADED = Rejection(Reason.OVERLOADED, retryable=True)
DONT_RETRY = Rejection(Reason.DONT_RETRY, retryable=False)
THROTTLED = Rejection(Reason.THROTTLED, retryable=False, cause=Cause.REJECTIONS)
SERVICE = Backend("service-0")
# A signal whose value is the cut-line.
OWN = SignalConfig(ramps=tuple(Ramp(float(c), c + 1.0) for c in Criticality))  # type: ignore[arg-type]


@final
class Watch:
    """Watch one backend that refuses all of SHEDDABLE and half of SHEDDABLE_PLUS: below 1.5."""

    def __init__(self, throttle: str = "responsive", *, limits_queue: bool = True) -> None:
        self.clock = ManualClock()
        self.found: list[str] = []
        task = ClientTaskConfig(
            policy=PolicyConfig(name="round_robin"), throttle=ThrottleConfig(name=throttle)
        )
        self.order = Order(
            Scenario(
                title="watched",
                client_task=task,
                backend_task=BackendTaskConfig(limits_queue=limits_queue),
            ),
            lambda kind, what: self.found.append(f"{kind}: {what}"),
        )
        self.backend = BackendTask(
            BackendTaskConfig(utilization=UtilizationConfig(signals={"own": OWN})),
            clock=self.clock,
            rng=random.Random(1),
            boot=1,
        )
        self.backend.record_signal("own", 1.5)
        self.client = ClientTask(task, clock=self.clock, rng=random.Random(1))
        self.client.update([SERVICE])
        self.client.take_connections()
        self.client.record_connection(SERVICE, ConnectionEvent.OPENED)

    def decided(self, request: Request, decision: Admission | Rejection) -> list[str]:
        self.order.decided("service-0", self.backend, request, decision, self.clock())
        return self.found

    def throttled(
        self, request: Request, rejection: Rejection = THROTTLED, asked: Asked | None = None
    ) -> list[str]:
        self.order.throttled(
            "client-0", self.client, request, rejection, asked=asked, now=self.clock()
        )
        return self.found

    def sent(self, request: Request, *, line: float, asked: Asked | None = None) -> list[str]:
        attempt = self.client.begin(Request())
        assert isinstance(attempt, Attempt)
        attempt.request = request
        attempt.line = line
        self.order.sent("client-0", attempt, asked, self.clock())
        return self.found


def admission(luck: float | None) -> Admission:
    admitted = Admission()
    admitted.luck = luck
    return admitted


def of(level: float, deadline_at: float | None = None) -> Request:
    """Return a request of a level."""
    criticality = Criticality(int(level))
    return Request(criticality=criticality, luck=level - criticality, deadline_at=deadline_at)


@pytest.fixture
def watch() -> Watch:
    watch = Watch()
    assert watch.backend.snapshot().cut == 1.5
    return watch


# Backends.


@pytest.mark.parametrize("rejection", [OVERLOADED, DONT_RETRY])
def test_a_backend_refuses_what_is_below_its_cut_line(watch: Watch, rejection: Rejection) -> None:
    assert watch.decided(of(1.25), rejection) == []

    assert watch.decided(of(1.75), rejection) == [
        "order: service-0 refused 1.750, its cut-line at 1.500, at 1000.250 s"
    ]


def test_a_backend_admits_what_is_at_or_above_it(watch: Watch) -> None:
    assert watch.decided(of(1.75), admission(0.75)) == []
    assert watch.decided(of(3.0), admission(None)) == []

    assert watch.decided(of(1.25), admission(0.25)) == [
        "order: service-0 admitted 1.250, its cut-line at 1.500, at 1000.250 s"
    ]


@pytest.mark.parametrize(
    ("criticality", "is_admitted", "is_fine"),
    [
        (Criticality.SHEDDABLE_PLUS, False, True),  # By a luck below a half.
        (Criticality.CRITICAL, False, False),
        (Criticality.CRITICAL, True, True),
        (Criticality.SHEDDABLE, True, False),
        (Criticality.SHEDDABLE_PLUS, True, False),  # Nobody looked at its luck.
    ],
)
def test_without_luck_any_level_of_the_criticality_is_meant(
    watch: Watch, criticality: Criticality, is_admitted: bool, is_fine: bool
) -> None:
    decision = admission(None) if is_admitted else OVERLOADED

    assert (watch.decided(Request(criticality=criticality), decision) == []) == is_fine


@pytest.mark.parametrize("reason", [Reason.EXPIRED, Reason.OUT_OF_QUOTA])
def test_other_refusals_are_not_for_overload(watch: Watch, reason: Reason) -> None:
    assert watch.decided(of(3.5), Rejection(reason, retryable=False)) == []


def test_a_backend_refuses_what_would_be_too_late_whatever_its_level(
    watch: Watch,
) -> None:
    watch.backend._cut_line.wait_seconds = 0.2

    assert watch.decided(of(3.5, watch.clock() + 0.1), OVERLOADED) == []
    assert watch.decided(of(3.5, watch.clock() + 0.3), OVERLOADED) != []


def test_who_does_not_limit_its_queue_refuses_nothing_for_it() -> None:
    watch = Watch(limits_queue=False)
    watch.backend._cut_line.wait_seconds = 0.2

    assert watch.decided(of(3.5, watch.clock() + 0.1), OVERLOADED) != []


def test_a_real_backend_keeps_the_order(watch: Watch) -> None:
    for step in range(256):
        request = of(step / 64)
        watch.decided(request, watch.backend.admit(request))

    assert watch.backend.active == 4 * 64 - 96  # Below 1.5 there are 96 levels.
    assert watch.found == []


# Client tasks.


def test_a_client_task_throttles_what_is_below_its_line(watch: Watch) -> None:
    watch.client.record_report(SERVICE, LoadReport(cut=2.0))  # less the margin of 0.03

    assert watch.throttled(of(1.9)) == []
    assert watch.throttled(of(1.98)) == [
        "order: client-0 throttled 1.980, its line at 1.970, at 1000.250 s"
    ]


def test_a_line_of_long_ago_is_none(watch: Watch) -> None:
    watch.client.record_report(SERVICE, LoadReport(cut=2.0))
    watch.clock.advance(2.1)

    assert watch.throttled(of(0.5)) != []


@pytest.mark.parametrize("cause", [Cause.TIMEOUTS, Cause.QUOTA])
def test_other_causes_have_no_line(watch: Watch, cause: Cause) -> None:
    assert watch.throttled(of(3.5), Rejection(Reason.THROTTLED, retryable=False, cause=cause)) == []


def test_the_books_throttle_keeps_no_order() -> None:
    """Of a criticality of which it has seen R requests, it refuses up to R / (R + 1)."""
    assert Watch("adaptive").throttled(of(3.5)) == []


def ask(watch: Watch, *, line: float, answer: float | None) -> Asked:
    """Have backends asked; `answer` is where they cut."""
    view = watch.client._membership.view(SERVICE)
    assert view is not None
    question = Ask(lambda _: THROTTLED, Request(), [view], wait_seconds=0.05, now=watch.clock())
    if answer is not None:
        watch.client.record_report(SERVICE, LoadReport(cut=answer), is_probe=True)
    return Asked(question, line)


def test_who_has_asked_does_as_the_backends_say(watch: Watch) -> None:
    asked = ask(watch, line=3.0, answer=1.5)

    assert watch.throttled(of(1.25), asked=asked) == []
    assert watch.sent(of(1.75), line=1.5, asked=asked) == []
    assert watch.throttled(of(1.75), asked=asked) == [
        "order: client-0 throttled 1.750, its line at 1.500, at 1000.250 s"
    ]


def test_who_hears_no_answer_goes_by_its_line(watch: Watch) -> None:
    watch.client.record_report(SERVICE, LoadReport(cut=2.0))
    watch.clock.advance(0.1)
    asked = ask(watch, line=2.0, answer=None)

    assert watch.throttled(of(1.9), asked=asked) == []
    assert watch.throttled(of(2.5), asked=asked) != []


def test_what_is_sent_is_at_or_above_the_line_that_is_sent_with_it(watch: Watch) -> None:
    assert watch.sent(of(2.0), line=2.0) == []
    assert watch.sent(of(0.5), line=0.0) == []

    assert watch.sent(of(1.75), line=2.0) == [
        "order: client-0 sent 1.750 as attempt 1, its line at 2.000, at 1000.250 s"
    ]


def test_the_line_may_rise_while_the_policy_asks_where_to_send(watch: Watch) -> None:
    assert watch.sent(of(1.75), line=2.0, asked=ask(watch, line=1.5, answer=None)) == []
    assert watch.sent(of(1.25), line=2.0, asked=ask(watch, line=1.5, answer=None)) != []
