"""What holds for every fleet: no duplicates, stated sizes, and an even spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.core.balancing.nested_subset import nested_level
from evenly.core.balancing.subset import (
    SUBSET_ALGORITHMS,
    SubsetFunction,
    deterministic_subset,
    nested_subset,
)

EVERY_ALGORITHM = pytest.mark.parametrize(
    "function", [pytest.param(function, id=name) for name, function in SUBSET_ALGORITHMS.items()]
)
EVEN_ALGORITHMS = pytest.mark.parametrize("function", [deterministic_subset, nested_subset])

CLIENT_COUNTS = st.integers(1, 150)
BACKEND_COUNTS = st.integers(1, 400)
# Sizes that matter are below the number of backends; the rest of the range is tried as well.
SIZES = st.integers(1, 60) | st.integers(1, 10_000)
CLIENT_INDICES = st.integers(0, 200) | st.integers(0, 2**31 - 1)
FLEETS_WITH_HOLES = st.lists(st.booleans(), max_size=300).map(
    lambda exists: [x if there else None for x, there in enumerate(exists)]
)

# Time is measured elsewhere; a busy machine is no falsifying example.
bounded = settings(max_examples=60)


def all_subsets(
    function: SubsetFunction, clients: int, backends: int, size: int
) -> list[tuple[int, ...]]:
    return [function(range(backends), client, size) for client in range(clients)]


@EVEN_ALGORITHMS
@given(clients=CLIENT_COUNTS, backends=BACKEND_COUNTS, size=SIZES)
@bounded
def test_clients_per_backend_differ_by_at_most_one(
    function: SubsetFunction, clients: int, backends: int, size: int
) -> None:
    counts = Counter(x for subset in all_subsets(function, clients, backends, size) for x in subset)

    per_backend = [counts[x] for x in range(backends)]
    assert max(per_backend) - min(per_backend) <= 1


@EVEN_ALGORITHMS
@given(clients=CLIENT_COUNTS, backends=BACKEND_COUNTS, size=SIZES)
@bounded
def test_sizes_lie_between_once_and_twice_the_size_and_differ_by_at_most_one(
    function: SubsetFunction, clients: int, backends: int, size: int
) -> None:
    sizes = {len(subset) for subset in all_subsets(function, clients, backends, size)}

    parts = max(1, backends // size)
    if function is nested_subset:
        parts = 1 << nested_level(backends, size)
    assert sizes <= {backends // parts, -(-backends // parts)}
    assert max(sizes) - min(sizes) <= 1
    assert min(size, backends) <= min(sizes)
    assert max(sizes) <= 2 * size


@EVERY_ALGORITHM
@given(backends=FLEETS_WITH_HOLES, client_index=CLIENT_INDICES, size=SIZES)
@bounded
def test_a_subset_is_of_existing_backends_without_duplicates(
    function: SubsetFunction, backends: Sequence[int | None], client_index: int, size: int
) -> None:
    subset = function(backends, client_index, size)

    existing = [x for x in backends if x is not None]
    assert len(set(subset)) == len(subset)
    assert set(subset) <= set(existing)
    assert subset or not existing
    if len(existing) <= size:
        assert set(subset) == set(existing)


@EVERY_ALGORITHM
@given(backends=FLEETS_WITH_HOLES, client_index=CLIENT_INDICES, size=SIZES)
@bounded
def test_the_same_question_has_the_same_answer_for_any_sequence(
    function: SubsetFunction, backends: Sequence[int | None], client_index: int, size: int
) -> None:
    given_list = list(backends)

    answer = function(given_list, client_index, size)

    assert function(tuple(backends), client_index, size) == answer
    assert given_list == backends


@pytest.mark.parametrize("name", ["random", "rendezvous", "rocksteadier"])
@given(backends=FLEETS_WITH_HOLES, client_index=CLIENT_INDICES, size=SIZES)
@bounded
def test_the_others_have_exactly_the_size_asked_for(
    name: str, backends: Sequence[int | None], client_index: int, size: int
) -> None:
    existing = sum(x is not None for x in backends)

    assert len(SUBSET_ALGORITHMS[name](backends, client_index, size)) == min(size, existing)


@given(backends=FLEETS_WITH_HOLES, client_index=CLIENT_INDICES, size=SIZES)
@bounded
def test_nested_with_holes_has_seven_tenths_of_its_slots_or_all_that_exist(
    backends: Sequence[int | None], client_index: int, size: int
) -> None:
    existing = [x for x in backends if x is not None]
    subset = nested_subset(backends, client_index, size)

    slots = nested_subset(range(existing[-1] + 1), client_index, size) if existing else ()
    assert 10 * len(subset) >= 7 * len(slots) or list(subset) == existing
    assert {x for x in slots if backends[x] is not None} <= set(subset)


@given(client_index=CLIENT_INDICES, backends=BACKEND_COUNTS, sizes=st.tuples(SIZES, SIZES))
@bounded
def test_nested_subsets_of_a_smaller_size_lie_in_those_of_a_larger(
    client_index: int, backends: int, sizes: tuple[int, int]
) -> None:
    smaller = nested_subset(range(backends), client_index, min(sizes))
    larger = nested_subset(range(backends), client_index, max(sizes))

    assert set(smaller) <= set(larger)


@given(client_index=CLIENT_INDICES, backends=BACKEND_COUNTS, size=SIZES, more=BACKEND_COUNTS)
@bounded
def test_nested_growth_opens_connections_to_new_backends_only(
    client_index: int, backends: int, size: int, more: int
) -> None:
    before = nested_subset(range(backends), client_index, size)
    after = nested_subset(range(backends + more), client_index, size)

    assert {x for x in after if x < backends} <= set(before)


@given(clients=CLIENT_COUNTS, backends=BACKEND_COUNTS, size=SIZES)
@bounded
def test_nested_doubling_opens_the_new_backends_share(
    clients: int, backends: int, size: int
) -> None:
    before = all_subsets(nested_subset, clients, backends, size)
    after = all_subsets(nested_subset, clients, 2 * backends, size)

    opened = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    # Half of the backends are new, and no backend has more than one client more than another.
    assert opened <= (sum(len(subset) for subset in after) + backends) / 2


@given(client_index=CLIENT_INDICES, backends=BACKEND_COUNTS, size=SIZES, data=st.data())
@bounded
def test_nested_shrinking_within_a_level_opens_nothing(
    client_index: int, backends: int, size: int, data: st.DataObject
) -> None:
    left = data.draw(st.integers(0, backends))
    before = nested_subset(range(backends), client_index, size)
    after = nested_subset(range(left), client_index, size)

    if nested_level(left, size) == nested_level(backends, size):
        assert set(after) <= set(before)
    else:
        # Below, subsets double: what was there stays.
        assert {x for x in before if x < left} <= set(after)
