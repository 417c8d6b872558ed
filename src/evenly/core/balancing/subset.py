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

import math
import random
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from evenly.core.balancing.nested_subset import nested_subset
from evenly.core.balancing.rocksteadier_subset import rocksteadier_subset
from evenly.core.balancing.splitmix import FIRST_FACTOR, MASK, SECOND_FACTOR, mix
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

_UPPER_HALF = bytes(8)  # of a lane: see `_mixed`


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
    return _smallest(backends, subset_size, numbers, limit=1)


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
    A68.  With mix, SplitMix64's finalizer, the hash of client c and backend b is

        mix(mix(c + 1) XOR h(b))

    where h(b) is BLAKE2b of `str(b)` in UTF-8 with a digest of 8 bytes, read as a little-endian
    integer.  So `str(b)` is the backend's identity, wherever in the list it stands; equal hashes
    are ordered by position.  Text is hashed once for all client tasks, because a hash of text for
    each pair would be ten times as slow; mix is a bijection in which every bit of either side
    changes every bit of the result with probability 1/2.

    Size rule: exactly `subset_size`, or all backends where fewer exist.  A missing backend is
    replaced by the one with the next larger hash.

    Do not use it where both sides have indices: it is as uneven as random subsets, because client
    tasks still choose without regard to each other.  It is for lists without them (plain DNS).
    """
    check_subset_input(client_index, subset_size)
    existing = [backend for backend in backends if backend is not None]
    hashes = _mixed(_packed_hashes(tuple(map(str, existing))), mix(client_index + 1), len(existing))
    return _smallest(existing, subset_size, hashes, limit=1 << 64)


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
    backends: Sequence[T | None], subset_size: int, keys: Sequence[float], *, limit: int
) -> tuple[T, ...]:
    """Return the existing backends with the smallest keys; of equal keys, the first in the list.

    Keys are uniform in [0, limit), so that a bound tells which of them can be among the smallest.
    """
    # The number of keys below the bound has a standard deviation of at most the root of its mean:
    # six of them more than needed, and it is nearly never short.  If it is, all are sorted.
    enough = subset_size + 6 * math.sqrt(subset_size) + 6
    bound = limit * enough / max(1, len(keys))
    order = [x for x, key in enumerate(keys) if key < bound and backends[x] is not None]
    if len(order) < subset_size:
        order = [x for x, backend in enumerate(backends) if backend is not None]
    order.sort(key=keys.__getitem__)
    return tuple(backend for x in order[:subset_size] if (backend := backends[x]) is not None)


# One list: planning for many clients hashes the text of each backend once.
@lru_cache(maxsize=1)
def _packed_hashes(texts: tuple[str, ...]) -> int:
    """Return the 64-bit hashes of the texts in one integer, each in a lane of 128 bits."""
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return int.from_bytes(b"".join(digest + _UPPER_HALF for digest in digests), "little")


def _mixed(packed: int, client_hash: int, count: int) -> Sequence[int]:
    """Return `mix(client_hash ^ hash)` for each of `count` packed hashes.

    It is `mix` written out for all lanes at once, three times as fast as for one after the other.
    A product of 64 by 64 bits just fills a lane, and what a shift brings in from the next lane
    lands in the upper half, which is masked out.
    """
    ones = _ones(count)
    lower = ones * MASK
    z = packed ^ (ones * client_hash)
    z = (((z ^ (z >> 30)) & lower) * FIRST_FACTOR) & lower
    z = (((z ^ (z >> 27)) & lower) * SECOND_FACTOR) & lower
    z ^= z >> 31
    return struct.unpack(f"<{2 * count}Q", z.to_bytes(16 * count, "little"))[::2]


@lru_cache(maxsize=1)
def _ones(count: int) -> int:
    """Return an integer with a 1 in each of `count` lanes."""
    return int.from_bytes((b"\1" + bytes(7) + _UPPER_HALF) * count, "little")


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
