from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.view_heap import ViewHeap


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


def first_of(heap: ViewHeap, avoid: Collection[BackendView] = ()) -> BackendView | None:
    entry = heap.first(avoid)
    return None if entry is None else entry[3]


def test_the_smallest_key_is_first() -> None:
    a, b, c = new_views("abc")
    heap = ViewHeap()
    heap.put(a, 3.0)
    heap.put(b, 1.0)
    heap.put(c, 2.0)

    assert first_of(heap) is b
    assert first_of(heap) is b  # Looking does not take out.
    assert len(heap) == 3
    assert list(heap) == [a, b, c]


def test_of_equal_keys_the_one_put_in_first_is_first() -> None:
    a, b, c = new_views("abc")
    heap = ViewHeap()
    for view in (b, a, c):
        heap.put(view, 1.0)

    assert first_of(heap) is b
    heap.put(b, 1.0)  # Put in again, it stands behind its equals.
    assert first_of(heap) is a
    heap.put(a, 1.0)
    assert first_of(heap) is c


def test_of_equal_keys_the_second_key_decides() -> None:
    a, b, c = new_views("abc")
    heap = ViewHeap()
    heap.put(a, 1.0, 3.0)
    heap.put(b, 1.0, 2.0)
    heap.put(c, 2.0, 1.0)

    assert first_of(heap) is b
    assert first_of(heap, [b]) is a
    assert first_of(heap, [a, b]) is c


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param(0.5, "b", id="the first moves up"),
        pytest.param(2.5, "c", id="the first moves down"),
        pytest.param(9.0, "c", id="the first becomes the last"),
    ],
)
def test_a_new_key_moves_the_first(key: float, expected: str) -> None:
    a, b, c = new_views("abc")
    heap = ViewHeap()
    heap.put(a, 3.0)
    heap.put(b, 1.0)
    heap.put(c, 2.0)
    heap.put(b, key)

    first = first_of(heap)
    assert first is not None
    assert first.backend.address == expected
    assert len(heap) == 3


def test_a_new_key_moves_one_from_the_middle() -> None:
    a, b = new_views("ab")
    heap = ViewHeap()
    heap.put(a, 1.0)
    heap.put(b, 2.0)
    heap.put(b, 0.0)
    assert first_of(heap) is b

    heap.put(b, 5.0)  # Neither of its old entries, 0 and 2, counts any more.
    assert first_of(heap) is a
    heap.put(a, 6.0)
    assert first_of(heap) is b


def test_one_that_left_is_never_first() -> None:
    a, b = new_views("ab")
    heap = ViewHeap()
    heap.put(a, 1.0)
    heap.put(b, 2.0)
    heap.discard(a)
    heap.discard(a)  # Twice is no mistake.

    assert a not in heap
    assert first_of(heap) is b
    heap.discard(b)
    assert first_of(heap) is None
    assert len(heap) == 0


def test_one_that_left_and_came_back_has_its_new_key_only() -> None:
    a, b = new_views("ab")
    heap = ViewHeap()
    heap.put(a, 1.0)
    heap.put(b, 2.0)
    heap.discard(a)
    heap.put(a, 3.0)

    assert first_of(heap) is b


@pytest.mark.parametrize(
    ("avoided", "expected"),
    [
        pytest.param("a", "b", id="the first: the second"),
        pytest.param("ab", "c", id="two: the third"),
        pytest.param("c", "a", id="not the first: the first"),
        pytest.param("abc", "a", id="all: the first after all"),
    ],
)
def test_avoided_backends_are_first_only_where_there_is_no_other(
    avoided: str, expected: str
) -> None:
    views = new_views("abc")
    heap = ViewHeap()
    for key, view in enumerate(views):
        heap.put(view, float(key))
    avoid = [view for view in views if view.backend.address in avoided]

    first = first_of(heap, avoid)

    assert first is not None
    assert first.backend.address == expected
    assert first_of(heap) is views[0]  # Nobody was lost on the way.


def test_untrue_entries_do_not_pile_up() -> None:
    a, b = new_views("ab")
    heap = ViewHeap()
    heap.put(a, 0.0)
    for key in range(10_000):
        heap.put(b, 1.0 + key)  # Never first, so that each leaves an untrue entry behind.

    # Two true entries: swept at 4 · 2 + 64 = 72.
    assert len(heap._heap) <= 72  # Nothing but its size shows it from outside.
    assert first_of(heap) is a
    heap.discard(a)
    entry = heap.first()
    assert entry is not None
    assert entry[0] == 10_000.0  # the last that was put: 1 + 9,999


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=4),
            st.none() | st.integers(min_value=0, max_value=3),
            st.integers(min_value=0, max_value=1),
        ),
        max_size=60,
    ),
    avoided=st.sets(st.integers(min_value=0, max_value=4)),
)
def test_it_agrees_with_a_sorted_list(
    steps: list[tuple[int, int | None, int]], avoided: set[int]
) -> None:
    views = new_views("abcde")
    avoid = [views[place] for place in sorted(avoided)]
    heap = ViewHeap()
    model: dict[BackendView, tuple[int, int, int]] = {}
    for ticket, (place, key, second) in enumerate(steps):
        view = views[place]
        if key is None:
            heap.discard(view)
            model.pop(view, None)
        else:
            heap.put(view, float(key), float(second))
            model[view] = (key, second, ticket)

        order = sorted(model, key=model.__getitem__)
        allowed = [view for view in order if view not in avoid]
        assert first_of(heap) is (order[0] if order else None)
        assert first_of(heap, avoid) is ((allowed or order)[0] if order else None)
        assert len(heap) == len(model)
