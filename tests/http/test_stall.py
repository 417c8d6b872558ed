"""Whether a connection makes progress, look by look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from evenly.http.serve.stall import Stall


class Looks:
    """A loop whose next timer is run by hand, and a transport that can be aborted."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.aborted = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Looks:
        assert seconds == 60.0
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def abort(self) -> None:
        self.aborted += 1

    def look(self) -> None:
        self.due.pop()()


def stalled_by(*measured: float | None) -> tuple[Looks, Stall]:
    """Return one that measures these, one after the other."""
    looks = Looks()
    numbers = iter(measured)
    stall = Stall(
        cast("asyncio.AbstractEventLoop", looks),
        cast("asyncio.Transport", looks),
        60.0,
        lambda: next(numbers),
    )
    stall.watch()
    return looks, stall


def test_who_goes_on_however_slowly_is_waited_for() -> None:
    # Each look measures what there is now, and again what the next is compared with.
    looks, _ = stalled_by(1, 2, 2, 3, 3, 4, 4)
    for _ in range(3):
        looks.look()

    assert looks.aborted == 0
    assert len(looks.due) == 1


def test_who_stops_is_ended() -> None:
    looks, _ = stalled_by(1, 2, 2, 2)
    looks.look()
    assert looks.aborted == 0
    looks.look()

    assert looks.aborted == 1
    assert not looks.due


def test_where_nothing_is_waited_for_nobody_looks() -> None:
    looks, _ = stalled_by(None)
    assert not looks.due

    looks, _ = stalled_by(1, None, None)
    looks.look()
    assert not looks.due
    assert looks.aborted == 0


def test_it_looks_once_at_a_time_and_not_after_its_end() -> None:
    looks, stall = stalled_by(1)
    stall.watch()
    assert len(looks.due) == 1
    stall.end()

    assert not looks.due
