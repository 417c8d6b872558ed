"""Choose which backends a client task connects to: the subset functions.

Source: SRE book, chapter 20, "Limiting the Connections Pool with Subsetting".  A client task that
connected to every backend would spend memory and health checks on connections that it hardly uses,
so it takes a subset; and because all client tasks choose alone, a pure function of the backend
list, the client's index and the size asked for has to make the choices of all fit together.

Every function has the form of `SubsetFunction`.  An item of `backends` that is `None` is a hole: an
index whose backend is missing now.  Indices have to last, so a hole is not closed by moving the
others up.

Client tasks on different versions of Python have to agree, and so do two runs of one.  Hence no
`hash()`, which is salted per process, and nothing of `random` but the sequence of
`random.Random(text).random()`: it is what Python promises to keep, while `shuffle` and `sample`
may change the way they draw.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from evenly.core.balancing.nested_subset import nested_subset
from evenly.core.balancing.rocksteadier_subset import rocksteadier_subset
from evenly.core.balancing.subset_input import check_subset_input

__all__ = [
    "SUBSET_ALGORITHMS",
    "SubsetFunction",
    "deterministic_subset",
    "nested_subset",
    "random_subset",
    "rendezvous_subset",
    "rocksteadier_subset",
]

T = TypeVar("T")


class SubsetFunction(Protocol):
    """Say which backends belong to one client task."""

    def __call__(
        self, backends: Sequence[T | None], client_index: int, subset_size: int
    ) -> tuple[T, ...]:
        """Return the subset, without holes or duplicates; of no backends, an empty one."""
        ...


def random_subset(
    backends: Sequence[T | None], client_index: int, subset_size: int, *, seed: int = 0
) -> tuple[T, ...]:
    """Return the first existing backends of a list that each client shuffles once for itself.

    Source: SRE book, chapter 20, "A Subset Selection Algorithm: Random Subsetting".  Every index,
    holes included, gets a number u_x drawn with seed (`seed`, `client_index`); the backends stand
    in the order of u_x.  One more backend draws one more number, and disturbs nobody else.

    Size rule: exactly `subset_size`, or all backends where fewer exist.  A missing backend is
    replaced by the next on the list.

    Do not use it to balance load: with 30 of 300 backends the most loaded one has 150 % of the
    mean, and the fleet must be provisioned for it.  It is here to show that.
    """
    check_subset_input(client_index, subset_size)
    draw = random.Random(f"random_subset/{seed}/{client_index}").random
    numbers = [draw() for _ in backends]
    return _smallest(backends, subset_size, numbers)


def deterministic_subset(
    backends: Sequence[T | None], client_index: int, subset_size: int
) -> tuple[T, ...]:
    """Return the client's part of a list that its whole round of clients shuffles alike.

    Source: SRE book, chapter 20, "A Subset Selection Algorithm: Deterministic Subsetting":

        subset_count = len(backends) / subset_size
        # Group clients into rounds; each round uses the same shuffled list:
        round = client_id / subset_count
        random.seed(round)
        random.shuffle(backends)
        # The subset id corresponding to the current client:
        subset_id = client_id % subset_count
        start = subset_id * subset_size
        return backends[start:start + subset_size]

    The book knows no holes: they are dropped first.  What does not divide is spread over the
    subsets ("we allow a few subsets to be slightly larger than others"): with N backends that
    exist, the first N mod subset_count of them are one larger.  So every round covers every backend
    once, and clients per backend differ by at most one.

    Size rule: floor(N / subset_count) or ceil(N / subset_count), at least `subset_size` and less
    than twice that; all backends where N < 2 * subset_size.

    Do not use it where backends come and go: one more or less changes the shuffle, the bounds and
    often the number of subsets, and 30 to 100 % of all connections are opened anew.
    """
    check_subset_input(client_index, subset_size)
    existing = [backend for backend in backends if backend is not None]
    if len(existing) <= subset_size:
        return tuple(existing)
    subset_count = len(existing) // subset_size
    round_index, subset_id = divmod(client_index, subset_count)
    size, larger_subsets = divmod(len(existing), subset_count)
    start = subset_id * size + min(subset_id, larger_subsets)
    stop = start + size + (subset_id < larger_subsets)
    order = _shuffled(len(existing), f"deterministic_subset/{round_index}")
    return tuple(existing[x] for x in order[start:stop])


def rendezvous_subset(
    backends: Sequence[T | None], client_index: int, subset_size: int
) -> tuple[T, ...]:
    """Return the backends whose hash with the client's index is smallest, smallest first.

    Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996), as in gRFC
    A68.  The hash is 64 bits of BLAKE2b over "client_index/backend", so that `str(backend)` is the
    backend's identity, wherever in the list it stands; equal hashes are ordered by position.

    Size rule: exactly `subset_size`, or all backends where fewer exist.  A missing backend is
    replaced by the one with the next larger hash.

    Do not use it where both sides have indices: it is as uneven as random subsets, because client
    tasks still choose without regard to each other.  It is for lists without them (plain DNS).
    """
    check_subset_input(client_index, subset_size)
    existing = [backend for backend in backends if backend is not None]
    hashes = [
        blake2b(f"{client_index}/{backend}".encode(), digest_size=8).digest()
        for backend in existing
    ]
    return _smallest(existing, subset_size, hashes)


SUBSET_ALGORITHMS: Final[Mapping[str, SubsetFunction]] = MappingProxyType(
    {
        "random": random_subset,
        "deterministic": deterministic_subset,
        "rendezvous": rendezvous_subset,
        "rocksteadier": rocksteadier_subset,
        "nested": nested_subset,
    }
)


def _smallest(
    backends: Sequence[T | None], subset_size: int, keys: Sequence[float] | Sequence[bytes]
) -> tuple[T, ...]:
    """Return the existing backends with the smallest keys; of equal keys, the first in the list."""
    existing = [x for x, backend in enumerate(backends) if backend is not None]
    order = sorted(existing, key=keys.__getitem__)[:subset_size]
    return tuple(backend for x in order if (backend := backends[x]) is not None)


# One list: the clients of a round share it, so that planning for all of them shuffles once a round.
@lru_cache(maxsize=1)
def _shuffled(count: int, seed: str) -> Sequence[int]:
    """Return 0 ... count - 1 in Fisher and Yates's order, walking as `random.shuffle` does.

    It begins at the end and draws just as many bits as the bound has, again when they are too many;
    so one more backend disturbs as much as it would in the book's code.
    """
    draw = random.Random(seed).random
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        span = 1 << (last + 1).bit_length()
        other = int(draw() * span)
        while other > last:
            other = int(draw() * span)
        order[last], order[other] = order[other], order[last]
    return order
