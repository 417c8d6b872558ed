"""Lay out the shared memory of one backend's workers: bytes <-> what they mean, no I/O.

    head    what the parent says of the backend: boot, sequence, lame duck, its UDP port
    slot    what one worker says of itself: its process, when, its report; 128 bytes each

Nobody locks: each part has one writer, who copies it there whole, and a checksum in front.  A
reader who comes in between sees that it does not fit and looks again.  So it is with numbers that
nobody can have meant, whatever their checksum.  A sequence lock would need
its stores to become visible in order, which Python cannot ask for.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Final, NamedTuple

from evenly.core.report import LoadReport
from evenly.errors import ConfigError

__all__ = [
    "HEAD_SIZE",
    "SLOT_SIZE",
    "Head",
    "Slot",
    "pack_head",
    "pack_slot",
    "slot_offset",
    "unpack_head",
    "unpack_slot",
]

_CHECKSUM: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<QIH?xBxxx")
_SLOT: Final = struct.Struct("<IIB3x8d")
HEAD_SIZE: Final = _CHECKSUM.size + _HEAD.size
SLOT_SIZE: Final = _CHECKSUM.size + _SLOT.size

# Whole cache lines, so that writers do not take one another's.
_HEAD_STRIDE: Final = 128
_SLOT_STRIDE: Final = 128

_IS_LISTENING: Final = 0b001
_IS_READY: Final = 0b010
_IS_DRAINED: Final = 0b100


class Head(NamedTuple):
    """Be what the parent says to its workers."""

    backend: LoadReport
    """Of which `boot`, `sequence`, `lame_duck` and `probe_port` are known."""
    is_leaving: bool
    """Whether it is a lame duck for good."""


class Slot(NamedTuple):
    """Be what one worker says of itself."""

    pid: int
    written_at: float
    """On the clock that all processes of a machine share, `time.monotonic`."""
    report: LoadReport
    is_listening: bool = False
    is_ready: bool = False
    """Whether it has warmed up."""
    is_drained: bool = False
    """Whether it may exit, since it is leaving: see `BackendTask.is_drained`."""


def slot_offset(index: int) -> int:
    """Return where slot `index` begins; that of the one behind the last is the whole size."""
    return _HEAD_STRIDE + _SLOT_STRIDE * index


def pack_head(head: Head) -> bytes:
    """Write the parent's part."""
    backend = head.backend
    return _checked(
        _HEAD.pack(
            backend.boot,
            backend.sequence,
            backend.probe_port or 0,
            backend.lame_duck,
            head.is_leaving,
        )
    )


def unpack_head(data: bytes) -> Head | None:
    """Read the parent's part; `None` where it is not whole, or was never written."""
    if not _is_whole(data):
        return None
    boot, sequence, port, is_lame_duck, is_leaving = _HEAD.unpack_from(data, _CHECKSUM.size)
    try:
        backend = LoadReport(
            boot=boot, sequence=sequence, lame_duck=bool(is_lame_duck), probe_port=port or None
        )
    except ConfigError:
        return None
    return Head(backend, bool(is_leaving))


def pack_slot(slot: Slot) -> bytes:
    """Write one worker's part."""
    report = slot.report
    return _checked(
        _SLOT.pack(
            slot.pid,
            report.active,
            (_IS_LISTENING if slot.is_listening else 0)
            | (_IS_READY if slot.is_ready else 0)
            | (_IS_DRAINED if slot.is_drained else 0),
            slot.written_at,
            report.cut,
            report.runnable,
            report.utilization,
            report.qps,
            report.eps,
            report.latency_seconds,
            report.compute_units,
        )
    )


def unpack_slot(data: bytes) -> Slot | None:
    """Read one worker's part; `None` where it is not whole, or was never written."""
    if not _is_whole(data):
        return None
    pid, active, flags, written_at, cut, runnable, utilization, qps, eps, latency, units = (
        _SLOT.unpack_from(data, _CHECKSUM.size)
    )
    try:
        report = LoadReport(
            active=active,
            cut=cut,
            runnable=runnable,
            utilization=utilization,
            qps=qps,
            eps=eps,
            latency_seconds=latency,
            compute_units=units,
        )
    except ConfigError:
        return None
    if not math.isfinite(written_at):  # It would never be stale.
        return None
    return Slot(
        pid,
        written_at,
        report,
        bool(flags & _IS_LISTENING),
        bool(flags & _IS_READY),
        bool(flags & _IS_DRAINED),
    )


def _checked(data: bytes) -> bytes:
    return _CHECKSUM.pack(zlib.crc32(data)) + data


def _is_whole(data: bytes) -> bool:
    # Memory that nobody has written is all zeros, whose checksum is not 0.
    checksum: int = _CHECKSUM.unpack_from(data)[0]
    return zlib.crc32(data[_CHECKSUM.size :]) == checksum
