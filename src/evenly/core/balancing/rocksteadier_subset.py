"""Choose subsets as Google's Rocksteadier does, as far as its public description tells.

Source: "Reinventing Backend Subsetting at Google" (ACM Queue, 2022), reconstructed from public
summaries; a peer to compare `nested_subset` with, not a port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from evenly.core.balancing.splitmix import mix, output
from evenly.core.balancing.subset_input import check_subset_input

__all__ = ["rocksteadier_subset"]

T = TypeVar("T")

_LOT = 10
_BITS = 32  # Room for 2^32 lots, more than there are client indices.


def rocksteadier_subset(
    backends: Sequence[T | None], client_index: int, subset_size: int
) -> tuple[T, ...]:
    """Return the first backends on the client's walk through shuffled lots of ten, in walk order.

    Lots of ten backends are the columns of a table, and each lot of ten client tasks has its own:

    - column b is shuffled with a seed made of (client lot, b); padding is shuffled too, so that
      filling a hole or growing the last lot moves nobody else;
    - columns stand in the order of (v(b) - v(client lot)) mod 1, where v is the binary van der
      Corput sequence 0, 1/2, 1/4, 3/4, ...: any run of columns is spread over the fleet, and the
      lots of clients begin at different places;
    - client i of its lot walks row by row, beginning with the row that is i's rank in the same
      sequence, and takes the first `subset_size` backends that exist.

    Size rule: exactly `subset_size`, or all backends where fewer exist.  A missing backend is
    replaced by the next on the walk.

    Do not use it where indices are not dense and lasting.  Beside `nested_subset` it is less even
    while there are few lots of clients, and opens connections twice for each restart: for the
    replacement, and for the return.
    """
    check_subset_input(client_index, subset_size)
    members: list[T] = []
    for x in _walk(client_index, len(backends)):
        if x < len(backends) and (backend := backends[x]) is not None:
            members.append(backend)
            if len(members) == subset_size:
                break
    return tuple(members)


def _walk(client_index: int, backend_count: int) -> Iterator[int]:
    """Yield every index, padding included, in the order in which the client would take it."""
    lot, position = divmod(client_index, _LOT)
    start = _reversed_bits(lot)
    columns = sorted(
        range(-(-backend_count // _LOT)),
        key=lambda column: (_reversed_bits(column) - start) % 2**_BITS,
    )
    shuffled: dict[int, list[int]] = {}
    for step in range(_LOT):
        row = (_FIRST_ROW[position] + step) % _LOT
        for column in columns:
            if column not in shuffled:
                shuffled[column] = _shuffled_lot(lot, column)
            yield column * _LOT + shuffled[column][row]


def _shuffled_lot(client_lot: int, backend_lot: int) -> list[int]:
    seed = output(mix(client_lot), backend_lot)
    return sorted(range(_LOT), key=lambda row: output(seed, row))


def _reversed_bits(number: int) -> int:
    """Return 2^32 times the van der Corput value of `number`."""
    return int(f"{number:0{_BITS}b}"[::-1], 2)


# Entry i is the rank of i among its lot in the van der Corput sequence.
_FIRST_ROW = [sorted(range(_LOT), key=_reversed_bits).index(position) for position in range(_LOT)]
