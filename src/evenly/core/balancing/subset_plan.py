"""Work out what a subset algorithm does to a fleet: how even it is, and what changes cost.

Source: SRE book, chapter 20, "Picking the Right Subset": load should be uniform, because a backend
that gets 10 % too much makes the whole fleet 10 % larger; and restarts and resizes should reopen
few connections.  Churn is measured in connections opened, divided by the connections that there
were before.  A connection that returns to a restarted backend counts: the old one died with the
process.

How even the subsets are is always counted over all client tasks.  Churn is an average over client
tasks, so for large fleets it is measured on the first of them, in whole lots where the algorithm
has lots; `SubsetPlan.churn_clients` says on how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from evenly.core import check
from evenly.core.balancing.nested_subset import nested_level
from evenly.core.balancing.subset import SUBSET_ALGORITHMS, SubsetFunction, random_subset
from evenly.core.balancing.subset_input import MAX_SUBSET_SIZE
from evenly.errors import ConfigError

__all__ = [
    "MAX_SEEDS",
    "MAX_TASKS",
    "Balance",
    "Churn",
    "Progress",
    "SubsetPlan",
    "best_plan",
    "count_subsets",
    "plan_subsets",
]

MAX_TASKS = 100_000
MAX_SEEDS = 1_000

# Steps done, and steps in all.
Progress = Callable[[int, int], None]

_Fleet = Sequence[int | None]
_Subset = tuple[int, ...]

_RESIZE_RATIO = 0.1
_ROLL_RATIO = 0.05
_RESTARTS = 6

# About 3 s for the slowest algorithm, rendezvous, which mixes a hash at every look.
_LOOKS_PER_CHANGE = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Say how many client tasks each backend has, and how large the subsets are."""

    counts: tuple[int, ...]
    """Clients of each backend, by index; with several seeds, one seed after the other."""
    least: int
    most: int
    mean: float
    smallest_subset: int
    largest_subset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Say which share of all connections each kind of change opens."""

    add_backend: float
    """One backend more, at the end of the list."""
    remove_backend: float
    """One backend less, at the end of the list."""
    restart_backend: float
    """One backend goes missing and comes back; the mean of six, spread over the list."""
    grow_backends: float
    """10 % more backends."""
    shrink_backends: float
    """10 % fewer backends."""
    grow_clients: float
    """10 % more client tasks; the connections of the new ones are no churn."""
    shrink_clients: float
    """10 % fewer client tasks."""
    rolling_restart: float
    """All backends in index order, 5 % at a time: as one batch returns, the next goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetPlan:
    """Say what one algorithm does to one fleet."""

    algorithm: str
    clients: int
    backends: int
    size: int
    seeds: int
    balance: Balance
    churn: Churn
    churn_clients: Mapping[str, int]
    """Client tasks on which each figure of `churn` was measured."""

    @property
    def is_sampled(self) -> bool:
        """Whether some churn was measured on fewer client tasks than there are."""
        return min(self.churn_clients.values()) < self.clients


def plan_subsets(
    algorithm: str,
    *,
    clients: int,
    backends: int,
    size: int,
    seeds: int = 1,
    progress: Progress | None = None,
    looks_per_change: int = _LOOKS_PER_CHANGE,
) -> SubsetPlan:
    """Measure one algorithm, by its name in `SUBSET_ALGORITHMS`, on one fleet.

    Seeds mean something to `random` only: its balance is then that of all seeds together, the least
    of the least and the most of the most.  Churn is that of the first seed.  To work out one subset
    of N backends takes N looks; beyond `looks_per_change` for one kind of change, its churn is
    measured on fewer client tasks.
    """
    _check_plan(algorithm, clients, backends, size, seeds)
    functions: list[SubsetFunction] = [SUBSET_ALGORITHMS[algorithm]]
    if algorithm == "random":
        functions = [partial(random_subset, seed=seed) for seed in range(seeds)]
    changes = _changes(backends)
    samples = _samples(algorithm, clients, backends, size, looks_per_change)
    steps = _Steps(progress, _step_count(clients, len(functions), changes, samples))
    balance, before = _balance(functions, clients, backends, size, steps)
    churn = {
        name: _opened_ratio(functions[0], before[: samples[name]], walks, size, steps)
        for name, walks in changes.items()
    }
    return SubsetPlan(
        algorithm=algorithm,
        clients=clients,
        backends=backends,
        size=size,
        seeds=len(functions),
        balance=balance,
        # A subset function is not told the number of clients, so those that stay keep everything.
        churn=Churn(**churn, grow_clients=0.0, shrink_clients=0.0),
        churn_clients={**samples, "grow_clients": clients, "shrink_clients": clients},
    )


def count_subsets(algorithm: str, *, clients: int, backends: int, size: int, seeds: int = 1) -> int:
    """Return how many subsets `plan_subsets` works out, to tell how long it will take."""
    _check_plan(algorithm, clients, backends, size, seeds)
    samples = _samples(algorithm, clients, backends, size, _LOOKS_PER_CHANGE)
    draws = seeds if algorithm == "random" else 1
    return _step_count(clients, draws, _changes(backends), samples)


def best_plan(plans: Sequence[SubsetPlan]) -> SubsetPlan:
    """Return the most even plan; of those that are as even as can be, the one with least churn.

    Clients per backend that differ by one are as even as can be: most numbers do not divide.  Of
    plans that do the same, as all do where every client holds all backends, it is `nested`, which
    stays the best when the fleet grows.
    """

    def badness(plan: SubsetPlan) -> tuple[int, float, float, bool]:
        spread = max(1, plan.balance.most - plan.balance.least)
        churn = plan.churn
        return spread, churn.rolling_restart, churn.restart_backend, plan.algorithm != "nested"

    return min(plans, key=badness)


def _check_plan(algorithm: str, clients: int, backends: int, size: int, seeds: int) -> None:
    if algorithm not in SUBSET_ALGORITHMS:
        names = ", ".join(SUBSET_ALGORITHMS)
        raise ConfigError(f"algorithm must be one of {names}, not {algorithm!r}")
    check.count("clients", clients, 1, MAX_TASKS)
    check.count("backends", backends, 1, MAX_TASKS)
    check.count("size", size, 1, MAX_SUBSET_SIZE)
    check.count("seeds", seeds, 1, MAX_SEEDS)


class _Steps:
    """Count the subsets worked out, and tell whoever waits."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _balance(
    functions: Sequence[SubsetFunction], clients: int, backends: int, size: int, steps: _Steps
) -> tuple[Balance, list[_Subset]]:
    """Return the balance over all functions, and the subsets that the first one gives."""
    fleet = range(backends)
    counts: list[int] = []
    sizes: set[int] = set()
    first: list[_Subset] = []
    for function in functions:
        of_backend = [0] * backends
        for client in range(clients):
            subset = function(fleet, client, size)
            sizes.add(len(subset))
            for x in subset:
                of_backend[x] += 1
            if function is functions[0]:
                first.append(subset)
            steps.add()
        counts += of_backend
    balance = Balance(
        counts=tuple(counts),
        least=min(counts),
        most=max(counts),
        mean=sum(counts) / len(counts),
        smallest_subset=min(sizes),
        largest_subset=max(sizes),
    )
    return balance, first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Be the fleets that follow the full one, and whether it is back at the end."""

    fleets: Sequence[_Fleet]
    returns: bool = False


def _changes(backends: int) -> dict[str, list[_Walk]]:
    """Return, for each kind of change, the walks that show it."""
    resize = max(1, round(_RESIZE_RATIO * backends))
    # Spread, because what closing a hole costs may depend on where it is; each once, if few.
    restarted = sorted({(2 * part + 1) * backends // (2 * _RESTARTS) for part in range(_RESTARTS)})
    batch = math.ceil(_ROLL_RATIO * backends)
    holes = [_without(backends, start, start + batch) for start in range(0, backends, batch)]
    return {
        "add_backend": [_Walk(fleets=[range(backends + 1)])],
        "remove_backend": [_Walk(fleets=[range(backends - 1)])],
        "restart_backend": [
            _Walk(fleets=[_without(backends, x, x + 1)], returns=True) for x in restarted
        ],
        "grow_backends": [_Walk(fleets=[range(backends + resize)])],
        "shrink_backends": [_Walk(fleets=[range(backends - resize)])],
        "rolling_restart": [_Walk(fleets=holes, returns=True)],
    }


def _fleet_count(walks: Sequence[_Walk]) -> int:
    return sum(len(walk.fleets) for walk in walks)


def _samples(
    algorithm: str, clients: int, backends: int, size: int, looks_per_change: int
) -> dict[str, int]:
    """Return, for each kind of change, on how many client tasks to measure it."""
    lot = _client_lot(algorithm, backends, size)
    return {
        name: _sample(clients, lot, looks_per_change // (backends * _fleet_count(walks)))
        for name, walks in _changes(backends).items()
    }


def _step_count(
    clients: int, draws: int, changes: Mapping[str, Sequence[_Walk]], samples: Mapping[str, int]
) -> int:
    churn = sum(samples[name] * _fleet_count(walks) for name, walks in changes.items())
    return clients * draws + churn


def _without(backends: int, start: int, stop: int) -> _Fleet:
    return [None if start <= x < stop else x for x in range(backends)]


def _opened_ratio(
    function: SubsetFunction,
    before: Sequence[_Subset],
    walks: Sequence[_Walk],
    size: int,
    steps: _Steps,
) -> float:
    """Return the connections opened in a walk, on average, of those that there were before."""
    opened = 0
    for walk in walks:
        held = before
        for fleet in walk.fleets:
            # Fleet by fleet, not client by client: clients of one round share a shuffled list.
            now = list(_subsets(function, fleet, len(held), size, steps))
            opened += _opened(held, now)
            held = now
        if walk.returns:
            opened += _opened(held, before)
    return opened / (len(walks) * sum(len(subset) for subset in before))


def _opened(before: Sequence[_Subset], after: Sequence[_Subset]) -> int:
    return sum(len(set(new).difference(old)) for old, new in zip(before, after, strict=True))


def _subsets(
    function: SubsetFunction, fleet: _Fleet, clients: int, size: int, steps: _Steps
) -> Iterator[_Subset]:
    for client in range(clients):
        yield function(fleet, client, size)
        steps.add()


def _client_lot(algorithm: str, backends: int, size: int) -> int:
    """Return how many consecutive client tasks cover the backends evenly, as far as any do."""
    lots = {
        "deterministic": max(1, backends // size),
        "rocksteadier": 10,
        "nested": 1 << nested_level(backends, size),
    }
    return lots.get(algorithm, 1)


def _sample(clients: int, lot: int, affordable: int) -> int:
    """Return how many client tasks to measure: all, or as many whole lots as are affordable."""
    return min(clients, max(1, affordable // lot) * lot)
