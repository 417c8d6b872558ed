"""The five subset functions: the book's examples, what replaces a missing backend, wrong input."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import blake2b
from itertools import combinations
from typing import Any

import pytest

from evenly.core.balancing.splitmix import mix
from evenly.core.balancing.subset import (
    SUBSET_ALGORITHMS,
    SubsetFunction,
    deterministic_subset,
    nested_subset,
    random_subset,
    rendezvous_subset,
    rocksteadier_subset,
)
from evenly.errors import ConfigError

EVERY_ALGORITHM = pytest.mark.parametrize(
    "function", [pytest.param(function, id=name) for name, function in SUBSET_ALGORITHMS.items()]
)


def clients_per_backend(
    function: SubsetFunction, clients: int, backends: int, subset_size: int
) -> list[int]:
    counts: Counter[int] = Counter()
    for client in range(clients):
        counts.update(function(range(backends), client, subset_size))
    return [counts[x] for x in range(backends)]


# Golden values: client tasks of two releases run side by side and have to agree, so what a
# function returns is a contract.  A change here is a change of the protocol between them.
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(random_subset, [(19, 10, 4), (2, 0, 18), (17, 19, 12)], id="random"),
        pytest.param(
            deterministic_subset, [(10, 8, 15, 5), (9, 16, 8, 6), (3, 8, 15)], id="deterministic"
        ),
        pytest.param(rocksteadier_subset, [(5, 13, 7), (4, 12, 5), (10, 2, 18)], id="rocksteadier"),
        pytest.param(
            nested_subset,
            [(1, 4, 10, 13, 16), (1, 6, 8, 15, 18), (2, 5, 9, 14, 16)],
            id="nested",
        ),
    ],
)
def test_subsets_never_change(function: SubsetFunction, expected: list[tuple[int, ...]]) -> None:
    assert [function(range(20), client, 3) for client in (0, 7, 1000)] == expected


def test_rendezvous_subsets_never_change() -> None:
    addresses = [f"10.0.0.{x}:80" for x in range(20)]

    assert rendezvous_subset(addresses, 0, 3) == ("10.0.0.11:80", "10.0.0.1:80", "10.0.0.17:80")
    assert rendezvous_subset(addresses, 1000, 3) == ("10.0.0.8:80", "10.0.0.14:80", "10.0.0.12:80")


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("client", [0, 1, 2**31 - 1])
def test_rendezvous_is_its_formula(client: int, count: int) -> None:
    addresses = [f"10.0.{x // 256}.{x % 256}:80" for x in range(count)]

    def hash_of(address: str) -> int:
        text = blake2b(address.encode(), digest_size=8).digest()
        return mix(mix(client + 1) ^ int.from_bytes(text, "little"))

    assert list(rendezvous_subset(addresses, client, 20)) == sorted(addresses, key=hash_of)[:20]


def test_random_is_its_formula_however_many_are_asked_for() -> None:
    for size in (1, 2, 10, 150, 299, 300):
        draw = random.Random("random_subset/0/5").random
        numbers = [draw() for _ in range(300)]
        order = sorted(range(300), key=numbers.__getitem__)
        assert random_subset(range(300), 5, size) == tuple(order[:size])
        # With most of them missing, few are left below the bound, and all have to be sorted.
        holes = [x if x % 10 == 0 else None for x in range(300)]
        assert random_subset(holes, 5, size) == tuple(x for x in order if x % 10 == 0)[:size]


def test_rendezvous_client_tasks_choose_independently() -> None:
    subsets = [set(rendezvous_subset(range(300), client, 30)) for client in range(200)]

    # Two subsets of 30 of 300 share 3 on average, with a standard deviation of 1.6; the mean of
    # 19,900 pairs, which are nearly independent, has one of 0.011.
    shared = [len(one & other) for one, other in combinations(subsets, 2)]
    assert sum(shared) / len(shared) == pytest.approx(3, abs=0.1)
    assert max(shared) <= 12


@pytest.mark.parametrize("function", [deterministic_subset, nested_subset])
def test_ten_clients_of_twelve_backends_as_in_the_book(function: SubsetFunction) -> None:
    # "In this example, every backend gets assigned to exactly two or three clients."  There are
    # 10 clients x 3 = 30 connections: 6 backends with three clients and 6 with two.
    counts = clients_per_backend(function, clients=10, backends=12, subset_size=3)

    assert sorted(counts) == [2] * 6 + [3] * 6


def test_deterministic_gives_every_backend_exactly_ten_clients_as_in_the_book() -> None:
    counts = clients_per_backend(deterministic_subset, clients=300, backends=300, subset_size=10)

    assert counts == [10] * 300


@pytest.mark.parametrize(
    ("clients", "backends", "subset_size", "least", "most"),
    [
        # As a prototype gave: 1.00, 0.95 to 1.05, and 0.75 to 1.25 of the means 10, 20 and 4.
        (300, 300, 10, 10, 10),
        (300, 300, 20, 20, 20),
        (100, 500, 20, 3, 5),
    ],
)
def test_rocksteadier_is_as_even_as_its_prototype(
    clients: int, backends: int, subset_size: int, least: int, most: int
) -> None:
    counts = clients_per_backend(rocksteadier_subset, clients, backends, subset_size)

    assert (min(counts), max(counts)) == (least, most)


@pytest.mark.parametrize(
    ("subset_size", "least", "most"),
    [
        # Clients per backend are binomial with n = 300 and p = size / 300: a standard deviation of
        # sqrt(300 p (1 - p)) is 17.3 % of the mean for p = 0.1 and 8.8 % for p = 0.3.  The bounds
        # are 1.7 to 4.2 and 2 to 4.9 of it (0.1), 1.6 to 4.5 and 1.9 to 4.5 of it (0.3) from the
        # mean, where the extremes of 300 backends lie.  The book shows one draw: 50 to 150 % and
        # 63 to 121 %.
        pytest.param(30, (0.27, 0.70), (1.35, 1.85), id="a tenth of the backends"),
        pytest.param(90, (0.60, 0.86), (1.17, 1.40), id="three tenths of the backends"),
    ],
)
def test_random_is_uneven_with_every_seed(
    subset_size: int, least: tuple[float, float], most: tuple[float, float]
) -> None:
    for seed in range(200):
        counts: Counter[int] = Counter()
        for client in range(300):
            counts.update(random_subset(range(300), client, subset_size, seed=seed))
        # 300 clients x size / 300 backends: the mean is the size.
        ratios = [counts[x] / subset_size for x in range(300)]
        assert least[0] <= min(ratios) <= least[1], f"seed {seed}"
        assert most[0] <= max(ratios) <= most[1], f"seed {seed}"


def test_random_depends_on_its_seed() -> None:
    assert random_subset(range(300), 5, 10, seed=0) == random_subset(range(300), 5, 10)
    assert random_subset(range(300), 5, 10, seed=0) != random_subset(range(300), 5, 10, seed=1)


@EVERY_ALGORITHM
def test_no_backends_give_an_empty_subset(function: SubsetFunction) -> None:
    nobody: list[str | None] = []

    assert function(nobody, 3, 20) == ()
    assert function([None, None], 3, 20) == ()


@EVERY_ALGORITHM
@pytest.mark.parametrize("subset_size", [4, 5, 20])
def test_where_no_more_exist_than_asked_for_all_are_taken(
    function: SubsetFunction, subset_size: int
) -> None:
    backends = ["a", None, "b", "c", None, None, "d", None]

    assert sorted(function(backends, 7, subset_size)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("function", [random_subset, rendezvous_subset, rocksteadier_subset])
def test_a_missing_backend_is_replaced_by_the_next(function: SubsetFunction) -> None:
    longer = function(range(100), 7, 11)
    second = longer[1]
    backends = [None if x == second else x for x in range(100)]

    assert function(backends, 7, 10) == (longer[0], *longer[2:])


@pytest.mark.parametrize("function", [random_subset, rendezvous_subset, rocksteadier_subset])
def test_a_backend_more_pushes_out_at_most_one(function: SubsetFunction) -> None:
    for client in range(200):
        before = function(range(100), client, 10)
        after = function(range(101), client, 10)
        assert set(after) - set(before) in (set(), {100})


def test_deterministic_closes_up_holes() -> None:
    backends = ["a", None, "b", "c", None, "d", "e", "f"]
    without_holes = ["a", "b", "c", "d", "e", "f"]

    for client in range(12):
        assert deterministic_subset(backends, client, 2) == deterministic_subset(
            without_holes, client, 2
        )


def test_deterministic_spreads_the_remainder_over_the_first_subsets() -> None:
    # 11 backends of size 3: 3 subsets, 11 = 3 · 3 + 2, so that the first two have one more.
    assert [len(deterministic_subset(range(11), client, 3)) for client in range(6)] == [
        4, 4, 3, 4, 4, 3,
    ]  # fmt: skip


def test_deterministic_shuffles_every_round_differently() -> None:
    # If it did not, a failed backend's load would fall on the same few others from every round.
    first, second = deterministic_subset(range(12), 0, 3), deterministic_subset(range(12), 4, 3)

    assert set(first) != set(second)


def test_rendezvous_knows_a_backend_by_its_text_and_not_by_its_place() -> None:
    backends = [f"10.0.0.{x}:80" for x in range(50)]

    assert rendezvous_subset(backends[::-1], 4, 10) == rendezvous_subset(backends, 4, 10)


def test_rendezvous_orders_equal_hashes_by_place() -> None:
    class Twin:
        def __str__(self) -> str:
            return "twin"

    twins = [Twin(), Twin(), Twin()]

    assert rendezvous_subset(twins, 0, 2) == (twins[0], twins[1])


@EVERY_ALGORITHM
@pytest.mark.parametrize(
    ("client_index", "subset_size", "message"),
    [
        (0, 0, "subset_size must be a whole number in [1, 10000], not 0"),
        (0, 10001, "subset_size must be a whole number in [1, 10000], not 10001"),
        (0, float("nan"), "subset_size must be a whole number in [1, 10000], not nan"),
        (0, 20.0, "subset_size must be a whole number in [1, 10000], not 20.0"),
        (0, True, "subset_size must be a whole number in [1, 10000], not True"),
        (-1, 20, "client_index must be a whole number in [0, 2147483647], not -1"),
        (2**31, 20, "client_index must be a whole number in [0, 2147483647], not 2147483648"),
        (False, 20, "client_index must be a whole number in [0, 2147483647], not False"),
    ],
)
# Also without backends: a wrong number must not wait for the first backend to be noticed.
@pytest.mark.parametrize("backends", [[], ["a", "b", "c"]], ids=["empty", "three"])
def test_wrong_input_is_refused(
    function: SubsetFunction,
    client_index: Any,
    subset_size: Any,
    message: str,
    backends: list[str],
) -> None:
    with pytest.raises(ConfigError) as refusal:
        function(backends, client_index, subset_size)

    assert str(refusal.value) == message


def test_the_largest_numbers_are_accepted() -> None:
    for function in SUBSET_ALGORITHMS.values():
        assert len(function(range(50), 2**31 - 1, 20)) in range(20, 41)
        assert len(function(range(50), 0, 10_000)) == 50
