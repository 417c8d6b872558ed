from __future__ import annotations

import random

import pytest

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.roster import Roster
from tests.core.balancing.views import Draws


def new_views(names: str) -> list[BackendView]:
    return [
        BackendView(
            Backend(name),
            Health(HealthConfig(), now=0.0, rng=random.Random(0)),
            error_decay_seconds=5.0,
            now=0.0,
        )
        for name in names
    ]


def roster_of(views: list[BackendView]) -> Roster:
    roster = Roster()
    for view in views:
        roster.add(view)
    return roster


def test_the_order_is_that_of_arrival() -> None:
    a, b, c = new_views("abc")
    roster = roster_of([a, b, c])

    assert list(roster) == [a, b, c]
    assert len(roster) == 3
    assert roster[1] is b
    assert b in roster


def test_the_last_takes_the_place_of_one_that_leaves() -> None:
    a, b, c, d = new_views("abcd")
    roster = roster_of([a, b, c, d])
    roster.remove(b)

    assert list(roster) == [a, d, c]
    assert b not in roster
    roster.remove(d)  # It must be found in its new place.
    assert list(roster) == [a, c]
    roster.remove(c)
    roster.remove(a)
    assert list(roster) == []
    assert len(roster) == 0


def test_one_that_left_can_come_back() -> None:
    a, b = new_views("ab")
    roster = roster_of([a, b])
    roster.remove(a)
    roster.add(a)

    assert list(roster) == [b, a]


def test_taking_out_what_is_not_there_is_a_mistake() -> None:
    a, b = new_views("ab")
    roster = roster_of([a])

    with pytest.raises(KeyError):
        roster.remove(b)
    assert list(roster) == [a]


# Four backends: the quarters of [0, 1) belong to a, b, c and d.
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(0.0, 0, id="the first quarter begins"),
        pytest.param(0.2499, 0, id="the first quarter ends"),
        pytest.param(0.25, 1, id="the second quarter begins"),
        pytest.param(0.9999, 3, id="the last quarter ends"),
    ],
)
def test_each_has_the_same_part_of_the_draw(number: float, expected: int) -> None:
    views = new_views("abcd")

    assert roster_of(views).draw(Draws(number)) is views[expected]


@pytest.mark.parametrize(
    ("avoided", "again", "expected"),
    [
        pytest.param("b", 0.0, "a", id="the one drawn: the first third of the others"),
        pytest.param("b", 0.34, "c", id="the one drawn: the second third of the others"),
        pytest.param("b", 0.99, "d", id="the one drawn: the last third of the others"),
        pytest.param("bc", 0.49, "a", id="the one drawn and another: the first half"),
        pytest.param("bc", 0.5, "d", id="the one drawn and another: the second half"),
        pytest.param("bcd", 0.99, "a", id="all but one"),
        pytest.param("a", None, "b", id="another one: no second draw"),
        pytest.param("abcd", None, "b", id="all: the one drawn after all"),
    ],
)
def test_avoided_backends_are_drawn_only_where_there_is_no_other(
    avoided: str, again: float | None, expected: str
) -> None:
    views = new_views("abcd")
    avoid = [view for view in views if view.backend.address in avoided]

    drawn = roster_of(views).draw(Draws(0.25, *([] if again is None else [again])), avoid)  # b

    assert drawn is not None
    assert drawn.backend.address == expected


def test_strangers_among_the_avoided_do_no_harm() -> None:
    a, b, *strangers = new_views("abxyz")

    assert roster_of([a, b]).draw(Draws(0.0, 0.0), [*strangers, a]) is b


def test_an_empty_roster_draws_nobody_and_no_number() -> None:
    assert Roster().draw(Draws()) is None
