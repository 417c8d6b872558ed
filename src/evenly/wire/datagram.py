"""The UDP datagram of probes: a question, its answer, and the unasked notice of a lame duck.

A datagram has one fixed size, so that an answer is never larger than its question
and nobody can use a backend to amplify an attack.  The nonce is the asker's: an answer repeats it,
and so does a notice, which repeats the last one that its prober sent.  Answers are a pure function
of the backend's state, so that a replayed question does no harm and needs no memory.

With a key, the last 16 bytes are an HMAC-SHA256 over everything before them.  Without one they are
zeros, and are not looked at: a nonce of 64 random bits is then all that keeps forgers out.
"""

from __future__ import annotations

import enum
import hmac
import struct
from typing import Final, final

from evenly.core.level import LUCK_STEPS, TOP
from evenly.core.report import LoadReport
from evenly.errors import ConfigError, UsageError
from evenly.wire.level import admits_of_cut, cut_of_admits, cut_steps

__all__ = ["SIZE", "Kind", "answer", "parse_answer", "parse_question", "question"]

_MAGIC: Final = b"EVNL"
_VERSION: Final = 1
_TAG_SIZE: Final = 16
_NO_TAG: Final = bytes(_TAG_SIZE)

# Network order.  Start: magic, version, kind.  Body: flags (none yet), nonce | boot | sequence,
# state, admits, probe port (0: none) | runnable, utilization, qps, eps, latency, compute units |
# active, cut | 3 bytes to spare, which round the size up to a multiple of 8.
_START: Final = struct.Struct("!4sBB")
_BODY: Final = struct.Struct("!HQQIBBHffffffIB3x")
_QUESTION_BODY: Final = struct.Struct(f"!HQ{_BODY.size - 10}x")
_START_SIZE: Final = _START.size
_TAGGED: Final = _START_SIZE + _BODY.size
SIZE: Final = _TAGGED + _TAG_SIZE

_LAME_DUCK: Final = 1
_ADMITS_MOST: Final = 0b1111
# The cut-line in 64ths and one, so that 0 is a backend that knows none: then the bits count.
_CUT_MOST: Final = 254
# A report's numbers end at 1e15, where float32 has no trouble; but compute units are above zero,
# and the smallest of them would be rounded to zero, which no reader takes.
_LEAST_FLOAT32: Final = 2.0**-126


@final
class Kind(enum.IntEnum):
    """Say what a datagram is for."""

    QUESTION = 1
    ANSWER = 2
    NOTICE = 3
    """A report that nobody asked for just now."""


_STARTS: Final = {kind: _START.pack(_MAGIC, _VERSION, kind) for kind in Kind}
_QUESTION_START: Final = _STARTS[Kind.QUESTION]
_REPORTING_KINDS: Final = {_STARTS[kind]: kind for kind in (Kind.ANSWER, Kind.NOTICE)}


def question(nonce: int, key: bytes | None) -> bytes:
    """Ask a backend for its report; `nonce` is 64 random bits."""
    data = _QUESTION_START + _QUESTION_BODY.pack(0, nonce)
    return data + (_NO_TAG if key is None else _tag(key, data))


def answer(nonce: int, report: LoadReport, key: bytes | None, *, kind: Kind = Kind.ANSWER) -> bytes:
    """Answer the question that had this nonce, or, as `Kind.NOTICE`, speak before the next one."""
    if kind is Kind.QUESTION:
        raise UsageError("a question carries no report: use question()")
    compute_units = report.compute_units
    data = _STARTS[kind] + _BODY.pack(
        0,
        nonce,
        report.boot,
        report.sequence,
        report.lame_duck,
        admits_of_cut(report.cut),
        report.probe_port or 0,
        report.runnable,
        report.utilization,
        report.qps,
        report.eps,
        report.latency_seconds,
        compute_units if compute_units > _LEAST_FLOAT32 else _LEAST_FLOAT32,
        report.active,
        cut_steps(report.cut, _CUT_MOST) + 1,
    )
    return data + (_NO_TAG if key is None else _tag(key, data))


def parse_question(data: bytes, key: bytes | None) -> int | None:
    """Return the nonce of a question, or `None` for anything else, whatever it is."""
    if len(data) != SIZE or data[:_START_SIZE] != _QUESTION_START:
        return None
    if key is not None and not _is_tagged(data, key):
        return None
    nonce: int
    _flags, nonce = _QUESTION_BODY.unpack_from(data, _START_SIZE)
    return nonce


def parse_answer(data: bytes, key: bytes | None) -> tuple[Kind, int, LoadReport] | None:
    """Return what an answer or a notice says, or `None` for anything else, whatever it is."""
    if len(data) != SIZE:
        return None
    kind = _REPORTING_KINDS.get(data[:_START_SIZE])
    if kind is None or (key is not None and not _is_tagged(data, key)):
        return None
    (
        _flags, nonce, boot, sequence, state, admits, port,
        runnable, utilization, qps, eps, latency_seconds, compute_units, active, cut,
    ) = _BODY.unpack_from(data, _START_SIZE)  # fmt: skip
    if state > _LAME_DUCK or admits > _ADMITS_MOST:
        return None
    try:
        report = LoadReport(
            boot=boot,
            sequence=sequence,
            lame_duck=state == _LAME_DUCK,
            cut=_cut(cut, admits),
            runnable=runnable,
            active=active,
            utilization=utilization,
            qps=qps,
            eps=eps,
            latency_seconds=latency_seconds,
            compute_units=compute_units,
            probe_port=port or None,
        )
    except ConfigError:  # NaN, infinite, negative or too large: its sender is no backend of ours.
        return None
    return kind, nonce, report


def _cut(steps: int, admits: int) -> float:
    if not steps:  # Its sender knew the four bits alone.
        return cut_of_admits(admits)
    return TOP if steps > _CUT_MOST else (steps - 1) / LUCK_STEPS


def _tag(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")[:_TAG_SIZE]


def _is_tagged(data: bytes, key: bytes) -> bool:
    return hmac.compare_digest(_tag(key, data[:_TAGGED]), data[_TAGGED:])
