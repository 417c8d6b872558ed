"""Idle mode: which connections are closed, and how what is behind them is known still."""

from __future__ import annotations

import math

import pytest

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionOrders, Membership
from tests.core.balancing.members import (
    LOST,
    OPENED,
    REFUSED,
    START,
    connected,
    fleet,
    new_membership,
    opens,
    tell,
    view_of,
)

IDLE_AT = START + 300.0
A = Backend("b0")


def check(membership: Membership, *times: float, answers: bool = True) -> list[str]:
    """Check health at these times, let probes be answered by UDP, and return who was asked."""
    asked = []
    for now in times:
        for view in membership.check_health(now):
            asked.append(view.backend.address)
            if answers:
                view.answered_probe_at = now
                view.health.heard()
                membership.moved(view, now)
    return asked


def unused(membership: Membership, until: float, *, since: float = START) -> None:
    """Let time pass with nothing but a health check every second."""
    check(membership, *(since + second for second in range(1, round(until - since) + 1)))


def resting(count: int = 1) -> Membership:
    """Return one whose backends are all idle, and whose transport was told to close them."""
    membership = connected(new_membership(), fleet(count))
    unused(membership, IDLE_AT)
    assert len(membership.take_connections(IDLE_AT).close) == count
    return membership


def test_a_connection_without_requests_for_300_seconds_is_closed() -> None:
    membership = connected(new_membership(), [A])
    unused(membership, IDLE_AT - 1.0)
    assert membership.take_connections(IDLE_AT) == ConnectionOrders((), ())

    check(membership, IDLE_AT)
    assert membership.take_connections(IDLE_AT) == ConnectionOrders((), (A,))
    assert membership.take_connections(IDLE_AT) == ConnectionOrders((), ())  # It is said once.
    view = view_of(membership, A)
    assert (view.health.is_idle, view.health.state) == (True, State.HEALTHY)
    assert view.tier == 0  # It may be picked.
    assert membership.connect_at == math.inf


def test_a_request_keeps_the_connection_for_another_300_seconds() -> None:
    membership = connected(new_membership(), [A])
    view = view_of(membership, A)
    unused(membership, START + 200.0)
    view.begin()
    view.finish()  # between two checks
    unused(membership, START + 500.0, since=START + 200.0)
    assert membership.take_connections(START + 500.0) == ConnectionOrders((), ())

    check(membership, START + 501.0)  # The check at 201 s saw that it was used.
    assert membership.take_connections(START + 501.0).close == (A,)


def test_a_long_request_keeps_its_connection() -> None:
    membership = connected(new_membership(), [A])
    view = view_of(membership, A)
    view.begin()  # a stream
    unused(membership, START + 1_000.0)
    assert membership.take_connections(START + 1_000.0) == ConnectionOrders((), ())

    view.finish()
    unused(membership, START + 1_299.0, since=START + 1_000.0)
    assert membership.take_connections(START + 1_299.0) == ConnectionOrders((), ())
    check(membership, START + 1_300.0)
    assert membership.take_connections(START + 1_300.0).close == (A,)


def test_what_counts_is_how_long_this_connection_is_unused() -> None:
    membership = connected(new_membership(), [A])
    tell(membership, A, REFUSED, START + 10.0)
    membership.reconnect(START + 400.0)
    membership.take_connections(START + 400.0)
    tell(membership, A, OPENED, START + 400.0)
    unused(membership, START + 699.0, since=START + 400.0)
    assert membership.take_connections(START + 699.0) == ConnectionOrders((), ())

    check(membership, START + 700.0)
    assert membership.take_connections(START + 700.0).close == (A,)


# Checks are a second apart, and the answer to one makes the next unnecessary.
@pytest.mark.parametrize(
    ("answered_at", "expected"),
    [
        pytest.param(IDLE_AT, True, id="just now"),
        pytest.param(IDLE_AT - 2.0, True, id="to the check before the last"),
        pytest.param(IDLE_AT - 2.1, False, id="not since: UDP may be blocked now"),
        pytest.param(-math.inf, False, id="never: UDP does not get through"),
    ],
)
def test_where_probes_get_no_answer_there_is_no_idle_mode(
    answered_at: float, expected: bool
) -> None:
    membership = connected(new_membership(), [A])
    view = view_of(membership, A)
    for second in range(1, 300):
        view.health.heard()  # grpc.health.v1 answers, in the place of UDP.
        membership.check_health(START + second)
    view.answered_probe_at = answered_at
    membership.check_health(IDLE_AT)

    assert view.health.is_idle is expected
    assert membership.take_connections(IDLE_AT).close == ((A,) if expected else ())


def test_a_lame_duck_keeps_its_connection_which_alone_may_say_that_it_is_one_no_more() -> None:
    membership = connected(new_membership(), [A])
    view = view_of(membership, A)
    view.health.watched(serving=False)
    membership.moved(view, START)
    unused(membership, IDLE_AT + 10.0)
    assert membership.take_connections(IDLE_AT + 10.0) == ConnectionOrders((), ())

    view.health.watched(serving=True)
    membership.moved(view, IDLE_AT + 11.0)
    check(membership, IDLE_AT + 11.0)
    assert membership.take_connections(IDLE_AT + 11.0).close == (A,)


def test_a_silent_backend_does_not_rest() -> None:
    membership = connected(new_membership(), fleet(2))
    views = list(membership.views)
    for second in range(1, 310):
        views[1].health.heard()
        membership.check_health(START + second)
    assert views[0].health.is_silent
    views[0].answered_probe_at = START + 310.0
    membership.check_health(START + 310.0)

    assert not views[0].health.is_idle


def test_a_connection_that_is_being_replaced_is_not_closed() -> None:
    membership = connected(new_membership(), fleet(2))
    silent, other = membership.views
    for second in range(1, 296):
        if second < 290:
            silent.health.heard()
        other.health.heard()
        membership.check_health(START + second)
    assert silent.health.is_silent
    membership.reconnect(START + 296.0)
    assert opens(membership, START + 296.0) == {silent.backend.address}
    silent.health.heard()  # It speaks while its connection is replaced ...
    silent.answered_probe_at = IDLE_AT
    membership.moved(silent, IDLE_AT)
    membership.check_health(IDLE_AT)
    assert membership.take_connections(IDLE_AT) == ConnectionOrders((), ())

    # ... and were it closed now, nobody would ever say what became of the new one.
    membership.connection(silent, OPENED, IDLE_AT)
    assert (silent.health.is_connecting, silent.health.is_connected) == (False, True)


def test_an_idle_backend_is_opened_on_demand_and_only_then() -> None:
    membership = resting()
    view = view_of(membership, A)
    membership.reconnect(IDLE_AT + 100.0)
    assert opens(membership, IDLE_AT + 100.0) == set()

    membership.demand(view, IDLE_AT + 100.0)
    assert opens(membership, IDLE_AT + 100.0) == {"b0"}
    membership.connection(view, OPENED, IDLE_AT + 100.1)
    assert (view.health.is_idle, view.health.state) == (False, State.HEALTHY)


def test_a_request_that_comes_before_the_transport_has_closed_has_it_closed_and_opened() -> None:
    membership = connected(new_membership(), [A])
    unused(membership, IDLE_AT)
    membership.demand(view_of(membership, A), IDLE_AT)

    assert membership.take_connections(IDLE_AT) == ConnectionOrders((A,), (A,))


def test_an_idle_backend_that_refuses_is_out_and_tried_again() -> None:
    membership = resting()
    view = view_of(membership, A)
    membership.demand(view, IDLE_AT)
    membership.take_connections(IDLE_AT)
    membership.connection(view, REFUSED, IDLE_AT)

    assert (view.tier, view.health.is_idle) == (-1, False)
    assert membership.connect_at == IDLE_AT + 1.0


def test_the_end_of_the_connection_that_was_closed_is_no_news() -> None:
    membership = resting()
    tell(membership, A, LOST, IDLE_AT)

    assert view_of(membership, A).health.state is State.HEALTHY
    assert membership.connect_at == math.inf


def test_idle_backends_are_asked_at_a_tenth_of_the_rate() -> None:
    membership = resting(2)
    asked = check(membership, *(IDLE_AT + second for second in range(1, 61)))

    # 61 checks, with that which closed them: six are due, and of two in a row the one asks and the
    # other has heard the answer, so that each is asked three times.
    assert sorted(asked) == ["b0", "b0", "b0", "b1", "b1", "b1"]


def test_one_that_goes_silent_while_it_is_idle_is_noticed_and_connected_to() -> None:
    membership = resting(2)
    still, loud = membership.views
    seconds = 0
    while not still.health.is_silent:
        seconds += 1
        for view in membership.check_health(IDLE_AT + seconds):
            if view is loud:
                view.health.heard()

    # Heard before it rested: its first check is skipped, those after 19, 29 and 39 s go unanswered.
    assert seconds == 49
    assert (still.tier, loud.tier) == (-1, 0)
    assert membership.connect_at == IDLE_AT + 49.0 + 1.0
    membership.reconnect(IDLE_AT + 50.0)
    assert opens(membership, IDLE_AT + 50.0) == {still.backend.address}


def went_silent(membership: Membership, view: BackendView) -> float:
    for second in range(1, 50):
        for other in membership.check_health(IDLE_AT + second):
            if other is not view:
                other.health.heard()
    assert view.health.is_silent
    return IDLE_AT + 49.0


def test_one_whose_probes_no_longer_get_through_is_back_with_a_connection_to_keep() -> None:
    membership = resting(2)
    view = next(iter(membership.views))
    now = went_silent(membership, view)
    membership.reconnect(now + 1.0)
    membership.take_connections(now + 1.0)
    membership.connection(view, OPENED, now + 1.0)
    assert view.health.is_silent  # The kernel accepts for a process that is stopped.
    view.health.heard()  # grpc.health.v1
    membership.moved(view, now + 2.0)
    assert view.tier == 0

    for second in range(400):  # No probe is answered: no idle mode.
        view.health.heard()
        membership.check_health(now + 2.0 + second)
    assert view.health.is_connected
    assert view.backend not in membership.take_connections(now + 402.0).close


def test_the_panic_rule_holds_for_the_idle_too() -> None:
    membership = resting(4)
    for second in range(1, 200):
        membership.check_health(IDLE_AT + second)

    assert sum(view.health.is_silent for view in membership.views) == 2  # half of four
    healthy = [view for view in membership.views if view.health.state is State.HEALTHY]
    assert [view.health.is_idle for view in healthy] == [True, True]


def test_an_idle_backend_that_leaves_is_let_go_and_comes_back_as_a_new_one() -> None:
    membership = resting(2)
    gone, stays = (view.backend for view in membership.views)
    membership.update([stays], IDLE_AT)
    assert membership.view(gone) is None
    assert membership.take_connections(IDLE_AT) == ConnectionOrders((), (gone,))

    membership.update([stays, gone], IDLE_AT)
    assert not view_of(membership, gone).health.is_idle
    assert view_of(membership, gone).health.is_untried


def test_idle_backends_are_no_reason_to_widen() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    unused(membership, IDLE_AT)

    assert sum(view.health.is_idle for view in membership.views) == 10
    assert len([view for view in membership.views if view.in_subset]) == 10


def test_how_long_a_connection_may_be_unused_is_a_setting() -> None:
    health = HealthConfig(idle_seconds=5.0)
    membership = connected(new_membership(health=health), [A])
    unused(membership, START + 4.0)
    assert membership.take_connections(START + 4.0) == ConnectionOrders((), ())

    check(membership, START + 5.0)
    assert membership.take_connections(START + 5.0).close == (A,)


def test_a_connection_used_while_it_was_outside_of_the_subset_was_used() -> None:
    membership = connected(new_membership(), fleet(2))
    leaves, stays = membership.views
    leaves.begin()  # a stream
    unused(membership, START + 10.0)
    membership.update([stays.backend], START + 10.0)
    unused(membership, START + 400.0, since=START + 10.0)
    membership.update([stays.backend, leaves.backend], START + 400.0)
    leaves.finish()
    leaves.answered_probe_at = START + 401.0
    membership.check_health(START + 401.0)

    assert leaves.backend not in membership.take_connections(START + 401.0).close
