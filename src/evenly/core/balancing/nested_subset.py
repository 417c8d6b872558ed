"""Choose subsets that are even, reopen next to nothing, and halve when the fleet doubles.

Source: ours.  It keeps what the book asks of a subset algorithm (SRE book, chapter 20, "A Subset
Selection Algorithm: Deterministic Subsetting") and drops what the book's own answer costs, which is
that one backend more or less reshuffles the whole list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from evenly.core.balancing.splitmix import FIRST_FACTOR, GOLDEN, MASK, SECOND_FACTOR, mix, output
from evenly.core.balancing.subset_input import check_subset_input

__all__ = ["nested_level", "nested_subset"]

T = TypeVar("T")

# Replacing a missing backend costs connections and evenness, twice: when it goes and when it comes
# back.  A subset that has lost less than a third still spreads its load well enough to wait.
_ENOUGH_RATIO = 0.7


def nested_subset(
    backends: Sequence[T | None], client_index: int, subset_size: int
) -> tuple[T, ...]:
    """Return the backends whose index agrees with the client's in k hashed bits, in index order.

    With N the highest index of an existing backend plus one, and lots of L = 2^k client tasks and
    backends, where 2^k is the largest power of two that is at most N / subset_size, client c holds
    backend x exactly when for every bit i < k

        c_i XOR x_i XOR f_i(c >> (i + 1), x >> (i + 1)) = 0

    f_i is one bit of a stable hash.  Read from the top, the bits leave exactly one x of each lot of
    backends; so every lot of client tasks covers every backend once, and clients per backend differ
    by at most one, whatever their number.  Level k + 1 only adds a condition: a fleet that doubles
    makes each client drop half of its connections and open none.

    Size rule: without holes every subset has floor(N / L) or ceil(N / L) backends, hence at least
    `subset_size` and at most twice that.  A missing backend is not replaced while 70 % of the
    subset's slots are filled; below that the subset takes in what level k - 1 adds, and so on down
    to all backends.  Where no more than `subset_size` backends exist, they are the subset.

    Do not use it where client tasks or backends have no dense, lasting indices (`rendezvous_subset`
    needs none), nor where the fleet hovers around subset_size * 2^k: subsets double each time that
    it shrinks below.  `evenly.core.balancing.subset_advice.recommend` keeps clear of that.
    """
    check_subset_input(client_index, subset_size)
    existing = [backend for backend in backends if backend is not None]
    if len(existing) <= subset_size:
        return tuple(existing)
    backend_count = len(backends)
    while backends[backend_count - 1] is None:
        backend_count -= 1
    level = nested_level(backend_count, subset_size)
    slots = _slots(client_index, level, backend_count)
    members = _existing_of(backends, slots)
    enough = _ENOUGH_RATIO * len(slots)
    while len(members) < enough and level > 0:
        level -= 1
        members = _existing_of(backends, _slots(client_index, level, backend_count))
    return tuple(members)


def nested_level(backend_count: int, subset_size: int) -> int:
    """Return k, the largest with 2^k <= backend_count / subset_size, or 0 where there is none."""
    return max(1, backend_count // subset_size).bit_length() - 1


def _slots(client_index: int, level: int, backend_count: int) -> list[int]:
    """Return the indices that belong to the client at this level, one in each lot of 2^level."""
    prefixes: Sequence[int] = range(-(-backend_count >> level))
    for i in range(level - 1, -1, -1):
        # f_i(c >> (i + 1), x) is the top bit of output x of the generator with this seed.  The
        # loop below is `output(seed, x) >> 63` written out, because a call costs as much as it.
        start = output(mix(client_index >> (i + 1)), i) + GOLDEN
        client_bit = (client_index >> i) & 1
        longer = []
        for x in prefixes:
            z = (start + x * GOLDEN) & MASK
            z = ((z ^ (z >> 30)) * FIRST_FACTOR) & MASK
            z = (z ^ (z >> 27)) * SECOND_FACTOR
            longer.append(2 * x + (((z >> 63) & 1) ^ client_bit))
        prefixes = longer
    # Only the last lot can reach beyond the fleet, with its one index.
    return [x for x in prefixes if x < backend_count]


def _existing_of(backends: Sequence[T | None], indices: Sequence[int]) -> list[T]:
    return [backend for x in indices if (backend := backends[x]) is not None]
