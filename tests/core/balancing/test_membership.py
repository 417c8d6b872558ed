from __future__ import annotations

import math
import random

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionOrders, Membership, MembershipConfig
from evenly.core.balancing.subset import (
    deterministic_subset,
    nested_subset,
    rendezvous_subset,
)
from evenly.errors import ConfigError
from tests.core.balancing.members import (
    LATER,
    LOST,
    OPENED,
    REFUSED,
    SOON,
    START,
    NoJitter,
    connected,
    fleet,
    names,
    new_membership,
    opens,
    tell,
    view_of,
)


def test_with_indices_on_both_sides_the_subset_is_nested() -> None:
    backends = fleet(100, indexed=True)
    membership = new_membership(subset_size=10, client_index=3)
    membership.update(backends, START)

    expected = {backend.address for backend in nested_subset(backends, 3, 10)}
    assert 10 <= len(expected) <= 20
    assert names(membership) == expected
    assert membership.known == 100


def test_a_missing_index_is_a_hole_and_the_order_of_the_list_does_not_matter() -> None:
    slots: list[Backend | None] = list(fleet(100, indexed=True))
    slots[7] = None
    slots[40] = None
    membership = new_membership(subset_size=10, client_index=3)
    membership.update([slot for slot in reversed(slots) if slot is not None], START)

    assert names(membership) == {backend.address for backend in nested_subset(slots, 3, 10)}


def test_another_algorithm_can_be_chosen() -> None:
    backends = fleet(100, indexed=True)
    membership = new_membership(subset_size=10, client_index=3, subset_algorithm="rendezvous")
    membership.update(backends, START)

    assert names(membership) == {backend.address for backend in rendezvous_subset(backends, 3, 10)}


@pytest.mark.parametrize(
    ("client_index", "indexed"),
    [
        pytest.param(3, [], id="no backend has an index"),
        pytest.param(3, [*range(99)], id="one backend has none"),
    ],
)
def test_without_all_indices_the_subset_is_by_rendezvous(
    client_index: int, indexed: list[int]
) -> None:
    backends = [Backend(f"b{x}", x if x in indexed else None) for x in range(100)]
    membership = new_membership(subset_size=10, client_index=client_index)
    membership.update(backends, START)

    assert names(membership) == {backend.address for backend in rendezvous_subset(backends, 3, 10)}


def test_client_tasks_without_an_index_differ() -> None:
    backends = fleet(100, indexed=True)
    subsets = []
    for seed in (1, 2):
        membership = new_membership(subset_size=10, rng=random.Random(seed))
        membership.update(backends, START)
        subsets.append(names(membership))

    assert [len(subset) for subset in subsets] == [10, 10]
    assert subsets[0] != subsets[1]


def test_the_same_list_again_changes_nothing() -> None:
    backends = fleet(30)
    membership = connected(new_membership(), backends)
    before = list(membership.views)
    membership.update(list(reversed(backends)), LATER)

    assert list(membership.views) == before
    assert membership.take_connections(LATER) == ConnectionOrders((), ())


def test_an_index_may_change_and_the_view_stays() -> None:
    membership = connected(new_membership(), [Backend("a", 1)])
    view = view_of(membership, Backend("a"))
    membership.update([Backend("a", 2)], LATER)

    assert view_of(membership, Backend("a")) is view
    assert view.backend == Backend("a", 2)


def test_an_empty_list_is_a_list() -> None:
    membership = connected(new_membership(client_index=0), fleet(3, indexed=True))
    membership.update([], LATER)

    assert names(membership) == set()
    assert membership.known == 0
    assert {backend.address for backend in membership.take_connections(LATER).close} == {
        "b0",
        "b1",
        "b2",
    }


@pytest.mark.parametrize(
    ("second", "message"),
    [
        pytest.param(
            Backend("a", 2), "backends\\[0\\] and backends\\[2\\] have the same address 'a'", id="a"
        ),
        pytest.param(
            Backend("c", 1), "backends\\[0\\] and backends\\[2\\] have the same index 1", id="index"
        ),
    ],
)
def test_two_backends_with_the_same_name_change_nothing(second: Backend, message: str) -> None:
    membership = connected(new_membership(), fleet(3))
    with pytest.raises(ConfigError, match=message):
        membership.update([Backend("a", 1), Backend("b"), second], LATER)

    assert names(membership) == {"b0", "b1", "b2"}
    assert membership.known == 3
    assert membership.take_connections(LATER) == ConnectionOrders((), ())


# 7 of 10 is 70 % and enough; 6 of 10 is not.
def test_below_70_percent_as_many_again_are_taken_in_and_given_back() -> None:
    backends = fleet(100)
    membership = connected(new_membership(subset_size=10), backends)
    base = sorted(names(membership))
    down = [Backend(name) for name in base[:4]]
    for backend in down[:3]:
        tell(membership, backend, REFUSED, LATER)
    assert names(membership) == set(base)

    tell(membership, down[3], REFUSED, LATER)
    wide = names(membership)
    assert set(base) < wide
    assert len(wide) == 20
    joined = wide - set(base)
    assert opens(membership) == set()
    membership.reconnect(LATER + SOON)
    assert opens(membership, LATER + SOON) == joined

    # Given back when 85 % are there again, so that one that flaps does not open and close ten.
    for backend in down[:2]:
        tell(membership, backend, OPENED, LATER)
    assert names(membership) == wide
    tell(membership, down[2], OPENED, LATER)
    assert names(membership) == set(base)
    closed = membership.take_connections(LATER).close
    assert {backend.address for backend in closed} == joined


def test_widening_goes_no_further_whoever_refuses() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    for _ in range(3):
        for view in list(membership.views):
            membership.connection(view, REFUSED, LATER)

    assert len(names(membership)) == 20


def test_a_subset_that_refuses_from_the_start_is_widened() -> None:
    membership = new_membership(subset_size=10)
    membership.update(fleet(100), START)
    base = names(membership)
    membership.reconnect(START + SOON)
    for backend in membership.take_connections(START + SOON).open:
        tell(membership, backend, REFUSED, START + SOON)

    assert len(names(membership)) == 20
    assert names(membership) > base
    assert opens(membership, START + SOON) == set()
    membership.reconnect(START + 2 * SOON)
    assert opens(membership, START + 2 * SOON) == names(membership) - base


def test_lost_connections_are_no_reason_to_widen_until_they_are_refused() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    base = [view.backend for view in membership.views]
    for backend in base:
        tell(membership, backend, LOST, LATER)
    assert len(names(membership)) == 10

    for backend in base:
        tell(membership, backend, REFUSED, LATER)
    assert len(names(membership)) == 20


def test_a_connection_that_does_not_stand_cannot_be_lost() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    base = [view.backend for view in membership.views]
    for backend in base:
        tell(membership, backend, REFUSED, LATER)
    opens(membership)
    for backend in base:
        tell(membership, backend, LOST, LATER)

    assert len(names(membership)) == 20
    membership.reconnect(LATER + SOON)  # The ten that were taken in, and none of those.
    assert opens(membership, LATER + SOON) == names(membership) - {one.address for one in base}


def test_a_shrinking_subset_keeps_the_panic_rule() -> None:
    membership = connected(new_membership(subset_size=10), fleet(4))
    views = list(membership.views)
    for view in views[:2]:
        for _ in range(5):
            view.health.check(LATER, may_go_silent=True)
        membership.moved(view, LATER)
    assert [view.health.is_silent for view in views] == [True, True, False, False]

    membership.update([view.backend for view in views[:2]], LATER)

    assert sorted(view.health.is_silent for view in views[:2]) == [False, True]


def test_silence_is_a_reason_to_widen() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))

    assert silence(membership, checks=4) == 5  # half of ten, so that 50 % are left
    assert len(names(membership)) == 20


# The deterministic subset of twice the size is another one: ten of the twenty are not taken in.
def test_widening_keeps_the_base_and_adds_no_more_than_as_many_again() -> None:
    backends = fleet(100, indexed=True)
    membership = new_membership(
        subset_size=10, client_index=3, subset_algorithm="deterministic", rng=NoJitter(0)
    )
    connected(membership, backends)
    base = names(membership)
    wider = {backend.address for backend in deterministic_subset(backends, 3, 20)}
    assert len(wider - base) > 10
    for view in list(membership.views):
        membership.connection(view, REFUSED, LATER)

    assert len(names(membership)) == 20
    assert base < names(membership)
    assert names(membership) <= base | wider


def test_a_new_list_is_widened_by_its_own_backends() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    for view in list(membership.views):
        membership.connection(view, REFUSED, LATER)
    others = [Backend(f"c{number}") for number in range(100)]
    membership.update(others, LATER)
    assert len(names(membership)) == 10
    for view in list(membership.views):
        membership.connection(view, REFUSED, LATER)

    assert len(names(membership)) == 20
    assert names(membership) <= {backend.address for backend in others}


def test_untried_backends_are_no_reason_to_widen() -> None:
    membership = new_membership(subset_size=10)
    membership.update(fleet(100), START)
    tell(membership, next(iter(membership.views)).backend, OPENED, START)

    assert len(names(membership)) == 10


def test_lame_ducks_are_no_reason_to_widen() -> None:
    membership = connected(new_membership(subset_size=10), fleet(100))
    for view in list(membership.views):
        view.health.watched(serving=False)
        membership.moved(view, LATER)

    assert len(names(membership)) == 10


def test_a_nested_subset_widens_by_a_level() -> None:
    backends = fleet(128, indexed=True)
    membership = connected(new_membership(subset_size=16, client_index=5), backends)
    base = names(membership)
    assert base == {backend.address for backend in nested_subset(backends, 5, 16)}
    for view in list(membership.views)[:5]:  # 11 of 16 is 69 %.
        membership.connection(view, REFUSED, LATER)

    assert names(membership) == {backend.address for backend in nested_subset(backends, 5, 32)}
    assert base < names(membership)


def test_client_tasks_that_start_together_open_in_different_orders() -> None:
    orders = set()
    for seed in range(5):
        membership = new_membership(rng=random.Random(seed))
        membership.update(fleet(20), START)
        membership.reconnect(LATER)
        orders.add(membership.take_connections(LATER).open)

    assert [len(order) for order in orders] == [10] * 5  # five different ones


def test_a_refused_connection_is_tried_again_after_its_delay() -> None:
    membership = new_membership()
    backends = fleet(2)
    membership.update(backends, START)
    membership.take_connections(START)
    assert membership.connect_at == math.inf
    tell(membership, backends[0], REFUSED, START)
    tell(membership, backends[1], REFUSED, START + 0.5)
    assert membership.connect_at == START + 1.0  # the earlier: 1 s after the first
    assert opens(membership, START + 0.5) == set()

    membership.reconnect(START + 1.0)
    assert opens(membership, START + 1.0) == {"b0"}
    assert membership.connect_at == START + 1.5
    tell(membership, backends[0], REFUSED, START + 1.25)
    assert membership.connect_at == START + 1.5
    membership.reconnect(START + 1.5)
    assert opens(membership, START + 1.5) == {"b1"}
    assert membership.connect_at == pytest.approx(START + 2.85)  # 1.25 + 1.6


def test_a_refusal_that_follows_a_loss_before_it_was_taken_keeps_its_delay() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    tell(membership, backends[0], LOST, LATER)  # It is to be opened soon ...
    membership.reconnect(LATER + SOON)  # ... now ...
    tell(membership, backends[0], REFUSED, LATER + SOON)  # ... and then not.
    assert opens(membership, LATER + SOON) == set()
    assert membership.connect_at == LATER + SOON + 1.0

    membership.reconnect(LATER + SOON + 1.0)
    assert opens(membership, LATER + SOON + 1.0) == {"b0"}


def test_a_backend_that_leaves_is_closed_and_not_opened() -> None:
    backends = fleet(2)
    membership = new_membership()
    membership.update(backends, START)
    membership.update(backends[:1], START)

    assert membership.take_connections(LATER) == ConnectionOrders((backends[0],), (backends[1],))
    assert membership.view(backends[1]) is None


def test_a_backend_that_left_and_came_back_is_closed_and_opened() -> None:
    backends = fleet(1)
    membership = connected(new_membership(), backends)
    membership.update([], LATER)
    membership.update(backends, LATER)

    assert membership.take_connections(LATER) == ConnectionOrders((backends[0],), (backends[0],))


def test_a_backend_with_attempts_leaves_with_the_last_of_them() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    view = view_of(membership, backends[1])
    view.begin()
    membership.update(backends[:1], LATER)
    assert not view.in_subset
    assert membership.view(backends[1]) is view
    assert membership.take_connections(LATER) == ConnectionOrders((), ())

    membership.finished(view)  # One is still active.
    assert membership.view(backends[1]) is view
    view.finish()
    membership.finished(view)
    assert membership.view(backends[1]) is None
    assert membership.take_connections(LATER) == ConnectionOrders((), (backends[1],))


def test_a_backend_that_left_is_not_tried_again() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    view = view_of(membership, backends[1])
    view.begin()
    membership.update(backends[:1], LATER)
    membership.connection(view, LOST, LATER)
    assert membership.connect_at == math.inf
    membership.reconnect(LATER + SOON)

    assert opens(membership, LATER + SOON) == set()


def test_a_backend_that_comes_back_with_attempts_keeps_its_view_and_connection() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    view = view_of(membership, backends[1])
    view.begin()
    membership.update(backends[:1], LATER)
    membership.update(backends, LATER)

    assert membership.view(backends[1]) is view
    assert view.in_subset
    assert membership.take_connections(LATER) == ConnectionOrders((), ())


def silence(membership: Membership, checks: int = 10) -> int:
    """Let nobody answer, and return how many are silent."""
    for _ in range(checks):
        membership.check_health(LATER)
    return sum(view.health.is_silent for view in membership.views)


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        pytest.param(1, 0, id="one: int(0.5)"),
        pytest.param(2, 1, id="one of two"),
        pytest.param(3, 1, id="one of three"),
        pytest.param(10, 5, id="five of ten"),
    ],
)
def test_silence_takes_out_at_most_half(backends: int, expected: int) -> None:
    membership = connected(new_membership(), fleet(backends))

    assert silence(membership) == expected
    refusing = [view for view in membership.views if view.health.state is State.REFUSING]
    assert len(refusing) == expected


def test_the_part_that_silence_may_take_is_a_setting() -> None:
    membership = new_membership(health=HealthConfig(silent_max_ratio=0.25))

    assert silence(connected(membership, fleet(12))) == 3


def test_refused_connections_may_take_all() -> None:
    membership = connected(new_membership(), fleet(10))
    for view in list(membership.views):
        membership.connection(view, REFUSED, LATER)

    assert all(view.health.state is State.REFUSING for view in membership.views)


def test_one_that_speaks_makes_room_for_another_silence() -> None:
    membership = connected(new_membership(), fleet(4))
    assert silence(membership) == 2
    speaker = next(view for view in membership.views if view.health.is_silent)
    speaker.health.heard()
    membership.moved(speaker, LATER)
    assert speaker.health.state is State.HEALTHY
    membership.check_health(LATER)

    assert sum(view.health.is_silent for view in membership.views) == 2
    assert not speaker.health.is_silent


def test_a_list_that_shrinks_under_the_silent_takes_some_back() -> None:
    backends = fleet(20)
    membership = connected(new_membership(), backends)
    for _ in range(4):
        for backend in backends[10:]:
            view_of(membership, backend).health.heard()
        membership.check_health(LATER)
    assert sum(view.health.is_silent for view in membership.views) == 10
    membership.update(backends[:12], LATER)
    membership.check_health(LATER)

    silent = [view for view in membership.views if view.health.is_silent]
    assert len(silent) == 6  # half of twelve
    assert sum(view.health.state is State.REFUSING for view in membership.views) == 6


def test_a_silent_backend_is_opened_again_after_its_delay_and_until_it_speaks() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    assert silence(membership, checks=4) == 1
    silent = next(view for view in membership.views if view.health.is_silent)
    assert opens(membership, LATER) == set()
    assert membership.connect_at == LATER + 1.0
    membership.reconnect(LATER + 1.0)
    assert opens(membership, LATER + 1.0) == {silent.backend.address}

    membership.connection(silent, OPENED, LATER + 1.0)
    assert silent.health.is_refusing
    assert membership.connect_at == LATER + 1.0 + 1.6
    silent.health.heard()
    membership.moved(silent, LATER + 2.0)
    assert silent.health.state is State.HEALTHY
    membership.reconnect(LATER + 2.6)
    assert opens(membership, LATER + 2.6) == set()
    assert membership.connect_at == math.inf


def test_three_checks_have_to_go_unanswered() -> None:
    membership = connected(new_membership(), fleet(4))

    assert silence(membership, checks=3) == 0
    assert silence(membership, checks=1) == 2


def test_checks_are_due_where_nothing_was_heard() -> None:
    backends = fleet(3)
    membership = connected(new_membership(), backends)
    view_of(membership, backends[1]).health.heard()
    tell(membership, backends[2], REFUSED, LATER)

    due = membership.check_health(LATER)
    assert [view.backend.address for view in due] == ["b0"]
    due = membership.check_health(LATER)
    assert {view.backend.address for view in due} == {"b0", "b1"}


def test_backends_outside_of_the_subset_are_not_checked() -> None:
    backends = fleet(2)
    membership = connected(new_membership(), backends)
    view_of(membership, backends[1]).begin()
    membership.update(backends[:1], LATER)

    assert [view.backend for view in membership.check_health(LATER)] == [backends[0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"subset_size": 0}, "subset_size must be", id="nobody"),
        pytest.param({"subset_size": 10_001}, "subset_size must be", id="too many"),
        pytest.param({"subset_algorithm": "best"}, "one of .*nested.*, not 'best'", id="unknown"),
        pytest.param({"client_index": -1}, "client_index must be", id="negative index"),
        pytest.param({"enough_ratio": 1.01}, "enough_ratio must be", id="more than all"),
        pytest.param({"enough_ratio": math.nan}, "enough_ratio must be", id="NaN"),
        pytest.param({"error_decay_seconds": 0.0}, "error_decay_seconds must be", id="no decay"),
        pytest.param({"connecting_max": 0}, "connecting_max must be", id="none at a time"),
        pytest.param({"connecting_max": 1.5}, "connecting_max must be", id="one and a half"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MembershipConfig(**settings)  # type: ignore[arg-type]
