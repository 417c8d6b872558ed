"""Figures 20-3 and 20-4: how many client tasks a backend gets when every client draws its subset.

SRE book, chapter 20, "A Subset Selection Algorithm: Random Subsetting".  A client of N backends
that draws n of them draws a given backend with probability n / N, whatever the others do.  So the
clients of one backend follow a binomial distribution exactly, and the book's numbers can be set
beside what chance allows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import final

from evenly.core.balancing.subset import random_subset

__all__ = ["RandomSubsets", "draw_subsets"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSubsets:
    """Hold what many draws gave: the connections of each backend, the least loaded first."""

    clients: int
    backends: int
    size: int
    seed: int
    draws: tuple[tuple[int, ...], ...]
    """That of `seed` first, then of the seeds after it."""

    @property
    def mean(self) -> float:
        """Return the connections of a backend on average."""
        return self.clients * self.size / self.backends

    @property
    def sigma(self) -> float:
        """Return the standard deviation of a backend's connections."""
        probability = self.size / self.backends
        return math.sqrt(self.clients * probability * (1.0 - probability))

    @property
    def leasts(self) -> list[int]:
        """Return the connections of each draw's least loaded backend."""
        return [draw[0] for draw in self.draws]

    @property
    def mosts(self) -> list[int]:
        """Return the connections of each draw's most loaded backend."""
        return [draw[-1] for draw in self.draws]

    def sigmas(self, connections: int) -> float:
        """Return how far from the mean so many connections are, in standard deviations."""
        return (connections - self.mean) / self.sigma

    def chance_at_most(self, connections: int) -> float:
        """Return the probability that one backend has so many connections or fewer."""
        p = self.size / self.backends
        return math.fsum(
            math.comb(self.clients, k) * p**k * (1.0 - p) ** (self.clients - k)
            for k in range(connections + 1)
        )

    def chance_least_at_most(self, connections: int) -> float:
        """Return about how likely a draw's least loaded backend has so few.

        About, because the backends' counts are not quite independent: their sum is fixed.
        """
        return 1.0 - (1.0 - self.chance_at_most(connections)) ** self.backends

    def chance_most_at_most(self, connections: int) -> float:
        """Return about how likely even a draw's most loaded backend has no more than that."""
        return self.chance_at_most(connections) ** self.backends


def draw_subsets(
    seed: int, *, size: int, clients: int = 300, backends: int = 300, draws: int = 200
) -> RandomSubsets:
    """Let every client draw its subset, and count connections; again for the seeds that follow."""
    found = []
    for each in range(seed, seed + draws):
        counts: Counter[int] = Counter()
        for client in range(clients):
            counts.update(random_subset(range(backends), client, size, seed=each))
        found.append(tuple(sorted(counts[backend] for backend in range(backends))))
    return RandomSubsets(
        clients=clients, backends=backends, size=size, seed=seed, draws=tuple(found)
    )
