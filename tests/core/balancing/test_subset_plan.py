"""The planner's arithmetic: who counts as loaded, and what counts as opened."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest

from evenly.core.balancing.subset import SUBSET_ALGORITHMS, deterministic_subset
from evenly.core.balancing.subset_plan import (
    SubsetPlan,
    best_plan,
    count_subsets,
    plan_subsets,
)
from evenly.errors import ConfigError

NAMES = "random, deterministic, rendezvous, rocksteadier, nested"


@pytest.fixture(scope="module")
def plans() -> dict[str, SubsetPlan]:
    """All algorithms at the shape of the table in `docs/subset.md`."""
    # Rendezvous mixes a hash at every look, and is slow: 360,000 looks pay for a roll of 60 client
    # tasks (60 · 20 batches · 300) and for restarts of 200 (200 · 6 · 300).  Its
    # client tasks choose without regard to each other, so that any of them are a fair sample.
    looks = {"rendezvous": 360_000}
    return {
        name: plan_subsets(
            name,
            clients=300,
            backends=300,
            size=10,
            looks_per_change=looks.get(name, 10_000_000),
        )
        for name in SUBSET_ALGORITHMS
    }


def test_balance_counts_the_clients_of_each_backend() -> None:
    balance = plan_subsets("deterministic", clients=10, backends=12, size=3).balance

    # The book's example: 10 clients x 3 backends = 30 connections for 12 backends.
    assert sorted(balance.counts) == [2] * 6 + [3] * 6
    assert (balance.least, balance.most, balance.mean) == (2, 3, 2.5)
    assert (balance.smallest_subset, balance.largest_subset) == (3, 3)


def test_balance_over_several_seeds_takes_the_extremes() -> None:
    single = plan_subsets("random", clients=50, backends=60, size=5).balance
    several = plan_subsets("random", clients=50, backends=60, size=5, seeds=8)

    assert several.seeds == 8
    assert several.balance.counts[:60] == single.counts
    assert len(several.balance.counts) == 8 * 60
    assert several.balance.least == min(several.balance.counts) <= single.least
    assert several.balance.most == max(several.balance.counts) > single.most
    assert several.balance.mean == single.mean == 50 * 5 / 60


def test_seeds_mean_nothing_to_the_others() -> None:
    assert plan_subsets("nested", clients=20, backends=60, size=5, seeds=8).seeds == 1


def test_the_figures_of_the_docs_even_ones(plans: dict[str, SubsetPlan]) -> None:
    for name in ("deterministic", "rocksteadier"):
        assert (plans[name].balance.least, plans[name].balance.most) == (10, 10)
    # 300 clients = 18 lots of 16 and 12 clients more.
    assert (plans["nested"].balance.least, plans["nested"].balance.most) == (18, 19)


@pytest.mark.parametrize("name", ["random", "rendezvous"])
def test_the_figures_of_the_docs_uneven_ones(plans: dict[str, SubsetPlan], name: str) -> None:
    # Binomial with mean 10 and standard deviation 3.1: the largest of 300 lies 2.5 to 4.5 of those
    # above the mean.  One draw of a first draft: 2.0 to 2.3 times it.
    assert 18 <= plans[name].balance.most <= 24


@pytest.mark.parametrize("name", ["random", "rendezvous", "rocksteadier"])
def test_the_figures_of_the_docs_replacing_ones(plans: dict[str, SubsetPlan], name: str) -> None:
    churn = plans[name].churn
    # Expected: 300 · 10 / 301 = 10 connections of 3,000 for one more, with a standard deviation of
    # about sqrt(10); one restart is twice that; the mean of six restarts varies less, even if only
    # 200 of the 300 client tasks are looked at: by sqrt(300 / 200) more, which leaves 2.4 of them.
    assert churn.add_backend == pytest.approx(1 / 301, abs=3 * 10**0.5 / 3000)
    assert churn.remove_backend == pytest.approx(1 / 300, abs=3 * 10**0.5 / 3000)
    assert churn.restart_backend == pytest.approx(2 / 300, abs=3 * 2 * (10 / 6) ** 0.5 / 3000)
    assert 0.08 <= churn.grow_backends <= 0.1
    assert 1.65 <= churn.rolling_restart <= 1.75  # a draft: 1.7


def test_the_figures_of_the_docs_deterministic(plans: dict[str, SubsetPlan]) -> None:
    churn = plans["deterministic"].churn
    # A draft: 38 %.  It depends on where the shuffles of a round part, so 10 rounds vary: 27 to
    # 99 % for one backend more or less.
    assert 0.27 <= churn.add_backend <= 0.5
    # 299 backends make 29 subsets instead of 30: clients keep what they share by chance, 10 / 300.
    assert churn.remove_backend == pytest.approx(1 - 10 / 300, abs=0.05)
    assert churn.restart_backend == pytest.approx(2 * (1 - 10 / 300), abs=0.05)  # a draft: 190 %
    # All of it as the first batch goes and as the last returns; in between each of the 19 other
    # batches of 15 takes the places of the one before: 19 · 15 / 285 = 1.
    assert churn.rolling_restart == pytest.approx(2 * (1 - 10 / 300) + 1, abs=0.05)  # a draft: 2.9


def test_the_figures_of_the_docs_nested(plans: dict[str, SubsetPlan]) -> None:
    churn = plans["nested"].churn
    assert churn.add_backend <= 1.1 / 300
    assert churn.remove_backend == 0
    # A restarted backend has 18 or 19 clients, of 18.75 · 300 connections.
    connections = sum(plans["nested"].balance.counts)
    assert connections == pytest.approx(18.75 * 300, abs=5)
    assert 18 / connections <= churn.restart_backend <= 19 / connections
    # 330 backends are beyond 10 · 32: subsets halve, and a new backend gets 300 / 32 = 9.4 clients.
    assert churn.grow_backends == pytest.approx(30 * 9.375 / 5625, abs=30 / 5625)
    assert churn.shrink_backends == 0
    assert churn.rolling_restart == 1


def test_the_number_of_clients_moves_nobody(plans: dict[str, SubsetPlan]) -> None:
    for plan in plans.values():
        assert plan.churn.grow_clients == plan.churn.shrink_clients == 0


def test_a_restart_counts_the_connections_that_return() -> None:
    # Everybody holds all of 4 backends: as one of them goes nothing can be opened, and as it comes
    # back each client opens 1 connection of 4.
    for name in SUBSET_ALGORITHMS:
        plan = plan_subsets(name, clients=3, backends=4, size=20)
        assert plan.churn.restart_backend == 1 / 4
        assert plan.churn.rolling_restart == 1


def test_a_roll_goes_from_batch_to_batch() -> None:
    # 40 backends, 2 at a time: the next batch goes as the last one returns.
    churn = plan_subsets("deterministic", clients=8, backends=40, size=10).churn

    full: list[int | None] = list(range(40))
    fleets = [
        [None if start <= x < start + 2 else x for x in range(40)] for start in range(0, 40, 2)
    ]
    opened = 0
    for client in range(8):
        subsets = [set(deterministic_subset(fleet, client, 10)) for fleet in (full, *fleets, full)]
        opened += sum(len(after - before) for before, after in pairwise(subsets))
    assert churn.rolling_restart == opened / (8 * 10)


def test_one_backend_can_go_and_come() -> None:
    for name in SUBSET_ALGORITHMS:
        churn = plan_subsets(name, clients=3, backends=1, size=20).churn
        assert asdict(churn) == {
            "add_backend": 1.0,
            "remove_backend": 0.0,
            "restart_backend": 1.0,
            "grow_backends": 1.0,
            "shrink_backends": 0.0,
            "grow_clients": 0.0,
            "shrink_clients": 0.0,
            "rolling_restart": 1.0,
        }


def test_a_small_fleet_is_measured_whole(plans: dict[str, SubsetPlan]) -> None:
    assert [name for name, plan in plans.items() if plan.is_sampled] == ["rendezvous"]
    assert set(plans["nested"].churn_clients.values()) == {300}
    assert plans["rendezvous"].churn_clients["rolling_restart"] == 60


def test_a_large_fleet_is_sampled_in_whole_lots_and_says_so() -> None:
    # The roll takes 20 fleets of 200 backends, 4,000 looks a client, so that 200,000 pay for 50
    # clients of 100; the lots are of 8 (200 / 20 = 10), so 48 are measured.  One backend more takes
    # 200 looks a client: all are measured.
    plan = plan_subsets("nested", clients=100, backends=200, size=20, looks_per_change=200_000)

    assert plan.is_sampled
    assert plan.churn_clients["rolling_restart"] == 48
    assert plan.churn_clients["add_backend"] == 100
    assert plan.churn.rolling_restart == 1
    # Balance is of all clients all the same: 100 / 8 = 12.5 clients per backend.
    assert (plan.balance.least, plan.balance.most) == (12, 13)


@pytest.mark.parametrize(
    ("name", "sample"),
    [("random", 1), ("deterministic", 10), ("rocksteadier", 10), ("nested", 8)],
)
def test_a_sample_is_at_least_one_lot(name: str, sample: int) -> None:
    plan = plan_subsets(name, clients=100, backends=200, size=20, looks_per_change=1)

    assert plan.churn_clients["rolling_restart"] == sample


def test_progress_counts_every_subset() -> None:
    seen: list[tuple[int, int]] = []
    plan_subsets("nested", clients=7, backends=40, size=5, progress=lambda *step: seen.append(step))

    # 7 clients x (1 to begin with + 1 more + 1 less + 6 restarts + grown + shrunk + 20 batches)
    assert [done for done, _ in seen] == list(range(1, 7 * 31 + 1))
    assert {of for _, of in seen} == {7 * 31}
    assert count_subsets("nested", clients=7, backends=40, size=5) == 7 * 31


def test_every_seed_is_counted_for_random_only() -> None:
    # 4 seeds: 3 more times the 7 clients.
    for name, count in (("random", 7 * 31 + 3 * 7), ("nested", 7 * 31)):
        assert count_subsets(name, clients=7, backends=40, size=5, seeds=4) == count


def test_the_best_is_even_first_and_quiet_second(plans: dict[str, SubsetPlan]) -> None:
    assert best_plan(list(plans.values())).algorithm == "nested"
    # As even, but a rolling restart opens 1.7 instead of 2.98.
    assert best_plan([plans["deterministic"], plans["rocksteadier"]]).algorithm == "rocksteadier"
    # Quieter, but uneven.
    assert best_plan([plans["deterministic"], plans["random"]]).algorithm == "deterministic"


def test_of_plans_that_do_the_same_the_best_is_nested() -> None:
    same = [plan_subsets(name, clients=3, backends=4, size=20) for name in SUBSET_ALGORITHMS]

    assert best_plan(same).algorithm == "nested"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients": 0}, "clients must be a whole number in [1, 100000], not 0"),
        ({"backends": 0}, "backends must be a whole number in [1, 100000], not 0"),
        ({"size": 10_001}, "size must be a whole number in [1, 10000], not 10001"),
        ({"seeds": 0}, "seeds must be a whole number in [1, 1000], not 0"),
        ({"algorithm": "ring"}, f"algorithm must be one of {NAMES}, not 'ring'"),
    ],
)
def test_wrong_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"algorithm": "nested", "clients": 3, "backends": 3, "size": 3}

    with pytest.raises(ConfigError) as refusal:
        plan_subsets(**right | wrong)

    assert str(refusal.value) == message
