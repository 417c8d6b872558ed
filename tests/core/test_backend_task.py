from __future__ import annotations

import heapq
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
from evenly.core.overload.utilization import Ramp, SignalConfig, UtilizationConfig, default_signals
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
# A signal whose value is the cut-line that follows from it, nearly at once.
OWN = SignalConfig(
    ramps=(Ramp(0.0, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0)),
    degrade_at=1e9,
    decay_seconds=1e-6,
)
WITH_OWN = UtilizationConfig(signals={**default_signals(), "own": OWN})


class Draw(random.Random):
    """Draw the same number every time, and count how often."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
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
    rng: random.Random | None = None,
    boot: int = BOOT,
    observer: Observer = NO_OBSERVER,
) -> BackendTask:
    return BackendTask(
        replace(config or BackendTaskConfig(), utilization=WITH_OWN),
        clock=clock or ManualClock(),
        rng=rng or Draw(0.5),
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


def admitted_by(task: BackendTask, luck: float | None = None) -> list[bool]:
    """Try one request of each criticality, SHEDDABLE first."""
    return [
        isinstance(task.admit(Request(criticality=criticality, luck=luck)), Admission)
        for criticality in Criticality
    ]


def work(
    task: BackendTask,
    clock: ManualClock,
    *,
    queue: float,
    seconds: float = 3.0,
    criticality: Criticality = CRITICAL_PLUS,
    times: int = 1,
    line: float = 0.0,
) -> None:
    """Let the one core serve 100 a second of 10 ms for so long, `times` as many asking for it."""
    for _ in range(round(seconds / 0.01)):
        task.record_signal("runnable", queue)
        request = Request(criticality=criticality, luck=63 / 64)
        answer = task.admit(request, line=line)
        # Of the others it is seen that they came; if they were let in, they would wait.
        task._cut_line.arrived[criticality] += times - 1
        clock.advance(0.01)
        if isinstance(answer, Admission):
            answer.finish(Outcome.OK, 0.01)


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
    ("cut", "luck", "expected"),
    [
        pytest.param(0.0, 0.0, [True, True, True, True], id="nothing"),
        pytest.param(0.5, 31 / 64, [False, True, True, True], id="half of SHEDDABLE"),
        pytest.param(0.5, 32 / 64, [True, True, True, True], id="at the line: the other half"),
        pytest.param(1.0, 0.0, [False, True, True, True], id="SHEDDABLE and no more"),
        pytest.param(1.0, 63 / 64, [False, True, True, True], id="all of it"),
        pytest.param(2.25, 0.0, [False, False, False, True], id="a quarter of CRITICAL"),
        pytest.param(2.25, 16 / 64, [False, False, True, True], id="the other quarters"),
        pytest.param(3.0, 0.0, [False, False, False, True], id="all but CRITICAL_PLUS"),
        pytest.param(3.75, 47 / 64, [False, False, False, False], id="most of CRITICAL_PLUS"),
        pytest.param(3.75, 48 / 64, [False, False, False, True], id="a quarter is left"),
        pytest.param(4.0, 63 / 64, [False, False, False, False], id="everything"),
    ],
)
def test_what_is_below_the_line_is_refused(cut: float, luck: float, expected: list[bool]) -> None:
    task = new_task()
    task.record_signal("own", cut)

    assert admitted_by(task, luck) == expected
    assert task.report().active == sum(expected)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        pytest.param(0.49, [False, False, False, True], id="31 / 64"),
        pytest.param(0.5, [False, False, True, True], id="32 / 64"),
    ],
)
def test_the_luck_of_who_has_none_is_drawn(drawn: float, expected: list[bool]) -> None:
    task = new_task(rng=Draw(drawn))
    task.record_signal("own", 2.5)

    assert admitted_by(task) == expected


def test_luck_is_drawn_only_where_it_decides() -> None:
    rng = Draw(0.75)
    task = new_task(rng=rng)
    assert admitted(task).luck is None
    task.record_signal("own", 2.5)
    assert admitted(task, CRITICAL_PLUS).luck is None  # CRITICAL_PLUS is above it, whatever luck.
    assert isinstance(task.admit(Request(luck=0.625)), Admission)
    assert rng.draws == 0

    drawn = admitted(task, CRITICAL)
    assert rng.draws == 1
    assert drawn.luck == drawn.request.luck == 0.75  # What is called for it has the same.


def test_luck_for_a_request_that_others_share_replaces_its_own() -> None:
    task = new_task()
    task.record_signal("own", 2.5)
    shared = Request(luck=0.75)

    assert task.admit(shared, 1, Admission, luck=0.25) == OVERLOADED
    other = task.admit(shared, 1, Admission, luck=0.5)
    assert isinstance(other, Admission)
    assert (other.luck, other.request.luck) == (0.5, 0.5)
    own = task.admit(shared, 1, Admission)
    assert isinstance(own, Admission)
    assert own.request is shared
    assert shared.luck == 0.75


def test_of_a_queue_and_a_signal_that_decides_which_refuses_more() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    work(task, clock, queue=5.25, times=2)  # Half of the C+ can be served: 3.5.
    by_queue = task.report().cut
    assert by_queue == pytest.approx(3.5, abs=0.05)
    task.record_signal("own", 2.5)
    assert task.report().cut == by_queue

    task.record_signal("own", 3.75)
    clock.advance(0.001)
    assert task.report().cut == 3.75


def test_requests_that_wait_for_something_else_are_no_queue_and_have_been_served() -> None:
    # 600 a second of 1 ms CPU that then wait for 0.5 s: the one core is busy for 60 %.
    clock = ManualClock()
    task = new_task(clock=clock)
    waiting: list[tuple[float, Admission]] = []
    for _ in range(1200):
        task.record_signal("runnable", 1.0)
        answer = task.admit(Request(criticality=SHEDDABLE, luck=0.0))
        clock.advance(0.001)
        task.record_signal("runnable", 0.0)
        assert isinstance(answer, Admission)
        waiting.append((clock() + 0.5, answer))
        clock.advance(1 / 600 - 0.001)
        while waiting and waiting[0][0] <= clock():
            waiting.pop(0)[1].finish(Outcome.OK, 0.001)

    assert task.cut == 0.0


def test_answers_are_degraded_where_the_queue_is_long_whoever_is_refused() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    work(task, clock, queue=3.0, criticality=CRITICAL)
    assert not task.should_degrade(2.0)
    work(task, clock, queue=6.0, criticality=CRITICAL, seconds=0.3)  # n* is 5.25.

    assert task.report().cut < 2.5  # far from a criticality below 3.99, so the queue alone says it
    assert task.should_degrade(3.99)


def test_the_line_of_a_client_says_what_it_holds_back() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    work(task, clock, queue=5.25, criticality=CRITICAL, seconds=5.0)
    assert task.report().cut <= 2.02  # As many ask for it as can be served.
    # As many come, with the half that is lucky: twice as many are asked for.
    work(task, clock, queue=5.25, criticality=CRITICAL, seconds=5.0, line=2.5)

    assert task.report().cut == pytest.approx(2.5, abs=0.02)


@pytest.mark.parametrize(
    ("seconds_left", "is_admitted"),
    [
        pytest.param(None, True, id="no deadline"),
        pytest.param(math.inf, True, id="never"),
        pytest.param(0.13, True, id="130 ms"),
        pytest.param(0.11, False, id="110 ms"),
    ],
)
def test_a_request_that_cannot_be_answered_in_time_is_refused_at_once(
    seconds_left: float | None, is_admitted: bool
) -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    work(task, clock, queue=11.0)  # It would take (10 + 1 + 1) / 100 s.
    deadline_at = None if seconds_left is None else clock() + seconds_left
    request = Request(criticality=CRITICAL_PLUS, deadline_at=deadline_at, luck=63 / 64)
    answer = task.admit(request)

    # Another backend may have more time for it.
    assert answer == OVERLOADED if not is_admitted else isinstance(answer, Admission)
    again = task.admit(Request(criticality=CRITICAL_PLUS, luck=63 / 64), seconds_left=seconds_left)
    assert isinstance(again, Admission) is is_admitted


def test_where_the_queue_does_not_limit_only_signals_and_quotas_refuse() -> None:
    clock = ManualClock()
    config = BackendTaskConfig(limits_queue=False, quota=QUOTA)
    task = new_task(config, clock=clock)
    work(task, clock, queue=1000.0, times=3)
    assert task.report().cut == 0.0
    assert task.snapshot().cut == 0.0
    in_haste = Request(customer="a", criticality=SHEDDABLE, deadline_at=clock() + 0.01, luck=0.0)
    assert isinstance(task.admit(in_haste), Admission)

    none = task.admit(Request(customer="none"))
    assert isinstance(none, Rejection)
    assert none.reason is Reason.OUT_OF_QUOTA
    task.record_signal("own", 1.0)
    assert task.admit(Request(customer="a", criticality=SHEDDABLE)) == OVERLOADED


# Whatever four hundred do that sleep, or whose bodies do not come: nobody knows that they want CPU.
def test_before_one_was_served_no_queue_is_evidence_however_long_it_lasts() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    held = [admitted(task) for _ in range(400)]
    for _ in range(200):
        task.record_signal("runnable", 400.0)
        clock.advance(0.01)
        held.append(admitted(task))
    assert admitted_by(task) == [True] * 4

    held.pop().finish(Outcome.OK, 0.05)
    task.record_signal("runnable", 400.0)
    clock.advance(0.01)
    assert admitted_by(task)[:3] == [False] * 3


@dataclass
class Burst:
    """Be a backend whose cores have some work now and then, and then many requests come at once."""

    took_seconds: float
    cores: int = 1
    load: float = 0.1
    clock: ManualClock = field(default_factory=ManualClock)
    running: list[tuple[float, int, float, Admission]] = field(default_factory=list)
    waiting: list[Admission] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        luck = random.Random(22)
        self.task = new_task(BackendTaskConfig(cores=self.cores), clock=self.clock, rng=luck)
        rng = random.Random(21)
        end_at = self.clock() + 5.0
        while self.clock() < end_at:
            self.let_pass(rng.expovariate(self.load * self.cores / self.took_seconds))
            self.arrive(CRITICAL)

    def let_pass(self, seconds: float) -> None:
        until = self.clock() + seconds
        while self.running and self.running[0][0] <= until:
            end_at, _, used_seconds, admission = heapq.heappop(self.running)
            self.clock.advance(max(0.0, end_at - self.clock()))
            admission.finish(Outcome.OK, used_seconds)
            if self.waiting:
                self.run(self.waiting.pop(0))
            self.task.record_signal("runnable", len(self.running) + len(self.waiting))
        self.clock.advance(max(0.0, until - self.clock()))

    def run(self, admission: Admission, seconds: float | None = None) -> None:
        self.count += 1
        seconds = self.took_seconds if seconds is None else seconds
        heapq.heappush(self.running, (self.clock() + seconds, self.count, seconds, admission))

    def arrive(self, criticality: Criticality) -> bool:
        answer = self.task.admit(Request(criticality=criticality))
        if isinstance(answer, Rejection):
            return False
        if len(self.running) < self.cores:
            self.run(answer)
        else:
            self.waiting.append(answer)
        self.task.record_signal("runnable", len(self.running) + len(self.waiting))
        return True

    def refused(self, work_seconds: float, *, within: float = 0.03) -> dict[Criticality, int]:
        """Send requests that take the cores so long; return how many are refused."""
        total = round(work_seconds * self.cores / self.took_seconds)
        refused = dict.fromkeys((CRITICAL, CRITICAL_PLUS), 0)
        for number in range(total):
            self.let_pass(within / total)
            criticality = CRITICAL_PLUS if number % 10 == 0 else CRITICAL
            refused[criticality] += not self.arrive(criticality)
        return refused


@pytest.mark.parametrize("load", [0.1, 0.5])
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("took_seconds", [0.0006, 0.005, 0.02])
@pytest.mark.parametrize("within", [0.005, 0.03, 0.1])
def test_a_burst_that_is_soon_worked_off_is_not_refused(
    took_seconds: float, cores: int, load: float, within: float
) -> None:
    burst = Burst(took_seconds, cores, load)

    assert burst.refused(0.05, within=within) == {CRITICAL: 0, CRITICAL_PLUS: 0}


# An idle CPU has a quarter of a second of work to give, within which it is seen what requests cost.
@pytest.mark.parametrize("took_seconds", [0.0006, 0.005])
@pytest.mark.parametrize("within", [0.005, 0.03, 0.1])
def test_a_burst_at_an_idle_cpu_is_refused_only_beyond_a_quarter_of_a_second(
    took_seconds: float, within: float
) -> None:
    assert Burst(took_seconds).refused(0.24, within=within)[CRITICAL] == 0


@pytest.mark.parametrize("took_seconds", [0.0006, 0.005, 0.02])
@pytest.mark.parametrize("cores", [1, 4])
def test_a_burst_beyond_that_is_refused_but_for_critical_plus(
    took_seconds: float, cores: int
) -> None:
    refused = Burst(took_seconds, cores).refused(0.5)

    # Half a second of work, of which a quarter of a second is admitted, and some besides.
    assert refused[CRITICAL] >= 0.1 * cores / took_seconds
    assert refused[CRITICAL_PLUS] == 0


@pytest.mark.parametrize(
    ("took_seconds", "runnable", "is_refused"),
    [
        pytest.param(0.01, 8.0, True, id="eight of 10 ms: 80 ms"),
        pytest.param(0.0005, 10.0, False, id="ten of 0.5 ms: 5 ms"),
        pytest.param(0.00005, 60.0, False, id="60 of 50 µs: 3 ms"),
        pytest.param(0.00005, 4000.0, True, id="4,000 of 50 µs: 200 ms"),
    ],
)
def test_a_queue_that_lasts_counts_by_the_time_that_it_takes(
    took_seconds: float, runnable: float, is_refused: bool
) -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    for _ in range(300):  # As many as can be served.
        task.record_signal("runnable", runnable)
        batch = [
            task.admit(Request(criticality=SHEDDABLE, luck=63 / 64))
            for _ in range(round(0.01 / took_seconds))
        ]
        clock.advance(0.01)
        for answer in batch:
            if isinstance(answer, Admission):
                answer.finish(Outcome.OK, took_seconds)

    assert (task.report().cut > 0.0) is is_refused


def test_a_reader_that_fell_silent_refuses_nobody() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    work(task, clock, queue=100.0, times=3)
    assert admitted_by(task)[:3] == [False] * 3
    clock.advance(5.1)

    assert admitted_by(task) == [True, True, True, True]
    assert task.report().cut == 0.0


# Half of what one core can do, and one request that takes it alone for so long.
@pytest.mark.parametrize("stall_seconds", [1.0, 10.0, 30.0])
def test_a_queue_that_is_stuck_is_refused_and_comes_back_within_four_seconds(
    stall_seconds: float,
) -> None:
    service = Burst(0.01, load=0.5)
    rng = random.Random(21)
    service.run(admitted(service.task, CRITICAL_PLUS), stall_seconds)
    end_at = service.clock() + stall_seconds
    refused = 0
    while service.clock() < end_at:
        service.let_pass(rng.expovariate(50.0))
        refused += not service.arrive(CRITICAL)
    assert refused > 0.6 * 50.0 * (stall_seconds - 0.5)  # Hardly more than 0.15 s wait.

    while service.clock() < end_at + 4.0:
        service.let_pass(rng.expovariate(50.0))
        service.arrive(CRITICAL)
    for _ in range(100):
        service.let_pass(rng.expovariate(50.0))
        assert service.arrive(CRITICAL)


def test_a_clock_that_steps_back_does_not_freeze_the_cut() -> None:
    clock = OddClock()
    task = new_task(clock=clock)

    def live(queue: float, arrivals: int) -> None:
        for _ in range(300):
            task.record_signal("runnable", queue)
            for _ in range(arrivals):
                answer = task.admit(Request(luck=63 / 64))
                if isinstance(answer, Admission):
                    answer.finish(Outcome.OK, 0.01)
            clock.now += 0.01
            task.report()  # as with every answer

    live(queue=5.25, arrivals=1)
    live(queue=14.0, arrivals=1)
    assert task.report().cut > 2.0
    clock.now -= 3600.0
    live(queue=0.0, arrivals=0)

    assert task.report().cut == 0.0
    assert admitted_by(task) == [True] * 4


def test_memory_sheds_on_its_own() -> None:
    task = new_task()
    task.record_signal("memory", 0.94)

    assert admitted_by(task) == [False, False, True, True]
    assert task.report().cut == pytest.approx(2.0)


def test_rejections_say_dont_retry_once_retries_are_widespread() -> None:
    config = BackendTaskConfig(attempts=AttemptHistogramConfig(min_arrivals=100))
    task = new_task(config)
    task.record_signal("own", 4.0)
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
    task.record_signal("own", 4.0)
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
    task.record_signal("own", 4.0)
    assert task.admit(Request(customer="a")) == OVERLOADED

    account = task.snapshot().customers["a"]
    assert (account.reserved_seconds, account.active, account.level_seconds) == (0.0, 0, 1.0)


def test_out_of_quota_is_said_before_overloaded() -> None:
    task = new_task(BackendTaskConfig(quota=QUOTA))
    task.record_signal("own", 4.0)
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
    task.record_signal("own", 0.5)
    admitted(task)
    clock.advance(0.01)

    report = task.report()
    assert (report.boot, report.sequence, report.lame_duck) == (BOOT, 1, False)
    assert report.cut == 0.5
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


@pytest.mark.parametrize("cut", [0.0, 0.3, 1.0, 2.75, 4.0])
def test_a_report_says_below_which_level_requests_are_refused(cut: float) -> None:
    task = new_task()
    task.record_signal("own", cut)

    assert task.report().cut == task.snapshot().cut == pytest.approx(cut)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        pytest.param(0.0, (0.0, 0.0, 0.0, 0.0), id="nothing is refused"),
        pytest.param(0.25, (0.25, 0.0, 0.0, 0.0), id="a quarter of SHEDDABLE"),
        pytest.param(2.5, (1.0, 1.0, 0.5, 0.0), id="half of CRITICAL, and all below it"),
        pytest.param(4.0, (1.0, 1.0, 1.0, 1.0), id="everything"),
    ],
)
def test_the_snapshot_says_how_likely_one_is_refused_that_nobody_gave_its_luck(
    cut: float, expected: tuple[float, ...]
) -> None:
    task = new_task()
    task.record_signal("own", cut)

    assert task.snapshot().rejection_probabilities == pytest.approx(expected)


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
    task.record_signal("own", 4.0)
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
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4), clock=clock)
    assert task.report().utilization == 0.0  # unknown
    task.record_signal("runnable", runnable)
    clock.advance(0.01)

    assert task.report().utilization == pytest.approx(expected)


def test_the_busy_part_is_averaged_over_rate_seconds() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4, rate_seconds=2.0), clock=clock)
    task.record_signal("runnable", 0.0)
    clock.advance(1.0)
    task.record_signal("runnable", 40.0)  # 1.0 of the cores, not 10: no more than all are busy
    assert task.report().utilization == 0.0

    clock.advance(2.0)  # However seldom somebody asks.
    assert task.report().utilization == pytest.approx(1.0 - math.exp(-1.0))


def test_the_cpu_is_the_utilization_where_it_is_known() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4), clock=clock)
    task.record_signal("runnable", 3.0)
    task.record_signal("cpu", 1.25)
    assert task.report().utilization == 1.25  # and beyond 1, unlike the busy part

    clock.advance(5.25)  # The reader of the CPU clock is stuck, that of `runnable` is not.
    task.record_signal("runnable", 3.0)
    clock.advance(0.01)
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
    clock = ManualClock()
    task = new_task(BackendTaskConfig(cores=4), clock=clock)
    task.record_signal("runnable", 3.0)
    task.record_signal(name, value)  # type: ignore[arg-type]  # a reader that misbehaves
    clock.advance(0.01)

    assert task.report().runnable == 3.0
    assert task.report().utilization == pytest.approx(3 / 4)
    assert admitted_by(task) == [True, True, True, True]
    if name != "runnable":
        assert task.snapshot().utilization.signals[name].ignored == 1


def test_a_signal_that_nobody_configured_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="unknown signal 'cpus'; there are cpu, memory"):
        new_task().record_signal("cpus", 0.5)


def test_degrading_begins_at_the_foot_of_the_lowest_ramp() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)
    task.record_signal("memory", 0.87)
    assert not task.should_degrade(0.0)

    clock.advance(10.0)
    task.record_signal("memory", 0.88)
    assert task.should_degrade(0.0)
    assert task.should_degrade(3.9)  # Memory is short whoever asks.
    assert task.snapshot().utilization.should_degrade


@pytest.mark.parametrize(
    ("cut", "level", "is_wanted"),
    [
        pytest.param(0.0, 0.0, False, id="nothing is refused"),
        pytest.param(0.1, 0.5, True, id="about to be refused"),
        pytest.param(0.1, 1.0, True, id="1.0 is less than one above the cut"),
        pytest.param(0.1, 1.25, False, id="more than one above"),
        pytest.param(2.5, 3.25, True, id="0.75 above"),
        pytest.param(2.5, 3.5, False, id="one above"),
    ],
)
def test_who_is_refused_next_makes_do_with_less(cut: float, level: float, is_wanted: bool) -> None:
    task = new_task()
    task.record_signal("own", cut)

    assert task.should_degrade(level) is is_wanted


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
    task.record_signal("own", 1.5)
    task.record_signal("own", 1.5)  # nothing new
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
    task.record_signal("own", 0.75)
    task.record_signal("own", 0.0)
    clock.advance(1.0)
    task.record_signal("own", 0.0)

    assert seen.events == [("admission", SHEDDABLE, False), ("admission", SHEDDABLE, True)]


def test_an_observer_hears_of_criticalities_and_not_of_every_level() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    for cut in (0.25, 0.75, 1.0, 1.5, 2.5, 2.25):
        clock.advance(1.0)
        task.record_signal("own", cut)
        clock.advance(1.0)
        task.report()

    assert seen.events == [
        ("admission", SHEDDABLE, False),  # 0.25: some of it is refused
        ("admission", SHEDDABLE_PLUS, False),  # 1.5
        ("admission", CRITICAL, False),  # 2.5
    ]


def test_a_report_tells_the_observer_that_a_signal_has_decayed() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("memory", 0.895)
    task.record_signal("memory", 0.0)
    clock.advance(1.0)  # 0.895 / e is below every ramp.
    assert seen.events == [("admission", SHEDDABLE, False)]

    task.report()
    task.report()  # nothing new
    assert seen.events == [("admission", SHEDDABLE, False), ("admission", SHEDDABLE, True)]


def test_a_report_tells_the_observer_that_a_signal_has_risen() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("memory", 0.0)
    clock.advance(1.0)
    task.record_signal("memory", 0.91)
    clock.advance(4.0)
    assert seen.events == []

    task.report()  # 0.91 · (1 − e^−4) = 0.893
    assert seen.events == [("admission", SHEDDABLE, False)]


def test_a_report_tells_the_observer_that_a_signal_has_expired() -> None:
    seen = Seen()
    clock = ManualClock()
    task = new_task(clock=clock, observer=seen)
    task.record_signal("own", 4.0)
    shut = [("admission", criticality, False) for criticality in Criticality]
    clock.advance(5.25)
    assert seen.events == shut

    task.report()
    assert seen.events == [
        *shut,
        *(("admission", criticality, True) for criticality in reversed(Criticality)),
    ]


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("cores", 0.0),
        ("cores", math.nan),
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
    "name", ["runnable_slack", "unit_seconds", "harmless_seconds", "burst_seconds"]
)
def test_a_setting_that_is_gone_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is gone: .*limits_queue=False turns it off"):
        BackendTaskConfig(**{name: 1.0})  # type: ignore[arg-type]


def test_a_rejection_from_below_leaves_as_dont_retry() -> None:
    clock = ManualClock()
    task = new_task(BackendTaskConfig(quota=QUOTA), clock=clock)
    admission = admitted(task)

    assert task.pass_on(admission, 0.25) == Rejection(Reason.DONT_RETRY, retryable=False)
    assert task.snapshot().active == 0
    assert task.report().eps == 0.0  # It is no failure of this backend.
    with pytest.raises(UsageError):
        admission.finish(Outcome.OK)
