"""Share what the workers of one backend say of themselves, through memory.

    Board     the memory: each worker writes its slot, the parent the head, and everybody reads
    Desk      a worker's place at it: what it says instead of its own report is the sum

The memory is a file without a name, so that nothing is left of it whoever dies how.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Callable
from typing import Final, final

from evenly.core.clock import Clock
from evenly.core.report import LoadReport
from evenly.http.serve.workers.slots import (
    HEAD_SIZE,
    SLOT_SIZE,
    Head,
    Slot,
    pack_head,
    pack_slot,
    slot_offset,
    unpack_head,
    unpack_slot,
)
from evenly.http.serve.workers.total import Total, total_of
from evenly.http.serve.workers.unnamed import unnamed_file

__all__ = ["STALE_SECONDS", "Board", "Desk", "make_memory", "open_memory"]

STALE_SECONDS: Final = 10.0
"""A worker that has written nothing for so long does not count: it writes 20 times a second.  Long,
because one whose loop is blocked still has its requests; the slot of a dead one is cleared."""

_LEAST_SECONDS: Final = 0.001
# A writer copies 72 bytes: who comes in between twice was not unlucky but meets a dead one.
_READ_TIMES: Final = 5
_NOBODY: Final = bytes(SLOT_SIZE)


def make_memory(workers: int) -> int:
    """Return the descriptor of memory for so many workers, all zeros; it can be inherited."""
    descriptor = unnamed_file("workers")
    os.ftruncate(descriptor, slot_offset(workers))
    return descriptor


def open_memory(descriptor: int, workers: int) -> mmap.mmap:
    """Map the memory; the descriptor may be closed then."""
    return mmap.mmap(descriptor, slot_offset(workers))


@final
class Board:
    """Read and write the memory of one backend's workers."""

    def __init__(self, memory: mmap.mmap | bytearray, workers: int, *, clock: Clock) -> None:
        self._memory = memory
        self._workers = workers
        self._clock = clock
        # What was last read whole, with its bytes: most have not been written since.  A writer that
        # died half-way leaves nothing else to read.
        self._head: Head | None = None
        self._slots: list[tuple[bytes, Slot | None]] = [(b"", None)] * workers

    def write_head(self, head: Head) -> None:
        """Say how the backend is; only the parent does."""
        self._memory[:HEAD_SIZE] = pack_head(head)

    def head(self) -> Head | None:
        """Return how the backend is; `None` before the parent has said so."""
        for _ in range(_READ_TIMES):
            head = unpack_head(bytes(self._memory[:HEAD_SIZE]))
            if head is not None:
                self._head = head
                break
        return self._head

    def write_slot(self, index: int, slot: Slot) -> None:
        """Say how one worker is; only that worker does."""
        begin = slot_offset(index)
        self._memory[begin : begin + SLOT_SIZE] = pack_slot(slot)

    def clear_slot(self, index: int) -> None:
        """Forget a worker that has died."""
        begin = slot_offset(index)
        self._memory[begin : begin + SLOT_SIZE] = _NOBODY

    def slot(self, index: int) -> Slot | None:
        """Return how a worker is; `None` if it is dead, or has not said anything yet."""
        begin = slot_offset(index)
        known, slot = self._slots[index]
        for _ in range(_READ_TIMES):
            data = bytes(self._memory[begin : begin + SLOT_SIZE])
            if data == known:
                break
            read = unpack_slot(data)
            if read is not None or data == _NOBODY:
                slot = read
                self._slots[index] = (data, slot)
                break
        return slot

    def total(self, without: int | None = None) -> Total:
        """Add up what the living say, except for one of them."""
        since = self._clock() - STALE_SECONDS
        slots = [self.slot(index) for index in range(self._workers) if index != without]
        return total_of(slot.report for slot in slots if slot and slot.written_at >= since)


@final
class Desk:
    """Write one worker's slot, and say in its place what all say together.

    `combine` is for `BackendRuntime.combine`.
    """

    def __init__(
        self, board: Board, index: int, *, pid: int, is_drained: Callable[[], bool], clock: Clock
    ) -> None:
        self._board = board
        self._index = index
        self._pid = pid
        self._is_drained = is_drained
        self._clock = clock
        self._looked_at = -1.0
        self._others = Total()
        self._head: Head | None = None
        self.is_listening = False
        self.is_ready = False
        self.is_orphan = False
        """Whether the parent has died: then nobody else says that the backend is leaving."""

    def combine(self, own: LoadReport) -> LoadReport:
        """Return the sum of all workers, as the backend's; look at most once a millisecond."""
        now = self._clock()
        if now - self._looked_at >= _LEAST_SECONDS:
            self._looked_at = now
            self._write(own, now)
            self._others = self._board.total(without=self._index)
            self._head = self._board.head()
        backend = own if self._head is None else self._head.backend
        if self.is_orphan and not backend.lame_duck:
            backend = dataclasses.replace(backend, lame_duck=True, sequence=backend.sequence + 1)
        return self._others.plus(own).report(backend)

    def look_again(self) -> Head | None:
        """Make the next `combine` look, and return how the backend is now."""
        self._looked_at = -1.0
        return self._board.head()

    def _write(self, own: LoadReport, now: float) -> None:
        slot = Slot(self._pid, now, own, self.is_listening, self.is_ready, self._is_drained())
        self._board.write_slot(self._index, slot)
