from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.claim import believe
from evenly.core.clock import Clock
from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import AttemptHistogramConfig
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import ConfigError, UsageError
from evenly.testing import ManualClock

SHEDDABLE = Criticality.SHEDDABLE
SHEDDABLE_PLUS = Criticality.SHEDDABLE_PLUS
CRITICAL = Criticality.CRITICAL
CRITICAL_PLUS = Criticality.CRITICAL_PLUS
OVERLOADED = Rejection(Reason.OVERLOADED, retryable=True)
DONT_RETRY = Rejection(Reason.DONT_RETRY, retryable=False)
EXPIRED = Rejection(Reason.EXPIRED, retryable=False)
BOOT = 7_000


class Draw(random.Random):
    """Draw the same number every time."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@dataclass
class OddClock:
    """Be a clock that may step back, and counts how often it is read."""

    now: float = 1_000.25
    reads: int = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


@dataclass
class Seen(Observer):
    """Write down what a backend task tells."""

    events: list[tuple[object, ...]] = field(default_factory=list)

    def request_admitted(self, request: Request) -> None:
        self.events.append(("admitted", request))

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.events.append(("rejected", request, reason))

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.events.append(("finished", request, outcome, cost, seconds))

    def admission_changed(self, criticality: Criticality, *, is_admitted: bool) -> None:
        self.events.append(("admission", criticality, is_admitted))

    def lame_duck_changed(self, *, is_lame_duck: bool) -> None:
        self.events.append(("lame duck", is_lame_duck))


def new_task(
    config: BackendTaskConfig | None = None,
    *,
    clock: Clock | None = None,
    draw: float = 0.5,
    slack: float = 0.0,
    harmless_seconds: float = 0.0,
    burst_seconds: float = 0.0,
    boot: int = BOOT,
    observer: Observer = NO_OBSERVER,
) -> BackendTask:
    # Without the slack, so that the ramps' numbers are those of `docs/utilization.md`, and with no
    # queue that is too short to be refused at once, nor too new; all have tests of their own.
    return BackendTask(
        replace(
            config or BackendTaskConfig(),
            runnable_slack=slack,
            harmless_seconds=harmless_seconds,
            burst_seconds=burst_seconds,
        ),
        clock=clock or ManualClock(),
        rng=Draw(draw),
        boot=boot,
        observer=observer,
    )


def admitted(
    task: BackendTask,
    criticality: Criticality = CRITICAL,
    customer: str = "",
    deadline_at: float | None = None,
) -> Admission:
    answer = task.admit(
        Request(criticality=criticality, customer=customer, deadline_at=deadline_at)
    )
    assert isinstance(answer, Admission)
    return answer


def admitted_by(task: BackendTask) -> list[bool]:
    """Try one request of each criticality, SHEDDABLE first."""
    return [
        isinstance(task.admit(Request(criticality=criticality)), Admission)
        for criticality in Criticality
    ]


# Accounting


def test_admitted_requests_are_active_until_they_finish() -> None:
    task = new_task()
    first, second = admitted(task), admitted(task)
    assert task.report().active == task.snapshot().active == 2

    first.finish(Outcome.OK)
    assert task.report().active == 1
    second.finish(Outcome.CANCELLED)
    assert task.report().active == 0
    assert (first.is_finished, second.is_finished) == (True, True)


def test_finishing_twice_is_a_mistake_and_counts_once() -> None:
    task = new_task()
    admission, _other = admitted(task), admitted(task)
    admission.finish(Outcome.OK)

    with pytest.raises(UsageError, match=r"finish\(ERROR\).*<Admission CRITICAL '' finished>"):
        admission.finish(Outcome.ERROR)
    assert task.report().active == 1
    assert task.report().eps == 0.0


def test_what_ends_within_ten_milliseconds_is_averaged_together() -> None:
    clock = ManualClock()
    together = new_task(clock=clock)
    alone = new_task(clock=clock, observer=Seen())
    for task in (together, alone, together, alone):  # The first two are taken whole.
        first = admitted(task)
        clock.advance(0.1)
        first.finish(Outcome.OK, 0.01)
        assert task.report().latency_seconds == pytest.approx(0.1)
    for task in (together, alone):
        batch = [admitted(task) for _ in range(3)]
        clock.advance(0.02)
        for admission in batch:
            admission.finish(Outcome.OK, 0.002)
            clock.advance(0.001)

    # 0.02, 0.021 and 0.022 s are 0.021 on average, with 3, 2 and 1 active.
    gain = 1 - 0.95**3
    usual_active = 1 + gain * (2 - 1)
    seconds = (0.1 + gain * (0.021 - 0.1)) / usual_active
    assert together.report().latency_seconds == pytest.approx(seconds, rel=1e-9)
    # One by one the order counts, and little.
    assert alone.report().latency_seconds == pytest.approx(seconds, rel=0.03)
    assert together._averages.mean_cpu_seconds == pytest.approx(0.01 + gain * (0.002 - 0.01))
    assert alone._averages.mean_cpu_seconds == pytest.approx(0.01 + gain * (0.002 - 0.01))
    assert together.finished == alone.finished == 5


def test_what_ended_is_counted_before_what_ends_otherwise_and_before_the_process() -> None:
    clock = ManualClock()
    cost = CostConfig(period_seconds=1.0, serving_seconds=1.0)
    task = new_task(BackendTaskConfig(cost=cost), clock=clock)
    task.record_process(0.0)
    batch = [admitted(task) for _ in range(4)]
    clock.advance(1.0)
    for admission in batch:
        admission.finish(Outcome.OK, 0.25)
    task.record_process(3.0)  # 2 seconds besides the handlers: half a second each, from now on.
    assert task._cost.snapshot().overhead_seconds == 0.5

    late = admitted(task)
    admitted(task).finish(Outcome.OK, 0.1)
    clock.advance(0.3)
    late.finish(Outcome.OK)  # Not metered, and so by itself, after the other.
    used = 0.25
    for used_seconds in (0.1 + 0.5, 0.0 + 0.5):
        used += 0.05 * (used_seconds - used)
    assert task._averages.mean_cpu_seconds == pytest.approx(used)
    assert task.finished == 6


def test_background_work_is_not_charged_to_a_customer_but_counts_where_a_queue_is_judged() -> None:
    clock = ManualClock()
    quota = QuotaConfig(limits={"a": 1.0}, default_limit=1.0)
    task = new_task(BackendTaskConfig(quota=quota), clock=clock)
    task.record_process(0.0)
    for second in range(1, 101):
        clock.advance(1.0)
        admitted(task, customer="a").finish(Outcome.OK, 0.005)
        task.record_process(0.505 * second)  # Half a core is used by a thread of the process.

    account = task.snapshot().customers["a"]
    assert account.expected_cost_seconds == pytest.approx(2 * 0.005 + 0.001, rel=0.02)
    # That thread takes the CPU away all the same: a queue of ten lasts for seconds, not for 0.1.
    assert task._averages.mean_cpu_seconds == pytest.approx(0.505, rel=0.02)


def test_requests_per_second_count_what_has_ended_too() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    for _ in range(10):
        admitted(task).finish(Outcome.OK, 0.001)
    kept = admitted(task)

    assert task.report().qps == pytest.approx(11.0)
    kept.finish(Outcome.OK, 0.001)
    assert task.report().qps == pytest.approx(11.0)


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf, "1", None])
def test_a_cost_that_is_none_spoils_no_average(wrong: object) -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    for cpu_seconds in (0.01, wrong, 0.01):
        admission = admitted(task)
        clock.advance(0.01)
        admission.finish(Outcome.OK, cpu_seconds)  # type: ignore[arg-type]  # It is wrong.

    assert task.finished == 3
    assert task.report().latency_seconds == pytest.approx(0.01)
    assert task._averages.mean_cpu_seconds == pytest.approx(0.01)
    assert task._cost.snapshot().ignored == 1


def test_a_transport_may_know_more_of_a_request() -> None:
    class Own(Admission):
        __slots__ = ("told",)
        told: str

    task = new_task()
    own = task.admit(Request(), 1, Own)

    assert type(own) is Own
    own.told = "more"
    assert "Own" in repr(own)
    own.finish(Outcome.OK)
    assert (task.active, task.finished) == (0, 1)
    with pytest.raises(UsageError, match="finished already"):
        own.finish(Outcome.OK)


def test_an_admission_says_what_it_is() -> None:
    clock = ManualClock()
    request = Request(criticality=SHEDDABLE, customer="indexer")
    answer = new_task(clock=clock).admit(request)

    assert isinstance(answer, Admission)
    assert answer.request is request
    assert answer.admitted_at == clock()
    assert repr(answer) == "<Admission SHEDDABLE 'indexer' active>"


# Lame duck and drain


def test_it_starts_as_a_lame_duck_that_serves() -> None:
    task = new_task()
    assert task.report().lame_duck
    assert task.snapshot().is_lame_duck
    admitted(task).finish(Outcome.OK)
    assert not task.is_drained()  # It is starting, not leaving.
    assert task.next_wake_at() == math.inf


def test_the_sequence_grows_with_each_change_of_state() -> None:
    task = new_task()
    assert (task.report().lame_duck, task.report().sequence) == (True, 0)

    assert task.announce_healthy()
    assert (task.report().lame_duck, task.report().sequence) == (False, 1)
    assert task.announce_healthy()  # said twice, changed once
    assert task.report().sequence == 1

    task.enter_lame_duck()
    assert (task.report().lame_duck, task.report().sequence) == (True, 2)
    task.enter_lame_duck()
    assert task.report().sequence == 2


def test_who_leaves_serves_but_never_comes_back() -> None:
    task = new_task()
    task.announce_healthy()
    task.enter_lame_duck()

    assert not task.announce_healthy()
    assert task.report().lame_duck
    assert task.report().sequence == 2
    admitted(task).finish(Outcome.OK)


def test_sigterm_during_the_warm_up_is_final_too() -> None:
    task = new_task(BackendTaskConfig(quiet_seconds=0.0))
    task.enter_lame_duck()

    assert not task.announce_healthy()
    assert task.is_drained()


def test_it_is_drained_after_a_quiet_period() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quiet_seconds=1.0), clock=clock)
    task.announce_healthy()
    began_at = clock()
    task.enter_lame_duck()
    assert task.next_wake_at() == began_at + 1.0

    clock.advance(0.75)
    assert not task.is_drained()
    clock.advance(0.25)
    assert task.is_drained()
    assert task.snapshot().is_drained


def test_entering_again_does_not_begin_the_quiet_period_anew() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.enter_lame_duck()
    clock.advance(0.75)
    task.enter_lame_duck()
    clock.advance(0.25)

    assert task.is_drained()


def test_active_requests_hold_the_exit_and_a_quiet_period_follows_them() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quiet_seconds=1.0, drain_seconds=30.0), clock=clock)
    began_at = clock()
    admission = admitted(task)
    task.enter_lame_duck()

    clock.advance(20.0)
    assert not task.is_drained()
    assert task.next_wake_at() == began_at + 30.0
    admission.finish(Outcome.OK)
    assert not task.is_drained()
    assert task.next_wake_at() == began_at + 21.0
    clock.advance(1.0)
    assert task.is_drained()


def test_a_request_that_was_on_its_way_begins_the_quiet_period_anew() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quiet_seconds=1.0), clock=clock)
    task.enter_lame_duck()
    clock.advance(0.75)
    task.admit(Request(deadline_at=0.0))  # Even one that is refused: others may follow it.
    clock.advance(0.75)

    assert not task.is_drained()
    clock.advance(0.25)
    assert task.is_drained()


def test_one_decision_has_one_instant() -> None:
    clock = OddClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    task.enter_lame_duck()

    def reads(ask: Callable[[], object]) -> int:
        before = clock.reads
        ask()
        return clock.reads - before

    assert reads(task.is_drained) == 1
    assert reads(task.snapshot) == 1
    assert reads(task.report) == 1
    assert reads(task.next_wake_at) <= 1  # None is needed: it is an instant, not a wait.


def test_there_is_nothing_to_wake() -> None:
    # Whoever sleeps until `next_wake_at` asks `is_drained`: nothing is done in between.
    assert not hasattr(BackendTask, "wake")


def test_time_is_up_after_drain_seconds_whoever_is_left() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quiet_seconds=10.0, drain_seconds=5.0), clock=clock)
    admitted(task)
    task.enter_lame_duck()
    clock.advance(4.75)
    assert not task.is_drained()

    clock.advance(0.25)
    assert task.is_drained()
    assert task.snapshot().active == 1


# Deadlines


@pytest.mark.parametrize(
    ("seconds_left", "is_admitted"),
    [
        pytest.param(0.001, True, id="a millisecond left"),
        pytest.param(math.inf, True, id="never"),
        pytest.param(0.0, False, id="passed just now"),
        pytest.param(-1.0, False, id="passed"),
        pytest.param(-math.inf, False, id="passed long ago"),
        pytest.param(math.nan, False, id="not a number"),
    ],
)
def test_a_request_whose_deadline_has_passed_is_not_run(
    seconds_left: float, is_admitted: bool
) -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    answer = task.admit(Request(deadline_at=clock() + seconds_left))

    if is_admitted:
        assert isinstance(answer, Admission)
    else:
        assert answer == EXPIRED
        assert task.report().active == 0


@pytest.mark.parametrize("own", [None, 0.5, 60.0])
@pytest.mark.parametrize("is_seen", [False, True])
def test_seconds_left_are_a_deadline_of_ones_own_for_what_others_share(
    own: float | None, is_seen: bool
) -> None:
    clock = ManualClock()
    seen = Seen()
    task = new_task(clock=clock, observer=seen if is_seen else NO_OBSERVER)
    shared = Request(customer="a", deadline_at=None if own is None else clock() + own)
    before = shared.deadline_at

    admission = task.admit(shared, 1, Admission, 2.0)
    assert isinstance(admission, Admission)
    late = task.admit(shared, 1, Admission, 0.0)
    plain = task.admit(shared, 1, Admission)
    assert isinstance(plain, Admission)
    admission.finish(Outcome.OK)

    assert admission.deadline_at == clock() + 2.0
    assert admission.request == replace(shared, deadline_at=clock() + 2.0)
    assert admission.request is admission.request
    assert late == EXPIRED
    assert (plain.request, plain.deadline_at) == (shared, before)
    assert shared.deadline_at == before
    if is_seen:
        assert [event[1] for event in seen.events] == [
            admission.request,
            replace(shared, deadline_at=clock()),
            shared,
            admission.request,
        ]


# Quota: each customer's bucket holds one second's worth.

QUOTA = QuotaConfig(limits={"a": 1.0, "b": 1.0, "none": 0.0}, default_limit=1.0)


def test_a_customer_out_of_quota_is_refused_until_the_bucket_has_refilled() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    admitted(task, CRITICAL, "a").finish(Outcome.OK, 1.15)  # of 1.0: a debt of 0.15

    # CRITICAL leaves the last tenth of the bucket to CRITICAL_PLUS: 0.1 + 0.15 at 1.0 per second.
    answer = task.admit(Request(customer="a"))
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.retryable) == (Reason.OUT_OF_QUOTA, False)
    assert answer.retry_after_seconds == pytest.approx(0.25)
    answer = task.admit(Request(customer="a", criticality=CRITICAL_PLUS))
    assert isinstance(answer, Rejection)
    assert answer.retry_after_seconds == pytest.approx(0.15)

    admitted(task, CRITICAL, "b").finish(Outcome.OK)  # nobody else's business
    clock.advance(0.2)
    admitted(task, CRITICAL_PLUS, "a").finish(Outcome.OK)
    assert isinstance(task.admit(Request(customer="a")), Rejection)
    clock.advance(0.1)
    admitted(task, CRITICAL, "a").finish(Outcome.OK)


def test_a_limit_of_zero_has_no_time_to_come_back() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    answer = task.admit(Request(customer="none", criticality=CRITICAL_PLUS))

    # Not inf, which no header can carry.
    assert answer == Rejection(Reason.OUT_OF_QUOTA, retryable=False, retry_after_seconds=None)


def test_customers_that_nobody_listed_share_one_account() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    admitted(task, CRITICAL, "invented").finish(Outcome.OK, 2.0)

    answer = task.admit(Request(customer="another", criticality=CRITICAL_PLUS))
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.OUT_OF_QUOTA


def test_cost_reaches_the_quota_in_normalised_seconds() -> None:
    config = BackendTaskConfig(quota=QUOTA, cost=CostConfig(compute_units=0.5))
    task = new_task(config)
    admitted(task, CRITICAL, "a").finish(Outcome.OK, 0.6)

    # 0.6 s of a CPU that is half a normalised one: 0.3 of 1.0.
    account = task.snapshot().customers["a"]
    assert account.level_seconds == pytest.approx(0.7)
    assert account.expected_cost_seconds == pytest.approx(0.3)
    assert task.report().compute_units == 0.5


@pytest.mark.parametrize(
    "cpu_seconds", [math.nan, math.inf, -1.0, "1", b"1", None, [1.0], 1j], ids=repr
)
def test_a_cost_that_is_none_counts_as_nothing(cpu_seconds: object) -> None:
    seen = Seen()
    task = new_task(BackendTaskConfig(quota=QUOTA), observer=seen)
    admission = admitted(task, CRITICAL, "a")
    admission.finish(Outcome.OK, cpu_seconds)  # type: ignore[arg-type]  # It is wrong.

    assert task.snapshot().customers["a"].level_seconds == 1.0
    assert task.report().active == 0
    assert seen.events[-1] == ("finished", admission.request, Outcome.OK, 0.0, 0.0)


def test_a_cancelled_request_is_charged_but_teaches_nothing() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    admitted(task, CRITICAL, "a").finish(Outcome.OK, 0.2)
    admitted(task, CRITICAL, "a").finish(Outcome.CANCELLED, 0.5)

    account = task.snapshot().customers["a"]
    assert account.level_seconds == pytest.approx(1.0 - 0.2 - 0.5)
    assert account.expected_cost_seconds == pytest.approx(0.2)
    admitted(task, CRITICAL, "a").finish(Outcome.ERROR, 0.1)
    # The second that counts, so half of it: the cancelled one was not counted either.
    assert task.snapshot().customers["a"].expected_cost_seconds == pytest.approx((0.2 + 0.1) / 2)


def test_the_rest_of_the_process_is_paid_by_requests() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    task.record_process(10.0)
    admitted(task, CRITICAL, "a").finish(Outcome.OK, 0.2)
    clock.advance(1.0)
    task.record_process(10.3)  # 0.3 s in a second, 0.2 of it in the handler: 0.1 for one request
    admitted(task, CRITICAL, "b").finish(Outcome.OK, 0.2)

    assert task.snapshot().customers["b"].level_seconds == pytest.approx(1.0 - 0.2 - 0.1)


def test_effective_limits_replace_the_configured_ones() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    task.update_quotas({"a": 0.25, "b": math.nan, "unknown": 3.0})

    customers = task.snapshot().customers
    assert customers["a"].limit_per_second == 0.25
    assert customers["b"].limit_per_second == 1.0
    assert set(customers) == {"a", "b", "none", ""}


def test_demand_counts_refused_requests_too() -> None:
    clock = ManualClock()
    quota = QuotaConfig(limits={"a": 0.0}, default_limit=0.0, first_cost_seconds=0.01)
    task = new_task(BackendTaskConfig(quota=quota), clock=clock)
    task.admit(Request(customer="a"))
    clock.advance(1.0)
    for _ in range(99):
        task.admit(Request(customer="a"))

    # 100 requests of an expected 0.01 s, in the second that there has been.
    assert task.quota_demand()["a"] == pytest.approx(1.0)


def test_without_quotas_there_is_nothing_to_say_about_customers() -> None:
    task = new_task()
    task.update_quotas({"a": 0.0})

    assert task.quota_demand() == {}
    assert task.snapshot().customers == {}
    admitted(task, SHEDDABLE, "a")


# Shedding


@pytest.mark.parametrize(
    ("runnable", "draw", "expected"),
    [
        pytest.param(6.0, 0.0, [True, True, True, True], id="1.5 a core"),
        pytest.param(7.0, 0.49, [False, True, True, True], id="1.75: half of SHEDDABLE"),
        pytest.param(7.0, 0.51, [True, True, True, True], id="1.75: the other half"),
        pytest.param(8.0, 0.0, [False, True, True, True], id="2.0: SHEDDABLE and no more"),
        pytest.param(8.0, 0.99, [False, True, True, True], id="2.0: all of it"),
        pytest.param(9.5, 0.49, [False, False, True, True], id="2.375: half of SHEDDABLE_PLUS"),
        pytest.param(9.5, 0.51, [False, True, True, True], id="2.375: the other half"),
        pytest.param(11.0, 0.0, [False, False, True, True], id="2.75"),
        pytest.param(
            11.1, 0.99, [False, False, False, True], id="beyond 2.75 now: all of CRITICAL"
        ),
        pytest.param(16.0, 0.0, [False, False, False, True], id="4.0"),
        pytest.param(24.0, 0.49, [False, False, False, False], id="6.0: half of CRITICAL_PLUS"),
        pytest.param(24.0, 0.51, [False, False, False, True], id="6.0: the other half"),
        pytest.param(32.0, 0.99, [False, False, False, False], id="8.0: everything"),
    ],
)
def test_shedding_follows_runnable_per_core(
    runnable: float, draw: float, expected: list[bool]
) -> None:
    task = new_task(BackendTaskConfig(cores=4), draw=draw)
    task.record_signal("runnable", runnable)

    assert admitted_by(task) == expected
    assert task.report().active == sum(expected)


def test_runnable_is_smoothed_over_a_tenth_of_a_second() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 2.75)
    assert admitted_by(task) == [True, True, True, True]

    clock.advance(0.1)
    # 2.75 · (1 − 1/e) = 1.738: 0.48 of the first ramp, which is below the draw of a half.
    assert admitted_by(task) == [True, True, True, True]
    value = task.snapshot().utilization.signals["runnable"].value
    assert value == pytest.approx(2.75 * (1.0 - math.exp(-1.0)))
    clock.advance(0.1)
    assert admitted_by(task) == [False, False, True, True]  # 2.378: 0.504 of the second
    assert task.report().runnable == 2.75  # as last recorded


def test_a_burst_is_refused_at_once_but_for_critical_plus() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 8.0)
    assert admitted_by(task) == [False, False, False, True]
    assert task.report().admits == 0b1000

    clock.advance(0.1)
    # 8 · (1 − 1/e) = 5.06: a quarter of the last ramp, which is below the draw of a half.
    assert admitted_by(task) == [False, False, False, True]
    clock.advance(0.1)
    assert admitted_by(task) == [False, False, False, False]  # 6.92: 0.73 of it
    task.record_signal("runnable", 0.0)
    clock.advance(0.2)
    assert admitted_by(task) == [True, True, True, True]  # 6.92 / e² = 0.94


# The CPU time of what was served, on this machine, not normalised; where it is not metered, all the
# time that it took.  A burst of `runnable` then waits runnable · 10 ms / cores.
@pytest.mark.parametrize(
    ("runnable", "cores", "is_harmless"),
    [
        pytest.param(4.9, 1.0, True, id="49 ms"),
        pytest.param(5.1, 1.0, False, id="51 ms"),
        pytest.param(19.9, 4.0, True, id="49.75 ms, on four cores"),
        pytest.param(20.1, 4.0, False, id="50.25 ms"),
    ],
)
@pytest.mark.parametrize(
    "served_request",
    [
        pytest.param((3.0, 0.01, 1.0), id="metered"),
        pytest.param((3.0, 0.01, 0.5), id="metered on a slow machine"),
        pytest.param((0.01, 0.0, 1.0), id="not metered"),
    ],
)
def test_a_burst_that_is_soon_worked_off_is_not_refused_at_once(
    runnable: float, cores: float, is_harmless: bool, served_request: tuple[float, float, float]
) -> None:
    took_seconds, cpu_seconds, compute_units = served_request
    clock = ManualClock()
    config = BackendTaskConfig(cores=cores, cost=CostConfig(compute_units=compute_units))
    task = new_task(config, clock=clock, harmless_seconds=0.05)
    served = admitted(task)
    clock.advance(took_seconds)
    served.finish(Outcome.OK, cpu_seconds)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", runnable)
    assert admitted_by(task) == ([True] * 4 if is_harmless else [False, False, False, True])

    clock.advance(1.0)  # When it lasts, it is no burst.
    assert admitted_by(task)[:3] == [False, False, False]


@pytest.mark.parametrize(
    ("cpu_seconds", "runnable", "is_admitted"),
    [
        pytest.param(0.01, 8.0, False, id="eight of 10 ms"),
        pytest.param(0.005, 8.0, False, id="eight of 5 ms"),
        pytest.param(0.0005, 54.0, True, id="54 of 0.5 ms: 27 ms"),
        pytest.param(0.0005, 80.0, False, id="80 of 0.5 ms: 40 ms"),
        pytest.param(0.00005, 500.0, True, id="500 of 50 µs: 25 ms"),
        pytest.param(0.00005, 800.0, False, id="800 of 50 µs: 40 ms"),
    ],
)
def test_a_queue_that_lasts_counts_by_the_time_that_it_takes(
    cpu_seconds: float, runnable: float, is_admitted: bool
) -> None:
    clock = ManualClock()
    task = new_task(clock=clock, slack=4.0)
    served = admitted(task)
    clock.advance(0.1)
    served.finish(Outcome.OK, cpu_seconds)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", runnable)
    clock.advance(1.0)

    assert admitted_by(task)[Criticality.SHEDDABLE] is is_admitted


def test_a_queue_alike_is_as_long_as_it_would_have_to_be() -> None:
    clock = ManualClock()
    task = new_task(clock=clock, slack=4.0)
    served = admitted(task)
    clock.advance(0.1)
    served.finish(Outcome.OK, 0.0005)
    task.record_signal("memory", 1.0)

    assert task.report().runnable == pytest.approx(10.0 * (4.0 + 8.0))


def test_before_anything_was_served_every_burst_is_harmless() -> None:
    clock = ManualClock()
    task = new_task(clock=clock, harmless_seconds=0.05)
    failed = admitted(task)
    clock.advance(3.0)
    failed.finish(Outcome.ERROR, 3.0)  # Failing is not serving.
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 1_000.0)

    assert admitted_by(task) == [True] * 4


# Four hundred that sleep, or whose bodies do not come: nobody knows that they want no CPU.
def test_before_one_was_served_no_queue_is_evidence_however_long_it_lasts() -> None:
    clock = ManualClock()
    task = new_task(clock=clock, burst_seconds=0.25)
    for _ in range(200):
        task.record_signal("runnable", 400.0)
        clock.advance(0.01)
    assert admitted_by(task) == [True] * 4

    admitted(task).finish(Outcome.OK, 0.05)
    task.record_signal("runnable", 400.0)
    assert admitted_by(task) == [False, False, False, True]  # The average has yet to rise.


@pytest.mark.parametrize(
    ("runnable", "is_admitted"),
    [
        pytest.param(400.0, True, id="400 of 0.6 ms: 240 ms"),
        pytest.param(430.0, False, id="430: 258 ms"),
    ],
)
def test_a_burst_at_an_idle_cpu_is_refused_only_beyond_a_quarter_of_a_second(
    runnable: float, is_admitted: bool
) -> None:
    clock = ManualClock()
    task = new_task(clock=clock, burst_seconds=0.25)
    for _ in range(2):
        admitted(task).finish(Outcome.OK, 0.0006)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", runnable)
    assert admitted_by(task)[Criticality.CRITICAL] is is_admitted

    # After a tenth of a second the CPU is no longer idle, and a second later the queue has lasted.
    for _ in range(100):
        clock.advance(0.01)
        task.record_signal("runnable", runnable)
    assert admitted_by(task)[Criticality.CRITICAL] is is_admitted
    for _ in range(30):
        clock.advance(0.01)
        task.record_signal("runnable", runnable)
    assert admitted_by(task) == [False] * 4


def test_a_burst_at_a_busy_cpu_is_refused_at_once() -> None:
    clock = ManualClock()
    task = new_task(clock=clock, burst_seconds=0.25)
    for _ in range(2):
        admitted(task).finish(Outcome.OK, 0.0006)
    for _ in range(300):
        task.record_signal("runnable", 1.0)
        clock.advance(0.01)
    task.record_signal("runnable", 400.0)
    assert admitted_by(task)[Criticality.CRITICAL] is False


def test_what_a_request_costs_is_averaged_over_about_twenty() -> None:
    clock = ManualClock()
    task = new_task(clock=clock, harmless_seconds=0.05)
    for cpu_seconds in (0.05, 0.01, 0.03):  # The first is forgotten with the second.
        served = admitted(task)
        clock.advance(0.1)
        served.finish(Outcome.OK, cpu_seconds)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 4.5)  # · (0.01 + 0.05 · 0.02) s = 49.5 ms
    assert task.report().admits == 0b1111

    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 4.6)  # 50.6 ms
    assert task.report().admits == 0b1000


def test_a_reader_that_fell_silent_refuses_nobody() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.record_signal("runnable", 100.0)
    clock.advance(5.1)

    assert admitted_by(task) == [True, True, True, True]
    assert task.report().admits == 0b1111


def test_memory_sheds_on_its_own() -> None:
    task = new_task()
    task.record_signal("memory", 0.94)

    assert admitted_by(task) == [False, False, True, True]


def test_rejections_say_dont_retry_once_retries_are_widespread() -> None:
    config = BackendTaskConfig(attempts=AttemptHistogramConfig(min_arrivals=100))
    task = new_task(config)
    task.record_signal("runnable", 100.0)
    for _ in range(95):
        assert task.admit(Request(), 1) == OVERLOADED
    for _ in range(5):
        assert task.admit(Request(), 2) == OVERLOADED  # 5 of 100 are not more than 5 %

    assert task.admit(Request(), 3) == DONT_RETRY  # 6 of 101 are
    assert task.admit(Request(), 1) == DONT_RETRY  # and whoever asks is told
    assert task.snapshot().attempts[:3] == (96, 5, 1)
    assert task.report().active == 0


@pytest.mark.parametrize(
    ("peer_is_trusted", "expected"),
    [
        pytest.param(True, DONT_RETRY, id="our clients' retries count"),
        pytest.param(False, OVERLOADED, id="a stranger's do not"),
    ],
)
def test_strangers_cannot_talk_a_backend_into_dont_retry(
    peer_is_trusted: bool, expected: Rejection
) -> None:
    task = new_task(BackendTaskConfig(attempts=AttemptHistogramConfig(min_arrivals=10)))
    task.record_signal("runnable", 100.0)
    for _ in range(10):
        request, attempt = believe(attempt="3", peer_is_trusted=peer_is_trusted, now=0.0)
        task.admit(request, attempt)

    assert task.admit(Request(), 1) == expected
    assert task.snapshot().attempts[:3] == ((1, 0, 10) if peer_is_trusted else (11, 0, 0))


@pytest.mark.parametrize("attempt", [0, -1, -(10**9), 11, 10**9, 10**30])
def test_any_attempt_number_is_bounded(attempt: int) -> None:
    task = new_task()
    assert isinstance(task.admit(Request(), attempt), Admission)

    counts = task.snapshot().attempts
    assert counts[0 if attempt < 1 else -1] == 1
    assert sum(counts) == 1


def test_a_shed_request_gives_its_reservation_back() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    task.record_signal("runnable", 100.0)
    assert task.admit(Request(customer="a")) == OVERLOADED

    account = task.snapshot().customers["a"]
    assert (account.reserved_seconds, account.active, account.level_seconds) == (0.0, 0, 1.0)


def test_out_of_quota_is_said_before_overloaded() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    task.record_signal("runnable", 100.0)
    answer = task.admit(Request(customer="none"))

    # The customer has to know: no other backend would serve it either.
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.OUT_OF_QUOTA


# The report


def test_a_report_says_all_there_is_to_say() -> None:
    clock = ManualClock()
    config = BackendTaskConfig(cores=4, cost=CostConfig(compute_units=2.0), probe_port=50_052)
    task = new_task(config, clock=clock)
    task.announce_healthy()
    task.record_signal("runnable", 9.5)
    admitted(task)

    report = task.report()
    assert (report.boot, report.sequence, report.lame_duck) == (BOOT, 1, False)
    # SHEDDABLE is refused, SHEDDABLE_PLUS now and then: neither can count on being admitted.
    assert report.admits == 0b1100
    assert report.runnable == 9.5
    assert report.active == 1
    assert report.utilization == 1.0  # 9.5 on 4 cores: all are busy
    assert report.compute_units == 2.0
    assert report.probe_port == 50_052


def test_the_port_for_probes_is_announced_when_it_is_known() -> None:
    task = new_task(BackendTaskConfig(probe_port=50_052))
    before = task.report()
    assert before.probe_port == 50_052
    task.announce_probe_port(50_053)  # The one that was wished for was taken.
    assert task.report().probe_port == 50_053
    # That is no change of state: nobody has to be told before the next response.
    assert task.report().sequence == before.sequence

    task.announce_probe_port(None)
    assert task.report().probe_port is None  # the service's own


@pytest.mark.parametrize("port", [0, -1, 65_536, True, 50_053.0])
def test_a_wrong_port_for_probes_is_refused_and_the_right_one_stays(port: int) -> None:
    task = new_task(BackendTaskConfig(probe_port=50_052))
    with pytest.raises(ConfigError, match="probe_port must be a whole number in"):
        task.announce_probe_port(port)

    assert task.report().probe_port == 50_052


@pytest.mark.parametrize(
    ("runnable", "admits"),
    [
        (1.5, 0b1111),
        (1.6, 0b1110),
        (2.0, 0b1110),
        (2.1, 0b1100),
        (2.75, 0b1100),
        (2.8, 0b1000),
        (4.0, 0b1000),
        (4.1, 0b0000),
    ],
)
def test_a_report_names_those_who_are_surely_admitted(runnable: float, admits: int) -> None:
    task = new_task()
    task.record_signal("runnable", runnable)

    assert task.report().admits == admits


def test_rates_are_counted_over_rate_seconds() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(rate_seconds=2.0), clock=clock)
    for outcome in (Outcome.OK, Outcome.ERROR, Outcome.OK, Outcome.CANCELLED):
        admitted(task).finish(outcome)
    # Four requests, one of them failed, over 2 s.
    assert (task.report().qps, task.report().eps) == (2.0, 0.5)

    clock.advance(2.0)
    assert task.report().qps == pytest.approx(2.0 * math.exp(-1.0))
    assert task.report().eps == pytest.approx(0.5 * math.exp(-1.0))


def test_rejections_count_neither_as_requests_nor_as_errors() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    task.admit(Request(deadline_at=clock() - 1.0))
    task.admit(Request(customer="none"))
    task.record_signal("runnable", 100.0)
    task.admit(Request())

    assert (task.report().qps, task.report().eps, task.report().active) == (0.0, 0.0, 0)


def test_latency_follows_the_requests_that_were_served() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    first, failed = admitted(task), admitted(task)
    clock.advance(2.0)
    first.finish(Outcome.OK)
    failed.finish(Outcome.ERROR)  # Failing fast, or late, is no way to serve.
    # The first is taken whole: 2 s where two were active, so one for whoever comes now, alone.
    assert task.report().latency_seconds == 2.0 * 1 / 2

    second = admitted(task)
    clock.advance(4.0)
    second.finish(Outcome.OK)
    # So is the second: the first loads what the others find loaded.
    assert task.report().latency_seconds == 4.0

    third, _other = admitted(task), admitted(task)
    clock.advance(2.0)
    third.finish(Outcome.OK)
    # Then 5 % of each further one: 4 + 0.05 · (2 − 4) s, where 1 + 0.05 · (2 − 1) were active.
    assert task.report().latency_seconds == pytest.approx(3.9 * 2 / 1.05)


# One that nobody sends to because it was slow would otherwise go on saying so for ever.
def test_the_latency_told_is_that_at_the_present_number_of_requests() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    first, *others = [admitted(task) for _ in range(4)]
    clock.advance(2.0)
    first.finish(Outcome.OK)  # 2 s, one of four
    told = [task.report().latency_seconds]
    for admission in others:
        admission.finish(Outcome.CANCELLED)
        told.append(task.report().latency_seconds)

    # With 3, 2, 1 and 0 active, a new request would be one of 4, 3, 2 and 1.
    assert told == [2.0, 1.5, 1.0, 0.5]


def test_a_failed_or_cancelled_request_is_not_the_first_latency() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    for outcome, seconds in ((Outcome.ERROR, 8.0), (Outcome.CANCELLED, 4.0), (Outcome.OK, 0.5)):
        admission = admitted(task)
        clock.advance(seconds)
        admission.finish(outcome)

    assert task.report().latency_seconds == 0.5


def test_a_clock_that_steps_back_during_a_request_counts_as_no_time() -> None:
    seen = Seen()
    clock = OddClock()
    task = new_task(clock=clock, observer=seen)
    for _ in range(2):
        first = admitted(task)
        clock.now += 2.0
        first.finish(Outcome.OK)
    second = admitted(task)
    clock.now -= 3_600.0
    second.finish(Outcome.OK)

    assert seen.events[-1] == ("finished", second.request, Outcome.OK, 0.0, 0.0)
    # A negative one would be no report at all: it refuses what is out of bounds.
    assert task.report().latency_seconds == pytest.approx(2.0 + 0.05 * (0.0 - 2.0))


def test_a_first_request_during_which_the_clock_steps_back_leaves_a_report() -> None:
    clock = OddClock()
    task = new_task(clock=clock)
    admission = admitted(task)
    clock.now -= 3_600.0
    admission.finish(Outcome.OK)

    assert task.report().latency_seconds == 0.0
    assert task.report().active == 0


@pytest.mark.parametrize(
    ("runnable", "expected"),
    [
        pytest.param(0.0, 0.0, id="idle"),
        pytest.param(3.0, 3 / 4, id="one of four cores is free"),
        pytest.param(4.0, 1.0, id="all busy"),
        pytest.param(400.0, 1.0, id="a queue is no more than busy"),
    ],
)
def test_utilization_is_the_busy_part_of_the_cores_where_nobody_reads_the_cpu(
    runnable: float, expected: float
) -> None:
    # The slack is for the ramps alone.
    task = new_task(BackendTaskConfig(cores=4), slack=4.0)
    assert task.report().utilization == 0.0  # unknown
    task.record_signal("runnable", runnable)

    assert task.report().utilization == expected


def test_the_busy_part_is_averaged_over_rate_seconds() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4, rate_seconds=2.0), clock=clock)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 40.0)  # 1.0 of the cores, not 10: no more than all are busy
    assert task.report().utilization == 0.0

    clock.advance(2.0)
    assert task.report().utilization == pytest.approx(1.0 - math.exp(-1.0))


def test_the_cpu_is_the_utilization_where_it_is_known() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4), clock=clock)
    task.record_signal("runnable", 3.0)
    task.record_signal("cpu", 1.25)
    assert task.report().utilization == 1.25  # and beyond 1, unlike the busy part

    clock.advance(5.25)  # The reader of the CPU clock is stuck, that of `runnable` is not.
    task.record_signal("runnable", 3.0)
    assert task.report().utilization == pytest.approx(3 / 4)


def test_a_busy_part_that_nobody_recorded_for_long_is_unknown() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4), clock=clock)
    task.record_signal("runnable", 3.0)
    clock.advance(5.0)
    assert task.report().utilization == pytest.approx(3 / 4)

    clock.advance(0.25)
    assert task.report().utilization == 0.0


def test_all_that_are_active_are_runnable_where_nobody_counts() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    admitted(task)
    admitted(task)
    assert task.report().runnable == 2.0  # No reader has begun,

    task.record_signal("runnable", 0.5)
    assert task.report().runnable == 0.5
    clock.advance(5.0)
    assert task.report().runnable == 0.5
    clock.advance(0.25)
    assert task.report().runnable == 2.0  # or it is stuck.
    task.record_signal("runnable", 0.0)
    assert task.report().runnable == 0.0


@pytest.mark.parametrize("boot", [0, 2**63 - 1])
def test_any_boot_that_a_report_can_carry_is_taken(boot: int) -> None:
    assert new_task(boot=boot).report().boot == boot


@pytest.mark.parametrize("boot", [-1, 2**63, 1.5, math.nan, True, None, "1"], ids=repr)
def test_a_boot_that_no_report_can_carry_is_refused_at_construction(boot: object) -> None:
    with pytest.raises(
        ConfigError, match=r"boot must be a whole number in \[0, 9223372036854775807"
    ):
        new_task(boot=boot)  # type: ignore[arg-type]  # what a caller may pass unchecked


# Signals


@pytest.mark.parametrize("name", ["runnable", "cpu", "memory", "connections"])
@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, -1.0, 1e300, "9", None, b"9", [9.0], 9j),
        pytest.param(10**400, id="10**400"),
    ],
    ids=repr,
)
def test_a_signal_that_is_no_number_is_ignored_and_counted(name: str, value: object) -> None:
    task = new_task(BackendTaskConfig(cores=4))
    task.record_signal("runnable", 3.0)
    task.record_signal(name, value)  # type: ignore[arg-type]  # a reader that misbehaves

    assert task.report().runnable == 3.0
    assert task.report().utilization == 3 / 4
    assert admitted_by(task) == [True, True, True, True]
    assert task.snapshot().utilization.signals[name].ignored == 1


def test_a_signal_that_nobody_configured_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="unknown signal 'cpus'; there are runnable, cpu"):
        new_task().record_signal("cpus", 0.5)


def test_degrading_begins_at_the_foot_of_the_lowest_ramp() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.record_signal("runnable", 1.49)
    assert not task.should_degrade()

    clock.advance(10.0)
    task.record_signal("runnable", 1.5)
    assert task.should_degrade()
    assert task.snapshot().utilization.should_degrade


# The observer


def test_an_observer_sees_every_decision() -> None:
    seen = Seen()
    clock = ManualClock()
    config = BackendTaskConfig(quota=QUOTA, cost=CostConfig(compute_units=2.0))
    task = new_task(config, clock=clock, observer=seen)
    served, expired, poor, shed = (
        Request(customer="a"),
        Request(deadline_at=0.0),
        Request(customer="none"),
        Request(customer="b"),
    )
    task.announce_healthy()
    answer = task.admit(served)
    assert isinstance(answer, Admission)
    clock.advance(0.5)
    answer.finish(Outcome.OK, 0.25)
    task.admit(expired)
    task.admit(poor)
    task.record_signal("runnable", 2.5)
    task.record_signal("runnable", 2.5)  # nothing new
    task.admit(Request(criticality=SHEDDABLE, customer="b"))
    task.enter_lame_duck()

    shed = Request(criticality=SHEDDABLE, customer="b")
    assert seen.events == [
        ("lame duck", False),
        ("admitted", served),
        ("finished", served, Outcome.OK, 0.5, 0.5),
        ("rejected", expired, Reason.EXPIRED),
        ("rejected", poor, Reason.OUT_OF_QUOTA),
        ("admission", SHEDDABLE, False),
        ("admission", SHEDDABLE_PLUS, False),
        ("rejected", shed, Reason.OVERLOADED),
        ("lame duck", True),
    ]


def test_an_observer_sees_admission_come_back() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("runnable", 1.75)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 0.0)

    assert seen.events == [("admission", SHEDDABLE, False), ("admission", SHEDDABLE, True)]


def test_a_report_tells_the_observer_that_a_signal_has_decayed() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("runnable", 1.75)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)  # 1.75 · exp(−10) is nothing.
    assert seen.events == [("admission", SHEDDABLE, False)]

    task.report()
    task.report()  # nothing new
    assert seen.events == [("admission", SHEDDABLE, False), ("admission", SHEDDABLE, True)]


def test_a_report_tells_the_observer_that_a_signal_has_risen() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 2.0)
    clock.advance(1.0)
    assert seen.events == []

    task.report()
    assert seen.events == [("admission", SHEDDABLE, False)]


def test_a_report_tells_the_observer_that_a_signal_has_expired() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("runnable", 100.0)
    shut = [("admission", criticality, False) for criticality in Criticality]
    clock.advance(5.25)
    assert seen.events == shut

    task.report()
    assert seen.events == [
        *shut,
        *(("admission", criticality, True) for criticality in Criticality),
    ]


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("cores", 0.0),
        ("cores", math.nan),
        ("unit_seconds", -0.1),
        ("unit_seconds", math.nan),
        ("harmless_seconds", -0.1),
        ("harmless_seconds", math.nan),
        ("runnable_slack", -0.5),
        ("runnable_slack", 10_001.0),
        ("runnable_slack", math.nan),
        ("rate_seconds", 0.0),
        ("drain_seconds", -1.0),
        ("quiet_seconds", math.inf),
        ("probe_port", 0),
        ("probe_port", 65_536),
    ],
)
def test_a_wrong_config_is_refused(field_name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field_name):
        BackendTaskConfig(**{field_name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "runnable", "is_shed"),
    [
        pytest.param(1, 5.5, False, id="one core: (5.5 - 4) / 1 = 1.5, the foot of the ramp"),
        pytest.param(1, 6.1, True, id="one core: (6.1 - 4) / 1 = 2.1, above its end"),
        pytest.param(8, 16.0, False, id="eight cores: (16 - 4) / 8 = 1.5"),
        pytest.param(8, 20.1, True, id="eight cores: (20.1 - 4) / 8 = 2.01"),
    ],
)
def test_a_few_requests_are_no_overload_however_few_cores(
    cores: int, runnable: float, is_shed: bool
) -> None:
    task = new_task(BackendTaskConfig(cores=cores), slack=4.0, draw=0.0)
    task.record_signal("runnable", runnable)

    assert isinstance(task.admit(Request(criticality=SHEDDABLE)), Rejection) is is_shed
    assert task.report().runnable == runnable  # Clients are told what is there.
    assert BackendTaskConfig().runnable_slack == 4.0


def test_a_rejection_from_below_leaves_as_dont_retry() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    admission = admitted(task)

    assert task.pass_on(admission, 0.25) == Rejection(Reason.DONT_RETRY, retryable=False)
    assert task.snapshot().active == 0
    assert task.report().eps == 0.0  # It is no failure of this backend.
    with pytest.raises(UsageError):
        admission.finish(Outcome.OK)
