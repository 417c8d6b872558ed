"""Recommend a subset size, and say what a size means for a fleet, in words.

Source: SRE book, chapter 20, "Picking the Right Subset": "we typically use a subset size of 20 to
100 backends".  Within that range two things decide.  Each backend needs a few clients, or one
client more or less is a large part of its load.  And `nested_subset` changes its level where the
number of backends passes subset_size * 2^k, so a good size leaves room on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evenly.core import check
from evenly.core.balancing.nested_subset import nested_level
from evenly.core.balancing.subset_input import MAX_SUBSET_SIZE
from evenly.core.balancing.subset_plan import MAX_TASKS

__all__ = ["SizeAdvice", "assess_size", "recommend"]

_SMALLEST_SIZE = 20  # book
_LARGEST_SIZE = 100  # book

# With four clients, one more or less is a quarter of a backend's load; with fewer, more.
_CLIENTS_PER_BACKEND = 4

# A deployment takes out 5 % of the backends, which shrinks the fleet when they are the last ones,
# and an autoscaler's step is about 10 %: neither should double every subset.
_SHRINK_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAdvice:
    """Say what a subset size means for a fleet with `nested_subset`, and why to take it."""

    size: int
    smallest_subset: int
    largest_subset: int
    halves_at: int
    """Number of backends from which subsets are half as large; that opens no connection."""
    doubles_below: int | None
    """Number of backends below which subsets double; `None` where they hold all backends."""
    reason: str
    room: str
    """How large nested subsets are, and how far the fleet may go before that changes."""
    warnings: tuple[str, ...]
    """What is wrong with the size, whatever the algorithm."""
    nested_warnings: tuple[str, ...]
    """What is wrong with it for `nested_subset` only."""


def recommend(clients: int, backends: int) -> SizeAdvice:
    """Return the subset size to use for so many client tasks and backends, with the reason."""
    _check_fleet(clients, backends)
    if backends < 2 * _SMALLEST_SIZE:
        return _advice(clients, backends, max(_SMALLEST_SIZE, backends), _few(backends))
    needed = math.ceil(_CLIENTS_PER_BACKEND * backends / clients)
    low = min(max(_SMALLEST_SIZE, needed), _LARGEST_SIZE)
    # An octave of sizes holds every distance from a change of level.
    size = min(
        range(low, min(2 * low, _LARGEST_SIZE) + 1),
        key=lambda candidate: abs(_octave_position(backends, candidate) - 0.5),
    )
    if low == _SMALLEST_SIZE:
        why = "at the cheap end of the book's 20 to 100"
    elif needed <= _LARGEST_SIZE:
        why = f"at least {low}, for {_CLIENTS_PER_BACKEND} clients per backend"
    else:
        why = "the most that the book advises"
    advice = _advice(clients, backends, size, why)
    return replace(
        advice,
        room=f"{advice.room}; no other size near {size} keeps as far from both",
    )


def assess_size(clients: int, backends: int, size: int) -> SizeAdvice:
    """Return what a size that somebody has chosen means for the fleet."""
    _check_fleet(clients, backends)
    check.count("size", size, 1, MAX_SUBSET_SIZE)
    return _advice(clients, backends, size, "asked for")


def _check_fleet(clients: int, backends: int) -> None:
    check.count("clients", clients, 1, MAX_TASKS)
    check.count("backends", backends, 1, MAX_TASKS)


def _octave_position(backends: int, size: int) -> float:
    """Return where the fleet is between two changes of level: 0 just above one, 1 at the next."""
    return math.log2(backends / size) % 1


def _advice(clients: int, backends: int, size: int, why: str) -> SizeAdvice:
    level = nested_level(backends, size)
    smallest = backends >> level
    largest = -(-backends >> level)
    halves_at = size << (level + 1)
    doubles_below = size << level if level > 0 else None
    if doubles_below is None:
        room = (
            f"nested subsets hold all backends until there are {halves_at}, and half from then on"
        )
    else:
        room = (
            f"{_rounding(size, smallest, largest, 1 << level)}; subsets halve at {halves_at} "
            f"backends (+{halves_at / backends - 1:.0%}), which opens nothing, and double below "
            f"{doubles_below} (-{1 - doubles_below / backends:.0%}), which opens as many "
            "connections as there are"
        )
    return SizeAdvice(
        size=size,
        smallest_subset=smallest,
        largest_subset=largest,
        halves_at=halves_at,
        doubles_below=doubles_below,
        reason=why,
        room=room,
        warnings=_warnings(clients, backends, size, doubles_below),
        nested_warnings=_nested_warnings(backends, doubles_below),
    )


def _few(backends: int) -> str:
    """Return why every client task should hold all of so few backends."""
    if backends == 1:
        return "there is one backend, which every client holds"
    all_of_them = f"{backends} backends are few enough for every client to hold them all"
    if backends >= _SMALLEST_SIZE:
        return all_of_them
    return f"{all_of_them}, and {_SMALLEST_SIZE}, the least that the book advises, leaves room"


def _rounding(size: int, smallest: int, largest: int, lot: int) -> str:
    """Return how large nested subsets are, and why that is not the size asked for."""
    if smallest == largest == size:
        return f"nested subsets have exactly {size} backends"
    return (
        f"nested shares the backends out among {lot} clients at a time, always a power of two, so "
        f"{size} is rounded up to {_range(smallest, largest)} (at most twice the size)"
    )


def _warnings(clients: int, backends: int, size: int, doubles_below: int | None) -> tuple[str, ...]:
    if doubles_below is None or clients * size >= _CLIENTS_PER_BACKEND * backends:
        return ()
    warning = (
        f"clients x size = {clients * size} is less than {_CLIENTS_PER_BACKEND} x backends = "
        f"{_CLIENTS_PER_BACKEND * backends}: with so few clients each, one more or less is a "
        f"large part of a backend's load"
    )
    return (warning,)


def _nested_warnings(backends: int, doubles_below: int | None) -> tuple[str, ...]:
    if doubles_below is None or backends * (1 - _SHRINK_RATIO) >= doubles_below:
        return ()
    warning = (
        f"{backends} backends are close above {doubles_below}: losing a few at the end of the "
        f"list doubles every nested subset"
    )
    return (warning,)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
