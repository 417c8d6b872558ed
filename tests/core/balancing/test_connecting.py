"""When connections are opened: with jitter, up to a cap, and on demand."""

from __future__ import annotations

import math
import random
from collections.abc import MutableSequence
from typing import Any

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionOrders, Membership
from tests.core.balancing.members import (
    LATER,
    LOST,
    OPENED,
    REFUSED,
    SOON,
    START,
    connected,
    fleet,
    names,
    new_membership,
    opens,
    tell,
    view_of,
)
from tests.core.balancing.views import Draws


def started(membership: Membership, backends: list[Backend]) -> Membership:
    """Return it with its first two connections standing, and none under way."""
    membership.update(backends, START)
    while opened := membership.take_connections(START).open:
        for backend in opened:
            tell(membership, backend, OPENED, START)
    return membership


class InOrder(Draws):
    """Give these numbers in turn, and leave every order as it is."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        pass


# Jitter


def test_a_client_task_that_starts_opens_two_at_once_and_the_others_within_a_second() -> None:
    membership = new_membership()
    membership.update(fleet(5), START)
    first = opens(membership, START)
    assert len(first) == 2
    assert membership.connect_at == START + SOON
    assert opens(membership, START + 0.49) == set()

    membership.reconnect(START + SOON)
    assert opens(membership, START + SOON) == names(membership) - first
    assert opens(membership, START + SOON) == set()  # Each is said once ...
    membership.reconnect(LATER)
    assert opens(membership, LATER) == set()  # ... and they are under way.
    assert membership.connect_at == math.inf


def test_the_jitter_is_drawn_anew_for_each() -> None:
    membership = new_membership(rng=InOrder(0.75, 0.25, 0.5))
    membership.update(fleet(5), START)
    membership.take_connections(START)

    at = [view.health.connect_at for view in membership.views]
    assert at == [None, None, START + 0.75, START + 0.25, START + 0.5]
    assert membership.connect_at == START + 0.25  # the earliest


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_client_tasks_meet_a_new_backend_over_a_second(seed: int) -> None:
    old, new = fleet(4)[:3], fleet(4)[3]
    delays = []
    for number in range(1_000):
        membership = connected(new_membership(rng=random.Random(f"{seed}/{number}")), old)
        membership.update([*old, new], LATER)
        assert opens(membership, LATER) == set()
        connect_at = view_of(membership, new).health.connect_at
        assert connect_at is not None
        delays.append(connect_at - LATER)

    assert min(delays) >= 0.0
    assert max(delays) < 1.0
    # Of 1,000 uniform draws each tenth of a second has 100 ± 9.5: five standard deviations.
    per_tenth = [sum(int(delay * 10) == tenth for delay in delays) for tenth in range(10)]
    assert all(52 <= count <= 148 for count in per_tenth)


def test_a_second_backend_of_a_client_task_that_has_one_is_not_urgent() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends[:1])
    membership.update(backends, LATER)

    assert opens(membership, LATER) == set()
    assert membership.connect_at == LATER + SOON


def test_a_wholly_new_list_is_a_new_start() -> None:
    membership = connected(new_membership(), fleet(5))
    others = [Backend(f"c{number}") for number in range(5)]
    membership.update(others, LATER)

    assert len(opens(membership, LATER)) == 2


def test_a_first_list_that_is_empty_is_no_start() -> None:
    membership = new_membership()
    membership.update([], START)
    assert membership.take_connections(START) == ConnectionOrders((), ())
    membership.update(fleet(5), LATER)

    assert len(opens(membership, LATER)) == 2


def test_a_lost_connection_is_opened_again_within_a_second() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    tell(membership, backends[0], LOST, LATER)
    assert opens(membership, LATER) == set()
    assert membership.connect_at == LATER + SOON

    membership.reconnect(LATER + SOON)
    assert opens(membership, LATER + SOON) == {"b0"}
    assert opens(membership, LATER + SOON) == set()


def test_without_jitter_all_are_opened_at_once() -> None:
    health = HealthConfig(connect_jitter_seconds=0.0)
    membership = new_membership(health=health)
    membership.update(fleet(5), START)

    assert opens(membership, START) == names(membership)


# The cap


def test_ten_are_opened_at_a_time_and_each_that_ends_makes_room_for_another() -> None:
    membership = started(new_membership(), fleet(20))
    membership.reconnect(START + SOON)
    under_way = membership.take_connections(START + SOON).open
    assert len(under_way) == 10
    assert opens(membership, START + SOON) == set()

    tell(membership, under_way[0], OPENED, START + SOON)
    (eleventh,) = membership.take_connections(START + SOON).open
    tell(membership, under_way[1], REFUSED, START + SOON)
    (twelfth,) = membership.take_connections(START + SOON).open
    for backend in (*under_way[2:], eleventh, twelfth):
        tell(membership, backend, OPENED, START + SOON)
    last = membership.take_connections(START + SOON).open

    # 2 at first, 10 at a time, and one for each of the two that ended: 6 are left of 20.
    assert len(last) == 6
    assert len({*under_way, eleventh, twelfth, *last}) == 18


def test_who_waits_for_room_is_not_forgotten_when_one_under_way_leaves_the_subset() -> None:
    backends = fleet(4)
    membership = started(new_membership(connecting_max=1), backends)
    membership.reconnect(START + SOON)
    (under_way,) = membership.take_connections(START + SOON).open
    membership.update([one for one in backends if one != under_way], LATER)

    connections = membership.take_connections(LATER)
    assert connections.close == (under_way,)
    assert len(connections.open) == 1


def test_one_under_way_that_left_with_a_request_still_counts() -> None:
    backends = fleet(4)
    membership = started(new_membership(connecting_max=1), backends)
    membership.reconnect(START + SOON)
    (under_way,) = membership.take_connections(START + SOON).open
    view = view_of(membership, under_way)
    view.begin()
    membership.update([one for one in backends if one != under_way], LATER)
    assert membership.take_connections(LATER) == ConnectionOrders((), ())  # A request waits for it.

    tell(membership, under_way, REFUSED, LATER)
    assert len(membership.take_connections(LATER).open) == 1


def test_who_waits_for_room_and_leaves_is_not_opened() -> None:
    backends = fleet(4)
    membership = started(new_membership(connecting_max=1), backends)
    membership.reconnect(START + SOON)
    (under_way,) = membership.take_connections(START + SOON).open
    (waiting,) = (one for one in backends if view_of(membership, one).health.connect_at is not None)
    membership.update([one for one in backends if one != waiting], LATER)
    tell(membership, under_way, OPENED, LATER)

    assert membership.take_connections(LATER) == ConnectionOrders((), (waiting,))


def test_who_waits_for_room_is_lined_up_once_however_often_it_is_due() -> None:
    membership = started(new_membership(connecting_max=2), fleet(6))
    membership.reconnect(START + SOON)
    under_way = membership.take_connections(START + SOON).open
    for _ in range(5):
        membership.reconnect(LATER)
        assert opens(membership, LATER) == set()
    for backend in under_way:
        tell(membership, backend, OPENED, LATER)

    assert len(membership.take_connections(LATER).open) == 2  # both of the two places
    assert len(membership._connecting._due) == 0


def test_who_waits_for_room_and_is_refused_meanwhile_keeps_its_delay() -> None:
    backends = fleet(4)
    membership = started(new_membership(connecting_max=1), backends)
    membership.reconnect(START + SOON)
    (under_way,) = membership.take_connections(START + SOON).open
    (waiting,) = (one for one in backends if view_of(membership, one).health.connect_at is not None)
    tell(membership, waiting, REFUSED, LATER)  # by a transport that tried on its own
    tell(membership, under_way, OPENED, LATER)
    assert membership.take_connections(LATER) == ConnectionOrders((), ())

    assert membership.connect_at == LATER + 1.0
    membership.reconnect(LATER + 1.0)
    assert opens(membership, LATER + 1.0) == {waiting.address}


def test_reconnects_after_refusals_are_capped_too() -> None:
    membership = connected(new_membership(connecting_max=3), fleet(8))
    for view in list(membership.views):
        membership.connection(view, REFUSED, LATER)
    membership.reconnect(LATER + 1.0)

    assert len(opens(membership, LATER + 1.0)) == 3


# Demand


def test_a_request_has_a_connection_opened_without_waiting_for_its_jitter() -> None:
    membership = started(new_membership(), fleet(5))
    view = next(view for view in membership.views if not view.health.is_connected)
    assert opens(membership, START + 0.1) == set()
    membership.demand(view, START + 0.1)
    membership.demand(view, START + 0.1)  # for another request

    assert opens(membership, START + 0.1) == {view.backend.address}
    membership.demand(view, START + 0.2)  # It is under way.
    assert opens(membership, START + 0.2) == set()
    membership.reconnect(START + SOON)
    assert len(opens(membership, START + SOON)) == 2  # the other two of three


def test_what_requests_wait_for_is_opened_beyond_the_cap() -> None:
    membership = started(new_membership(connecting_max=2), fleet(8))
    membership.reconnect(START + SOON)
    assert len(opens(membership, START + SOON)) == 2
    waiting = [view for view in membership.views if view.health.connect_at is not None]
    assert len(waiting) == 4  # 8 − 2 that stand − 2 under way
    for view in waiting[:3]:
        membership.demand(view, START + SOON)

    assert opens(membership, START + SOON) == {view.backend.address for view in waiting[:3]}
    # Five are under way: the last waits until four of them have ended.
    under_way = [view for view in membership.views if view.health.is_connecting]
    for view in under_way[:3]:
        membership.connection(view, OPENED, LATER)
    assert opens(membership, LATER) == set()
    membership.connection(under_way[3], OPENED, LATER)
    assert opens(membership, LATER) == {waiting[3].backend.address}


def test_a_request_does_not_wait_for_the_jitter_of_a_lost_connection() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    tell(membership, backends[0], LOST, LATER)
    membership.demand(view_of(membership, backends[0]), LATER)

    assert opens(membership, LATER) == {"b0"}
    membership.reconnect(LATER + SOON)  # The time that was set before is none any more.
    assert opens(membership, LATER + SOON) == set()


def test_a_backend_that_refuses_is_not_picked_and_so_not_demanded_before_its_delay_is_over() -> (
    None
):
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    tell(membership, backends[0], LOST, LATER)
    view = view_of(membership, backends[0])
    assert view.tier != -1  # untried: it may be picked, and demanded
    membership.demand(view, LATER)
    membership.take_connections(LATER)
    tell(membership, backends[0], REFUSED, LATER)

    assert (view.tier, view.health.state) == (-1, State.REFUSING)
    assert view.health.connect_at == LATER + 1.0


def test_a_demand_for_a_backend_that_left_meanwhile_opens_nothing() -> None:
    backends = fleet(3)
    membership = started(new_membership(), backends)
    view = next(view for view in membership.views if not view.health.is_connected)
    view.begin()
    membership.demand(view, START)
    membership.update([one for one in backends if one != view.backend], START)
    assert membership.take_connections(START) == ConnectionOrders((), ())

    membership.update(backends, LATER)  # It comes back, and its request waits still.
    assert opens(membership, LATER) == {view.backend.address}


def test_demands_that_nobody_takes_do_not_pile_up() -> None:
    membership = new_membership()
    membership.update(fleet(1), START)
    (view,) = membership.views
    for _ in range(1_000):  # requests of a transport that does not ask what to open
        membership.demand(view, START)

    assert len(membership._connecting._demanded) == 1
