from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend, BackendSnapshot
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, ConnectionOrders, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.errors import ConfigError, UsageError
from evenly.testing import ManualClock

OPENED = ConnectionEvent.OPENED
REFUSED = ConnectionEvent.REFUSED
LOST = ConnectionEvent.LOST
A, B, C = Backend("a:1"), Backend("b:1"), Backend("c:1")
NO_BACKEND = Rejection(Reason.NO_BACKEND, retryable=False)
AT_LIMIT = Rejection(Reason.AT_LIMIT, retryable=True)
BOOT = 5_000


class NoJitter(random.Random):
    """Draw the middle of every range, so that delays are what they are called."""

    def random(self) -> float:
        return 0.5


def new_task(
    *backends: Backend,
    policy: str = "least_loaded",
    active_limit: int = 100,
    clock: ManualClock | None = None,
    is_connected: bool = True,
    check_seconds: float = 1.0,
    weights: WeightConfig | None = None,
    rng: random.Random | None = None,
) -> ClientTask:
    config = ClientTaskConfig(
        policy=PolicyConfig(name=policy, weights=weights or WeightConfig()),
        membership=MembershipConfig(health=HealthConfig(check_seconds=check_seconds)),
        active_limit=active_limit,
    )
    task = ClientTask(config, clock=clock or ManualClock(), rng=rng or NoJitter(0))
    task.update(backends)
    if is_connected:
        task.take_connections()
        for backend in backends:
            task.record_connection(backend, OPENED)
    return task


def begin(task: ClientTask, previous: Attempt | None = None) -> Attempt:
    answer = task.begin(Request(), previous)
    assert isinstance(answer, Attempt)
    return answer


def ask(task: ClientTask) -> Ask:
    answer = task.begin(Request())
    assert isinstance(answer, Ask)
    return answer


def shown(task: ClientTask, backend: Backend) -> BackendSnapshot:
    (found,) = (one for one in task.snapshot().backends if one.address == backend.address)
    return found


def active(task: ClientTask) -> dict[str, int]:
    return {one.address: one.active for one in task.snapshot().backends}


def test_begin_and_finish_are_counted() -> None:
    task = new_task(A, B)
    first = begin(task)
    second = begin(task)
    third = begin(task)
    assert {first.backend, second.backend} == {A, B}
    assert active(task) == {first.backend.address: 2, second.backend.address: 1}
    assert task.snapshot().active == 3

    first.finish(Outcome.OK)
    second.finish(Outcome.OK)
    assert active(task) == {first.backend.address: 1, second.backend.address: 0}
    third.finish(Outcome.OK)
    assert task.snapshot().active == 0


@pytest.mark.parametrize(
    ("outcome", "expected", "errors"),
    [
        pytest.param(Outcome.OK, Next.DONE, 0.0, id="answered"),
        pytest.param(Outcome.CANCELLED, Next.DONE, 0.0, id="cancelled"),
        pytest.param(Outcome.OUT_OF_QUOTA, Next.GIVE_UP, 0.0, id="out of quota"),
        pytest.param(Outcome.ERROR, Next.GIVE_UP, 1.0, id="failed"),
        pytest.param(Outcome.OVERLOADED, Next.RETRY, 1.0, id="overloaded"),
        pytest.param(Outcome.DONT_RETRY, Next.GIVE_UP, 1.0, id="all overloaded"),
        pytest.param(Outcome.TIMEOUT, Next.GIVE_UP, 1.0, id="timed out"),
        pytest.param(Outcome.LOST, Next.GIVE_UP, 1.0, id="lost"),
        pytest.param(Outcome.NOT_SENT, Next.RETRY, 1.0, id="not sent"),
    ],
)
def test_every_ending(outcome: Outcome, expected: Next, errors: float) -> None:
    task = new_task(A)
    attempt = begin(task)

    assert attempt.finish(outcome) is expected
    assert shown(task, A).active == 0
    assert shown(task, A).errors == errors
    assert shown(task, A).state is State.HEALTHY  # Overload is not death, nor is any other error.


@pytest.mark.parametrize(
    ("outcome", "eps", "failures"),
    [
        pytest.param(Outcome.ERROR, 1.0, 0.0, id="an error whose answer tells how many there are"),
        pytest.param(Outcome.ERROR, 0.0, 1.0, id="an error whose answer knows of none"),
        pytest.param(Outcome.ERROR, None, 1.0, id="an error without a report"),
        pytest.param(Outcome.TIMEOUT, 1.0, 1.0, id="no answer; what was heard was of another"),
        pytest.param(Outcome.LOST, None, 1.0, id="lost"),
        pytest.param(Outcome.OVERLOADED, None, 0.0, id="a rejection"),
        pytest.param(Outcome.OK, None, 0.0, id="none"),
    ],
)
def test_which_ends_are_failures_that_nobody_tells_of(
    outcome: Outcome, eps: float | None, failures: float
) -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    task.record_report(A, LoadReport())  # This was before, and tells of others.
    clock.advance(1.0)
    attempt = begin(task)
    if eps is not None:
        task.record_report(A, LoadReport(qps=1.0, eps=eps))
    attempt.finish(outcome)

    assert attempt.view.failures(clock()) == failures
    assert shown(task, A).errors == float(outcome.is_error)  # As load all of them count.


def test_finish_twice_is_a_mistake_and_counts_once() -> None:
    task = new_task(A)
    other = begin(task)
    attempt = begin(task)
    attempt.finish(Outcome.OK)

    with pytest.raises(UsageError, match="this attempt has finished already: <Attempt 1 at a:1"):
        attempt.finish(Outcome.ERROR)
    assert active(task) == {"a:1": 1}
    assert shown(task, A).errors == 0.0
    other.finish(Outcome.OK)


# Errors fade by the second, however seldom health is checked.
@pytest.mark.parametrize("check_seconds", [1.0, 30.0])
def test_errors_weigh_on_a_backend_until_they_have_faded(check_seconds: float) -> None:
    clock = ManualClock()
    task = new_task(A, B, clock=clock, check_seconds=check_seconds)
    failed = begin(task)
    failed.finish(Outcome.ERROR)
    for _ in range(3):  # Every pick goes elsewhere.
        attempt = begin(task)
        assert attempt.backend != failed.backend
        attempt.finish(Outcome.OK)

    for _ in range(4):  # After 4 s exp(−4/5) = 0.45 of an error is left, and rounds to none.
        clock.advance(1.0)
        task.wake()
    picked = {begin(task).backend, begin(task).backend}
    assert picked == {A, B}


def test_errors_are_forgotten_in_the_end() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    begin(task).finish(Outcome.ERROR)
    clock.advance(30.0)
    assert shown(task, A).errors == pytest.approx(0.00248, abs=1e-5)  # exp(−30/5)
    task.wake()

    assert shown(task, A).errors == 0.0
    assert not task._erring  # A backend that has left must not be held for ever.


def test_a_retry_goes_elsewhere_and_is_numbered() -> None:
    task = new_task(A, B, C)
    first = begin(task)
    assert first.number == 1
    first.finish(Outcome.OVERLOADED)
    second = begin(task, first)
    assert second.number == 2
    second.finish(Outcome.OVERLOADED)
    third = begin(task, second)

    assert third.number == 3
    assert {first.backend, second.backend, third.backend} == {A, B, C}
    assert [view.backend for view in third.tried] == [third.backend, second.backend, first.backend]


@pytest.mark.parametrize(
    "policy",
    [
        "random",
        "round_robin",
        "least_loaded",
        "weighted_round_robin",
        "weighted_least_loaded",
        "power_of_two",
        "prequal",
        "probing",
    ],
)
def test_no_policy_retries_where_it_was_refused_if_there_is_another(policy: str) -> None:
    for _ in range(5):
        task = new_task(A, B, C, policy=policy)
        answer = task.begin(Request())
        first = answer.resume() if isinstance(answer, Ask) else answer
        assert isinstance(first, Attempt)
        first.finish(Outcome.OVERLOADED)
        second = begin(task, first)
        second.finish(Outcome.OVERLOADED)
        third = begin(task, second)
        assert third.finish(Outcome.OVERLOADED) is Next.GIVE_UP  # Three attempts (book).

        assert {first.backend, second.backend, third.backend} == {A, B, C}


def test_a_retry_goes_where_it_was_refused_if_there_is_no_other() -> None:
    task = new_task(A)
    first = begin(task)
    first.finish(Outcome.OVERLOADED)

    assert begin(task, first).backend == A


def test_a_retry_of_an_attempt_that_goes_on_is_a_mistake() -> None:
    task = new_task(A, B)
    attempt = begin(task)
    with pytest.raises(UsageError, match=r"nothing allows this retry: <Attempt 1 at .:1 active>"):
        task.begin(Request(), attempt)
    assert task.snapshot().active == 1

    attempt.finish(Outcome.OVERLOADED)
    assert begin(task, attempt).number == 2


def test_an_attempt_knows_how_it_ended_and_what_follows() -> None:
    task = new_task(A, B)
    finished, active = begin(task), begin(task)
    finished.finish(Outcome.ERROR)

    assert (finished.outcome, finished.next) == (Outcome.ERROR, Next.GIVE_UP)
    assert (active.outcome, active.next) == (None, None)


def test_a_retry_has_the_same_request() -> None:
    task = new_task(A)
    request = Request(customer="indexer")
    attempt = task.begin(request)

    assert isinstance(attempt, Attempt)
    assert attempt.request is request


def test_without_backends_nothing_begins() -> None:
    clock = ManualClock()
    task = new_task(clock=clock)

    assert task.begin(Request()) == NO_BACKEND
    assert task.snapshot().backends == ()
    assert task.take_connections() == ConnectionOrders((), ())
    clock.advance(1.0)
    task.wake()
    assert task.take_probes() == ()


def test_backends_that_are_yet_to_be_tried_are_tried() -> None:
    task = new_task(A, is_connected=False)
    attempt = begin(task)
    assert shown(task, A).state is State.REFUSING

    # A transport that never speaks of connections has one, as the answer shows.
    attempt.finish(Outcome.OK)
    assert shown(task, A).state is State.HEALTHY
    assert task.take_connections().open == ()


@pytest.mark.parametrize("outcome", [Outcome.NOT_SENT, Outcome.TIMEOUT, Outcome.CANCELLED])
def test_no_answer_is_no_sign_of_life(outcome: Outcome) -> None:
    task = new_task(A, is_connected=False)
    begin(task).finish(outcome)

    assert shown(task, A).state is State.REFUSING


def test_all_refusing_and_all_busy_are_different_refusals() -> None:
    task = new_task(A, B, active_limit=1)
    first = begin(task)
    second = begin(task)
    assert task.begin(Request()) == AT_LIMIT
    task.record_connection(A, REFUSED)
    assert task.begin(Request()) == AT_LIMIT
    task.record_connection(B, REFUSED)
    assert task.begin(Request()) == NO_BACKEND

    first.finish(Outcome.LOST)
    second.finish(Outcome.LOST)
    assert task.begin(Request()) == NO_BACKEND


def test_the_limit_opens_again_when_one_finishes() -> None:
    task = new_task(A, active_limit=2)
    first = begin(task)
    failed = begin(task)
    assert task.begin(Request()) == AT_LIMIT
    failed.finish(Outcome.NOT_SENT)
    begin(task)
    assert task.begin(Request(), failed) == AT_LIMIT  # for retries too
    assert task.snapshot().active == 2

    first.finish(Outcome.OK)
    begin(task)
    assert task.begin(Request()) == AT_LIMIT


def test_a_burst_goes_to_untried_backends_when_the_first_connected_is_at_its_limit() -> None:
    task = new_task(A, B, C, active_limit=2, is_connected=False)
    task.record_connection(A, OPENED)
    assert [begin(task).backend for _ in range(2)] == [A, A]

    # B and C are on their way: take turns with them, up to their limit.
    assert Counter(begin(task).backend for _ in range(4)) == {B: 2, C: 2}
    assert task.begin(Request()) == AT_LIMIT


def test_a_retry_does_not_go_back_to_an_untried_backend() -> None:
    task = new_task(A, B, active_limit=1, is_connected=False)
    task.record_connection(A, OPENED)
    assert begin(task).backend == A
    failed = begin(task)
    assert failed.backend == B
    failed.finish(Outcome.NOT_SENT)

    assert task.begin(Request(), failed) == AT_LIMIT


def test_a_backend_lost_a_moment_ago_is_spare_too() -> None:
    clock = ManualClock()
    task = new_task(A, B, active_limit=1, clock=clock)
    clock.advance(60.0)
    task.record_connection(B, LOST)
    assert begin(task).backend == A
    assert begin(task).backend == B

    task.record_connection(B, REFUSED)
    assert task.begin(Request()) == AT_LIMIT


def test_a_fleet_at_its_limit_falls_back_on_a_lame_duck() -> None:
    task = new_task(A, B, active_limit=1)
    task.record_report(B, LoadReport(boot=BOOT, sequence=1, lame_duck=True))
    assert begin(task).backend == A

    assert begin(task).backend == B
    assert task.begin(Request()) == AT_LIMIT


def test_lame_ducks_are_the_last_resort() -> None:
    task = new_task(A, B)
    for backend in (A, B):
        task.record_report(backend, LoadReport(boot=BOOT, sequence=1, lame_duck=True))
    assert {begin(task).backend, begin(task).backend} == {A, B}

    task.record_connection(A, REFUSED)
    assert begin(task).backend == B
    task.record_connection(B, REFUSED)
    assert task.begin(Request()) == NO_BACKEND


def test_a_lame_duck_is_left_alone_but_finishes_what_it_has() -> None:
    task = new_task(A, B)
    at_a = begin(task)
    at_b = begin(task)
    duck, other = at_a.backend, at_b.backend
    task.record_report(duck, LoadReport(boot=BOOT, sequence=2, lame_duck=True))
    assert shown(task, duck).state is State.LAME_DUCK
    assert [begin(task).backend for _ in range(3)] == [other, other, other]

    assert at_a.finish(Outcome.OK) is Next.DONE
    assert shown(task, duck).active == 0


def test_a_late_healthy_does_not_undo_a_lame_duck_and_a_new_process_does() -> None:
    task = new_task(A, B)
    task.record_report(A, LoadReport(boot=BOOT, sequence=2, lame_duck=True))
    task.record_report(A, LoadReport(boot=BOOT, sequence=1, utilization=0.5))
    assert shown(task, A).state is State.LAME_DUCK
    assert shown(task, A).utilization == 0.0  # The late one says nothing else either.
    task.record_report(A, LoadReport(boot=BOOT - 1, sequence=9))
    assert shown(task, A).state is State.LAME_DUCK

    task.record_report(A, LoadReport(boot=BOOT + 1, sequence=0, utilization=0.25))
    assert shown(task, A).state is State.HEALTHY
    assert shown(task, A).utilization == 0.25


def test_watch_takes_a_backend_out_and_back_in() -> None:
    task = new_task(A, B)
    task.record_serving(A, serving=False)
    assert shown(task, A).state is State.LAME_DUCK
    assert begin(task).backend == B
    task.record_serving(A, serving=True)

    assert shown(task, A).state is State.HEALTHY
    assert begin(task).backend == A


def test_watch_does_not_undo_what_a_lame_duck_said_itself() -> None:
    task = new_task(A, B)
    task.record_report(A, LoadReport(boot=BOOT, sequence=1, lame_duck=True))
    task.record_serving(A, serving=True)

    assert shown(task, A).state is State.LAME_DUCK


def test_what_is_said_of_strangers_is_ignored() -> None:
    task = new_task(A)
    before = task.snapshot()
    task.record_report(B, LoadReport(boot=BOOT, sequence=1, lame_duck=True), is_probe=True)
    task.record_connection(B, OPENED)
    task.record_serving(B, serving=False)

    assert task.snapshot() == before
    assert task.take_connections() == ConnectionOrders((), ())


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([C, Backend("d:1"), C], id="the same address"),
        pytest.param([Backend("c:1", 4), Backend("d:1", 4)], id="the same index"),
    ],
)
def test_a_wrong_list_changes_nothing(wrong: list[Backend]) -> None:
    task = new_task(A, B)
    attempt = begin(task)
    before = task.snapshot()
    with pytest.raises(ConfigError, match="have the same"):
        task.update(wrong)

    assert task.snapshot() == before
    assert task.take_connections() == ConnectionOrders((), ())
    attempt.finish(Outcome.OK)


def test_a_removed_backend_lives_until_its_attempts_have_finished() -> None:
    task = new_task(A, B)
    attempts = [begin(task) for _ in range(4)]
    at_a = [attempt for attempt in attempts if attempt.backend == A]
    assert len(at_a) == 2
    task.update([B])
    assert not shown(task, A).in_subset
    assert shown(task, A).active == 2
    assert task.snapshot().active == 4
    assert task.snapshot().known == 1
    assert begin(task).backend == B

    at_a[0].finish(Outcome.OK)
    assert task.take_connections() == ConnectionOrders((), ())
    at_a[1].finish(Outcome.ERROR)
    assert task.take_connections() == ConnectionOrders((), (A,))
    assert task.take_connections() == ConnectionOrders((), ())
    assert active(task) == {"b:1": 3}  # 2 + the one begun since


def test_an_idle_backend_that_is_removed_is_closed_at_once() -> None:
    task = new_task(A, B)
    task.update([B])

    assert task.take_connections() == ConnectionOrders((), (A,))
    assert active(task) == {"b:1": 0}


def test_a_backend_that_comes_back_while_active_keeps_its_counters() -> None:
    task = new_task(A, B)
    attempts = [begin(task) for _ in range(4)]
    task.update([B])
    task.update([A, B])
    assert active(task) == {"a:1": 2, "b:1": 2}
    assert shown(task, A).state is State.HEALTHY
    assert task.take_connections() == ConnectionOrders((), ())

    for attempt in attempts:
        attempt.finish(Outcome.OK)
    assert active(task) == {"a:1": 0, "b:1": 0}
    assert task.take_connections() == ConnectionOrders((), ())


def test_a_backend_that_comes_back_at_its_limit_is_still_at_its_limit() -> None:
    task = new_task(A, active_limit=1)
    attempt = begin(task)
    task.update([])
    assert task.begin(Request()) == NO_BACKEND
    task.update([A])
    assert task.begin(Request()) == AT_LIMIT

    attempt.finish(Outcome.OK)
    assert begin(task).backend == A


def test_an_ask_counts_nothing_until_it_is_resumed() -> None:
    task = new_task(A, B, policy="probing")
    question = ask(task)
    assert set(question.backends) == {A, B}
    assert task.snapshot().active == 0

    attempt = question.resume()
    assert isinstance(attempt, Attempt)
    assert task.snapshot().active == 1
    attempt.finish(Outcome.OK)


def test_an_abandoned_ask_leaks_nothing() -> None:
    task = new_task(A, B, policy="probing", active_limit=1)
    for _ in range(5):
        ask(task)

    assert active(task) == {"a:1": 0, "b:1": 0}
    task.update([])
    assert {backend.address for backend in task.take_connections().close} == {"a:1", "b:1"}


def test_resume_twice_is_a_mistake() -> None:
    task = new_task(A, B, policy="probing")
    question = ask(task)
    question.resume()

    with pytest.raises(UsageError, match="this request has been begun already: <Ask"):
        question.resume()
    assert task.snapshot().active == 1


def test_a_question_is_answered_by_what_was_heard_in_between() -> None:
    task = new_task(A, B, policy="probing")
    question = ask(task)
    task.record_report(A, LoadReport(runnable=3.0), is_probe=True)
    task.record_report(B, LoadReport(runnable=1.0), is_probe=True)
    attempt = question.resume()

    assert isinstance(attempt, Attempt)
    assert attempt.backend == B


def picked_by_facts(task: ClientTask) -> Backend:
    """Let one request go where the facts say, nobody answering what it may ask."""
    answer = task.begin(Request())
    attempt = answer.resume() if isinstance(answer, Ask) else answer
    assert isinstance(attempt, Attempt)
    return attempt.backend


# Everyone hears it at once, and its queue is empty: were that a fact, all would meet there.
@pytest.mark.parametrize("is_probe", [True, False], ids=["probe", "response"])
def test_the_news_that_a_backend_is_healthy_is_no_fact_but_its_next_word_is(is_probe: bool) -> None:
    task = new_task(A, B, C, policy="probing")
    task.record_report(A, LoadReport(boot=BOOT, sequence=1, lame_duck=True))
    for backend in (B, C):
        task.record_report(backend, LoadReport(boot=BOOT, runnable=0.5))
    healthy = LoadReport(boot=BOOT, sequence=2, runnable=0.0, utilization=0.25)
    task.record_report(A, healthy, is_probe=is_probe)
    assert shown(task, A).state is State.HEALTHY
    assert shown(task, A).utilization == 0.25  # All else is learned from it.
    assert {picked_by_facts(task), picked_by_facts(task)} == {B, C}

    for backend in (B, C):
        task.record_report(backend, LoadReport(boot=BOOT, runnable=0.5))
    task.record_report(A, healthy, is_probe=is_probe)
    assert picked_by_facts(task) == A


def test_the_first_word_of_another_process_is_no_fact_if_it_ends_a_lame_duck() -> None:
    task = new_task(A, B, C, policy="probing")
    task.record_report(A, LoadReport(boot=BOOT, sequence=1, lame_duck=True))
    for backend in (B, C):
        task.record_report(backend, LoadReport(boot=BOOT, runnable=0.5))
    task.record_report(A, LoadReport(boot=BOOT + 1))
    assert {picked_by_facts(task), picked_by_facts(task)} == {B, C}


def test_the_first_word_of_a_silent_backend_is_no_fact() -> None:
    clock = ManualClock()
    task = new_task(A, B, C, policy="probing", clock=clock)
    for _ in range(5):
        clock.advance(1.0)
        for backend in (B, C):
            task.record_report(backend, LoadReport(boot=BOOT, runnable=0.5))
        task.wake()
    assert shown(task, A).state is State.REFUSING
    task.record_report(A, LoadReport(boot=BOOT), is_probe=True)
    assert shown(task, A).state is State.HEALTHY
    assert {picked_by_facts(task), picked_by_facts(task)} == {B, C}


def test_the_first_word_of_a_backend_that_is_healthy_already_is_a_fact() -> None:
    task = new_task(A, B, C, policy="probing")
    for backend in (B, C):
        task.record_report(backend, LoadReport(boot=BOOT, runnable=0.5))
    task.record_report(A, LoadReport(boot=BOOT))  # Its connection made it healthy.

    assert picked_by_facts(task) == A


def test_a_resumed_request_is_refused_where_nobody_is_left() -> None:
    task = new_task(A, B, policy="probing")
    question = ask(task)
    for backend in (A, B):
        task.record_connection(backend, REFUSED)

    assert question.resume() == NO_BACKEND


def test_a_retry_does_not_ask_again() -> None:
    task = new_task(A, B, policy="probing")
    attempt = ask(task).resume()
    assert isinstance(attempt, Attempt)
    attempt.finish(Outcome.OVERLOADED)

    assert isinstance(task.begin(Request(), attempt), Attempt)


@pytest.mark.parametrize("state", ["untried", "lame duck"])
def test_without_a_healthy_backend_it_does_not_ask(state: str) -> None:
    task = new_task(A, B, policy="probing", is_connected=state == "lame duck")
    for backend in (A, B):
        task.record_serving(backend, serving=False)

    assert isinstance(task.begin(Request()), Attempt)


# The average round trip starts with the first, and goes a tenth of the way each time.
def test_a_request_waits_two_average_round_trips_and_no_longer_than_the_cap() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="probing", clock=clock)
    question = ask(task)
    assert question.wait_seconds == 0.05
    clock.advance(0.005)
    task.record_report(A, LoadReport(), is_probe=True)
    task.record_report(B, LoadReport(), is_probe=True)
    clock.advance(1.0)  # The facts are old.
    assert ask(task).wait_seconds == pytest.approx(0.010)
    clock.advance(0.015)
    task.record_report(A, LoadReport(), is_probe=True)
    clock.advance(1.0)
    assert ask(task).wait_seconds == pytest.approx(0.012)  # 5 + 0.1 · (15 − 5) = 6 ms

    clock.advance(5.0)  # Two very late answers: 6 ms + 0.1 · (5 s − ...) is far above the cap.
    task.record_report(A, LoadReport(), is_probe=True)
    task.record_report(B, LoadReport(), is_probe=True)
    clock.advance(1.0)
    assert ask(task).wait_seconds == 0.05


# Otherwise requests that ask more often than a round trip would wait for a fraction of one.
def test_probes_that_overlap_are_timed_from_the_first() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="probing", clock=clock)
    ask(task)
    clock.advance(0.01)
    ask(task)  # the same two again
    clock.advance(0.01)
    for backend in (A, B):
        task.record_report(backend, LoadReport(), is_probe=True)
    clock.advance(0.01)
    for backend in (A, B):  # The answers to the second ask are not timed: nobody knows by whom.
        task.record_report(backend, LoadReport(), is_probe=True)
    clock.advance(1.0)

    assert ask(task).wait_seconds == pytest.approx(0.040)  # two round trips of 20 ms


def test_a_probe_that_was_lost_is_not_timed() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="probing", clock=clock)
    ask(task)
    clock.advance(0.051)  # longer than anyone waits
    ask(task)
    clock.advance(0.005)
    for backend in (A, B):
        task.record_report(backend, LoadReport(), is_probe=True)
    clock.advance(1.0)

    assert ask(task).wait_seconds == pytest.approx(0.010)  # two round trips of 5 ms


def test_a_probe_answered_by_a_backend_at_its_limit_lets_the_policy_see_again() -> None:
    clock = ManualClock()
    task = new_task(A, B, C, policy="probing", active_limit=1, clock=clock)
    for _ in range(5):
        ask(task)
    clock.advance(0.5)
    busy = begin(task)  # It asks no more.
    task.record_report(busy.backend, LoadReport(), is_probe=True)

    assert {*ask(task).backends} == {A, B, C} - {busy.backend}


def test_an_answer_without_a_report_repeats_the_last_one_for_a_moment() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="probing", clock=clock)
    busy, idle = LoadReport(boot=BOOT, runnable=9.0), LoadReport(boot=BOOT)
    task.record_report(A, busy)
    task.record_report(B, idle)
    assert begin(task).backend == B  # A fact is used once ...
    clock.advance(0.015)
    task.record_report(A, busy)
    task.record_repeat(B)  # ... and B says that nothing has changed.
    assert begin(task).backend == B

    clock.advance(0.015)
    task.record_repeat(B)  # Too late: it may have stopped to report.
    view = task._membership.view(B)
    assert view is not None
    assert view.reported_at == clock() - 0.015


def test_an_answer_stands_for_a_connection_though_its_report_was_heard_first() -> None:
    task = new_task(A, is_connected=False)
    attempt = begin(task)
    task.record_report(A, LoadReport(boot=BOOT))
    assert shown(task, A).state is State.REFUSING
    attempt.finish(Outcome.OK)

    assert shown(task, A).state is State.HEALTHY


def test_who_never_reported_repeats_nothing() -> None:
    task = new_task(A, B, policy="probing")
    task.record_repeat(A)
    task.record_repeat(Backend("nobody:1"))

    view = task._membership.view(A)
    assert view is not None
    assert view.report is None
    assert view.reported_at == -math.inf


def test_a_report_with_a_response_is_no_round_trip_of_a_probe() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="probing", clock=clock)
    ask(task)
    clock.advance(0.001)
    task.record_report(A, LoadReport())
    clock.advance(1.0)

    assert ask(task).wait_seconds == 0.05


def test_wake_is_due_every_second_and_earlier_for_a_reconnect() -> None:
    clock = ManualClock(1_000.0)
    task = new_task(A, B, clock=clock)
    assert task.next_wake_at() == 1_001.0
    clock.advance(0.5)
    task.wake()  # Early: nothing is due.
    assert task.take_probes() == ()
    assert task.next_wake_at() == 1_001.0

    task.record_connection(A, REFUSED)  # 1,000.5 + 1
    assert task.next_wake_at() == 1_001.0
    clock.advance(0.5)
    task.wake()
    assert task.next_wake_at() == 1_001.5
    assert task.take_connections().open == ()
    clock.advance(0.5)
    task.wake()
    assert task.take_connections().open == (A,)
    assert task.next_wake_at() == 1_002.0


@pytest.mark.parametrize(
    ("check_seconds", "due"),
    [
        pytest.param(0.25, [0.25, 0.5, 0.75, 1.0, 1.25], id="checks four times as often"),
        pytest.param(30.0, [1.0, 2.0, 3.0, 4.0, 5.0], id="checks seldom"),
    ],
)
def test_wake_is_due_every_second_or_with_every_health_check(
    check_seconds: float, due: list[float]
) -> None:
    clock = ManualClock(0.0)
    task = new_task(A, clock=clock, check_seconds=check_seconds)
    woken = []
    for _ in range(5):
        woken.append(task.next_wake_at())
        clock.advance(task.next_wake_at() - clock())
        task.wake()

    assert woken == due


@pytest.mark.parametrize("check_seconds", [0.25, 1.0, 30.0])
def test_weights_are_learned_every_second_however_often_health_is_checked(
    check_seconds: float,
) -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="weighted_round_robin", clock=clock, check_seconds=check_seconds)
    for backend in (A, B):
        task.record_report(backend, LoadReport(boot=BOOT))
    clock.advance(12.0)
    task.wake()
    task.record_report(A, LoadReport(boot=BOOT + 1))  # Another process: it starts low, at once.
    for _ in range(3):  # Three quarters of a second later nothing more has been learned.
        clock.advance(0.25)
        task.wake()
    assert shown(task, A).weight == 0.1
    assert shown(task, B).weight == 1.0
    clock.advance(0.25)
    task.wake()

    # 0.1 and 1, divided by their mean of 0.55
    assert shown(task, A).weight == pytest.approx(0.1 / 0.55)
    assert shown(task, B).weight == pytest.approx(1.0 / 0.55)


def test_a_probe_that_is_due_twice_is_said_once() -> None:
    clock = ManualClock()
    backends = [Backend(f"b{number}") for number in range(17)]  # More than Prequal's pool holds.
    task = new_task(*backends, policy="prequal", clock=clock, rng=random.Random(1))
    for _ in range(2):  # The openings answer the first check.
        clock.advance(1.5)  # The first is due after 0.5 to 1.5 s.
        task.wake()
    begin(task)  # Prequal wants three probes, of those whose health is to be checked.

    assert Counter(task.take_probes()) == dict.fromkeys(backends, 1)


def test_health_checks_go_to_those_that_were_not_heard() -> None:
    clock = ManualClock()
    task = new_task(A, B, clock=clock)
    clock.advance(1.0)
    task.wake()
    assert list(task.take_probes()) == []  # The openings were something heard.
    task.record_report(A, LoadReport())
    clock.advance(1.0)
    task.wake()
    assert list(task.take_probes()) == [B]
    assert list(task.take_probes()) == []  # Each is said once.

    clock.advance(1.0)
    task.wake()
    assert set(task.take_probes()) == {A, B}


def test_an_answered_attempt_answers_the_health_check() -> None:
    clock = ManualClock()
    task = new_task(A, clock=clock)
    begin(task).finish(Outcome.OVERLOADED)  # even so
    clock.advance(1.0)
    task.wake()

    assert list(task.take_probes()) == []


def test_a_backend_that_stays_silent_is_taken_out_and_comes_back_with_a_word() -> None:
    clock = ManualClock()
    task = new_task(A, B, clock=clock)
    for _ in range(4):
        clock.advance(1.0)
        task.record_report(B, LoadReport())
        task.wake()
    assert shown(task, A).state is State.HEALTHY  # The third check has its whole interval, too.
    clock.advance(1.0)
    task.wake()
    assert shown(task, A).state is State.REFUSING
    assert [begin(task).backend for _ in range(3)] == [B, B, B]

    task.record_report(A, LoadReport(), is_probe=True)
    assert shown(task, A).state is State.HEALTHY
    assert begin(task).backend == A


def test_a_silent_backend_is_reconnected_until_it_speaks() -> None:
    clock = ManualClock(0.0)
    task = new_task(A, B, clock=clock)
    opened_at: list[float] = []
    while clock() < 12.0:
        clock.advance(task.next_wake_at() - clock())
        task.record_report(B, LoadReport())
        task.wake()
        for backend in task.take_connections().open:
            assert backend == A
            opened_at.append(clock())
            task.record_connection(backend, OPENED)  # by the kernel: the process is stopped

    # Silent after the openings' own and three more intervals, at 5 s; tried 1, 1.6 and 2.56 s
    # after the silence and each opening.
    assert opened_at == pytest.approx([6.0, 7.6, 10.16])
    assert shown(task, A).state is State.REFUSING
    assert [begin(task).backend for _ in range(3)] == [B, B, B]
    task.record_report(A, LoadReport())
    assert shown(task, A).state is State.HEALTHY


def test_backends_that_have_left_are_not_probed() -> None:
    clock = ManualClock()
    task = new_task(A, B, clock=clock)
    for _ in range(2):  # The openings answer the first check.
        clock.advance(1.0)
        task.wake()
    task.update([B])

    assert list(task.take_probes()) == [B]


def test_a_new_process_at_an_address_starts_slowly() -> None:
    clock = ManualClock()
    task = new_task(A, B, policy="weighted_round_robin", clock=clock)
    for backend in (A, B):
        task.record_report(backend, LoadReport(boot=BOOT))
    clock.advance(12.0)
    task.wake()
    assert shown(task, A).weight == shown(task, B).weight

    task.record_report(A, LoadReport(boot=BOOT + 1))
    clock.advance(5.0)
    task.wake()
    assert shown(task, A).weight / shown(task, B).weight == pytest.approx(0.5)  # 5 s of 10


def test_a_new_process_at_an_address_has_averages_of_its_own() -> None:
    clock = ManualClock()
    plain = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0, idle_utilization=0.0)
    task = new_task(A, B, policy="weighted_round_robin", weights=plain, clock=clock)
    for backend in (A, B):
        task.record_report(backend, LoadReport(boot=BOOT, qps=100.0, utilization=1.0))
    clock.advance(1.0)
    task.wake()
    task.record_report(B, LoadReport(boot=BOOT, qps=300.0, utilization=1.0))
    task.record_report(A, LoadReport(boot=BOOT + 1, qps=300.0, utilization=1.0))
    clock.advance(1.0)
    task.wake()

    # B, the same process, has 100 + 200 · (1 − e^−0.1) = 119.0; A has 300 / 1.
    assert shown(task, A).weight / shown(task, B).weight == pytest.approx(300 / 119.03, abs=1e-3)


@pytest.mark.parametrize("policy", ["weighted_round_robin", "weighted_least_loaded"])
def test_a_newcomer_starts_low_at_once(policy: str) -> None:
    clock = ManualClock()
    task = new_task(A, B, C, policy=policy, clock=clock)
    clock.advance(1.0)
    task.wake()
    newcomer = Backend("d:1")
    task.update([A, B, C, newcomer])
    task.record_connection(newcomer, OPENED)
    picked: Counter[Backend] = Counter()
    for _ in range(124):
        attempt = begin(task)
        picked[attempt.backend] += 1
        attempt.finish(Outcome.OK)

    # Weights 1, 1, 1 and 0.1: 124 · 0.1 / 3.1 = 4, give or take its phase.
    assert 3 <= picked[newcomer] <= 5


# At its limit a backend leaves the policy, and comes back with a random phase U / weight instead of
# 1 / weight.  Both turns then come at random, with a mean interval of 1 / 2w and a variance of a
# third of its square, so that of 4,000 picks b has 3,000 with a variance of
# 0.25² · 3,000/3 + 0.75² · 1,000/3 = 250: 100 are 6.3 standard deviations.
def test_the_limit_does_not_upset_the_weights() -> None:
    clock = ManualClock()
    plain = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0, idle_utilization=0.0)
    task = new_task(
        A,
        B,
        policy="weighted_round_robin",
        active_limit=1,
        weights=plain,
        clock=clock,
        rng=random.Random(1),
    )
    task.record_report(A, LoadReport(qps=100.0, utilization=1.0))
    task.record_report(B, LoadReport(qps=300.0, utilization=1.0))
    clock.advance(1.5)  # The first wake is due after 0.5 to 1.5 s.
    task.wake()
    picked: Counter[Backend] = Counter()
    for _ in range(4_000):
        attempt = begin(task)
        picked[attempt.backend] += 1
        attempt.finish(Outcome.OK)

    assert abs(picked[B] - 3_000) < 100


def test_snapshot_shows_the_whole() -> None:
    task = new_task(A, Backend("b:1", 7))
    attempt = begin(task)
    task.record_report(attempt.backend, LoadReport(utilization=0.5))

    snapshot = task.snapshot()
    assert snapshot.policy == "least_loaded"
    assert snapshot.known == 2
    assert snapshot.active == 1
    assert {(one.address, one.index) for one in snapshot.backends} == {("a:1", None), ("b:1", 7)}
    assert shown(task, attempt.backend).utilization == 0.5


def test_repr_is_a_dump_of_the_state() -> None:
    task = new_task(A, B, policy="probing")
    question = ask(task)
    assert repr(question) in ("<Ask a:1, b:1 for 0.0500 s>", "<Ask b:1, a:1 for 0.0500 s>")
    attempt = question.resume()
    assert repr(attempt) in ("<Attempt 1 at a:1 active>", "<Attempt 1 at b:1 active>")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"active_limit": 0}, "active_limit", id="no requests"),
        pytest.param({"active_limit": True}, "active_limit", id="a bool"),
        pytest.param({"ask_seconds": -1.0}, "ask_seconds", id="negative wait"),
        pytest.param({"ask_seconds": math.nan}, "ask_seconds", id="NaN wait"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message} must be"):
        ClientTaskConfig(**settings)  # type: ignore[arg-type]


def test_the_defaults_are_the_book_s() -> None:
    config = ClientTaskConfig()

    assert config.active_limit == 100
    assert config.membership == MembershipConfig(subset_size=20)
    assert config.policy.name == "probing"
