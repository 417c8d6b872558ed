"""What `nested_subset` promises: hardly any churn, unrelated lots, and patience with holes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, pairwise
from statistics import fmean, pvariance

import pytest

from evenly.core.balancing.nested_subset import nested_level, nested_subset

Fleet = Sequence[int | None]

# (clients, backends, size).  The last shape has lots of 64 clients (10,000 / 100 = 100 >= 64).  In
# each whole lot every backend has exactly one client, before and after a change, so that every lot
# opens the same share.  Two of the 156 lots are measured, which make one lot of 128 when the
# backends double; the 16 clients of the last, broken lot add at most one connection per backend to
# the 156.
SHAPES = pytest.mark.parametrize(
    ("clients", "backends", "size"),
    [
        pytest.param(range(300), 300, 10, id="300 x 300 x 10"),
        pytest.param(range(1000), 3000, 50, id="1000 x 3000 x 50"),
        pytest.param(range(9856, 9984), 10_000, 100, id="10000 x 10000 x 100"),
    ],
)


def subsets(fleet: Fleet, clients: Iterable[int], size: int) -> list[set[int]]:
    return [set(nested_subset(fleet, client, size)) for client in clients]


@cache  # Most tests begin with the same fleet.
def full_subsets(backends: int, clients: Sequence[int], size: int) -> list[set[int]]:
    return subsets(range(backends), clients, size)


def opened(before: Sequence[set[int]], after: Sequence[set[int]]) -> int:
    return sum(len(new - old) for old, new in zip(before, after, strict=True))


def total(of_clients: Sequence[set[int]]) -> int:
    return sum(len(subset) for subset in of_clients)


@pytest.mark.parametrize(
    ("backends", "size", "level"),
    [
        (1, 20, 0),
        (39, 20, 0),
        (40, 20, 1),
        (79, 20, 1),
        (80, 20, 2),
        (300, 10, 4),
        (319, 10, 4),
        (320, 10, 5),
        (10_000, 100, 6),
    ],
)
def test_the_level_rises_where_the_backends_reach_size_times_a_power_of_two(
    backends: int, size: int, level: int
) -> None:
    assert nested_level(backends, size) == level


@SHAPES
def test_one_backend_more_opens_its_own_connections_only(
    clients: Sequence[int], backends: int, size: int
) -> None:
    before = full_subsets(backends, clients, size)
    after = subsets(range(backends + 1), clients, size)

    assert opened(before, after) / total(before) <= 1.1 / backends
    assert all(new - old <= {backends} for old, new in zip(before, after, strict=True))


@SHAPES
@pytest.mark.parametrize("fewer", [1, 10], ids=["one", "a tenth"])
def test_fewer_backends_open_nothing(
    clients: Sequence[int], backends: int, size: int, fewer: int
) -> None:
    left = backends - 1 if fewer == 1 else backends - backends // 10

    before = full_subsets(backends, clients, size)
    assert opened(before, subsets(range(left), clients, size)) == 0


def test_more_or_fewer_clients_open_nothing() -> None:
    # The function is not told how many clients there are: those that stay cannot notice.
    before = subsets(range(300), range(300), 10)

    assert subsets(range(300), range(270), 10) == before[:270]
    assert subsets(range(300), range(330), 10)[:300] == before


@SHAPES
def test_doubling_the_backends_opens_the_new_ones_share(
    clients: Sequence[int], backends: int, size: int
) -> None:
    before = full_subsets(backends, clients, size)
    after = subsets(range(2 * backends), clients, size)

    assert all(
        new.intersection(range(backends)) <= old for old, new in zip(before, after, strict=True)
    )
    # Half of the backends are new, and whole lots, which are twice as large now, hold exactly half
    # of their connections to them.
    whole = len(clients) - len(clients) % (2 << nested_level(backends, size))
    assert whole > 0
    assert opened(before[:whole], after[:whole]) == total(after[:whole]) / 2
    # A broken last lot may by luck hold more new ones.  The worst is 12 of 300 clients: 225 of the
    # 5,625 connections, 112 new ones with a standard deviation of 7.5; 1 % of half of all is 28.
    assert opened(before, after) <= total(after) / 2 * 1.01


@SHAPES
def test_doubling_the_lot_opens_nothing(clients: Sequence[int], backends: int, size: int) -> None:
    before = full_subsets(backends, clients, size)
    halves = subsets(range(backends), clients, size // 2)

    assert opened(before, halves) == 0
    # The halves of two clients that differ in the lowest bits of the new lot make up the whole.
    assert total(halves) == pytest.approx(total(before) / 2, rel=0.05)


@SHAPES
def test_a_restart_of_one_opens_what_it_ended(
    clients: Sequence[int], backends: int, size: int
) -> None:
    full = full_subsets(backends, clients, size)
    restarted = backends // 3
    without = subsets([None if x == restarted else x for x in range(backends)], clients, size)

    assert opened(full, without) == 0
    assert opened(without, full) == sum(restarted in subset for subset in full)


@SHAPES
def test_a_rolling_restart_opens_every_connection_about_once(
    clients: Sequence[int], backends: int, size: int
) -> None:
    # Whole lots again, because a roll takes 20 fleets: 5 lots of 16, 8 of 32, 1 of 64 clients.
    rolled = {300: clients[:80], 3000: clients[:256], 10_000: clients[64:]}[backends]
    full = subsets(range(backends), rolled, size)
    batch = backends // 20
    steps = [full]
    for start in range(0, backends, batch):
        holes = [None if start <= x < start + batch else x for x in range(backends)]
        steps.append(subsets(holes, rolled, size))
    steps.append(full)

    ratio = sum(opened(old, new) for old, new in pairwise(steps)) / total(full)
    # Each connection dies with its backend and is opened again: no less than 1.
    assert 1.0 <= ratio <= 1.06


def test_shrinking_below_a_level_doubles_the_subsets() -> None:
    # Stated, not wished for: below 10 · 2^5 = 320 backends the level falls from 5 to 4.
    before = subsets(range(320), range(64), 10)
    after = subsets(range(319), range(64), 10)

    assert {len(subset) for subset in before} == {10}
    assert {len(subset) for subset in after} == {19, 20}
    # What was there stays, but for backend 319, and as much again is opened.
    assert all(old - {319} <= new for old, new in zip(before, after, strict=True))
    assert opened(before, after) == pytest.approx(total(before), rel=0.01)


def test_clients_of_one_lot_share_no_backend() -> None:
    lot = subsets(range(1000), range(32, 64), 20)  # 1000 / 20 = 50 >= 32

    assert sum(len(subset) for subset in lot) == len(set().union(*lot)) == 1000


def test_clients_of_different_lots_overlap_as_random_subsets_do() -> None:
    # 1024 backends, size 64: 16 lots' worth of conditions, subsets of n = 64, one of each lot of 16
    # backends.  Two random subsets share n²/1024 = 4 on average, with a hypergeometric variance of
    # 4 · (15/16) · (960/1023) = 3.52; picking one of each lot makes it binomial, 4 · 15/16 = 3.75.
    chosen = [16 * lot + 7 * lot % 16 for lot in range(200)]
    members = subsets(range(1024), chosen, 64)
    overlaps = [len(one & other) for one, other in combinations(members, 2)]

    # 19,900 pairs.  Standard errors: of the mean sqrt(3.75 / 19900) = 0.014, of the variance about
    # 3.75 · sqrt(2 / 19900) = 0.038.  Four of each.
    assert fmean(overlaps) == pytest.approx(4, abs=4 * 0.014)
    assert 3.52 - 4 * 0.038 <= pvariance(overlaps) <= 3.75 + 4 * 0.038
    # P(binomial(64, 1/16) >= 20) is 3e-9, or 6e-5 for any of the pairs.
    assert max(overlaps) < 20


def test_neighbouring_lots_are_as_unrelated_as_distant_ones() -> None:
    # The same place in consecutive lots: a weak hash would show here first.
    members = subsets(range(1024), range(5, 16 * 2000, 16), 64)
    overlaps = [len(one & other) for one, other in pairwise(members)]

    # 1,999 pairs: standard errors sqrt(3.75 / 1999) = 0.043 and 3.75 · sqrt(2 / 1999) = 0.119.
    assert fmean(overlaps) == pytest.approx(4, abs=4 * 0.043)
    assert 3.52 - 4 * 0.119 <= pvariance(overlaps) <= 3.75 + 4 * 0.119


def test_the_load_of_a_failed_backend_spreads_over_the_fleet() -> None:
    # 1000 x 300 x 10: 62 clients of lots of 16 hold a backend, and each has 18 others on average:
    # 1,116 shares for 299 backends, 3.7 each.  A Poisson variable with that mean exceeds 15 for one
    # backend in a million.
    for failed in (0, 150, 299):
        shares: Counter[int] = Counter()
        for client in range(1000):
            subset = nested_subset(range(300), client, 10)
            if failed in subset:
                shares.update(x for x in subset if x != failed)
        assert max(shares.values()) <= 15
        assert len(shares) >= 280  # 299 · (1 - e^-3.7) = 292, standard deviation below 3


@pytest.mark.parametrize("fresh_index", [0, 299], ids=["first", "last"])
def test_a_subset_holds_one_backend_of_each_lot(fresh_index: int) -> None:
    # So that a deployment in index order takes out one of a subset at a time.
    lots = [x // 16 for x in nested_subset(range(300), fresh_index, 10)]

    assert lots == sorted(set(lots))


def with_holes(backends: int, holes: Iterable[int]) -> Fleet:
    missing = set(holes)
    return [None if x in missing else x for x in range(backends)]


@pytest.mark.parametrize("missing", [1, 5], ids=["one", "three tenths, rounded down"])
def test_missing_backends_are_not_replaced_while_seven_tenths_live(missing: int) -> None:
    # 304 = 19 · 16 backends: every subset has 19 slots, and 14 of 19 are 73.7 %.
    whole = nested_subset(range(304), 3, 10)

    assert nested_subset(with_holes(304, whole[:missing]), 3, 10) == whole[missing:]


def test_below_seven_tenths_the_next_level_fills_up() -> None:
    # 13 of 19 slots are 68.4 %: level 3 adds one of each of 19 lots of 16 backends.
    whole = nested_subset(range(304), 3, 10)
    wider = nested_subset(range(304), 3, 20)
    assert set(whole) < set(wider)
    holes = whole[:6]

    filled = nested_subset(with_holes(304, holes), 3, 10)

    assert filled == tuple(x for x in wider if x not in holes)
    assert len(filled) == 13 + 19


def test_exactly_seven_tenths_are_enough() -> None:
    whole = nested_subset(range(160), 3, 10)  # 10 slots
    assert len(whole) == 10

    assert nested_subset(with_holes(160, whole[:3]), 3, 10) == whole[3:]
    assert len(nested_subset(with_holes(160, whole[:4]), 3, 10)) == 6 + 10


def test_a_subset_without_any_backend_goes_down_as_far_as_it_must() -> None:
    # All that levels 4 and 3 hold is missing: level 2 (size 40) has the other half.
    eighth = nested_subset(range(304), 3, 20)
    quarter = nested_subset(range(304), 3, 40)

    filled = nested_subset(with_holes(304, eighth), 3, 10)

    assert filled == tuple(x for x in quarter if x not in eighth)


def test_where_few_are_left_every_client_takes_them_all() -> None:
    few = [7, 100, 101, 250, 299, 3, 42, 43, 180, 181, 260]  # 11, one more than asked for
    backends = [x if x in few else None for x in range(300)]

    for client in range(32):
        assert nested_subset(backends, client, 10) == tuple(sorted(few))


def test_no_more_than_the_size_asked_for_are_all_taken_even_if_enough_slots_live() -> None:
    # 17 of the client's 20 slots live, which would be enough; but 19 backends are fewer than 20.
    slots = nested_subset(range(40), 3, 20)
    others = [x for x in range(40) if x not in slots]
    existing = {*slots[3:], others[0], others[-1]}
    assert max(existing) == 39  # so that the level is the same with and without holes

    assert set(nested_subset(with_holes(40, set(range(40)) - existing), 3, 20)) == existing


def test_holes_at_the_end_are_no_part_of_the_fleet() -> None:
    padded: Fleet = [*range(300), *([None] * 200)]

    for client in range(32):
        assert nested_subset(padded, client, 10) == nested_subset(range(300), client, 10)
