"""The load report in the words of everyone else's clients: ORCA's `OrcaLoadReport`.

gRPC's and Envoy's weighted round robin read it, as a serialized message in gRPC's
trailing metadata and as text in an HTTP header.  Four fields, all doubles, say what we have to say,
so the message is written by hand; the tests compare it with the generated module.

Envoy refuses base64 whose length is not a multiple of 4, and gRPC sends binary metadata without
padding: a message must have a multiple of 3 bytes.  A double with its tag has 9, so that any
combination of these fields has; a field of another type would need an unknown field as filler.

Read it is too, from backends that are not ours: the message, and of the header Envoy's three forms,
`BIN`, `JSON` and `TEXT`.  Their size is bounded, what they have besides is passed over, and one bad
number, or one that is there twice, makes the whole no report.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from collections.abc import Iterable
from typing import Final

from evenly.core.report import LoadReport
from evenly.errors import ConfigError

__all__ = [
    "GRPC_KEY",
    "HTTP_KEY",
    "MAX_LENGTH",
    "parse_header",
    "parse_message",
    "parse_metadata",
    "serialize",
    "text",
]

GRPC_KEY: Final = "endpoint-load-metrics-bin"
HTTP_KEY: Final = "endpoint-load-metrics"
MAX_LENGTH: Final = 4096
"""More bytes than this are not read: metrics with names of one's own may be many."""

# A tag is (field number << 3) | wire type, and 1 is the wire type of a double.
_CPU_UTILIZATION: Final = 1 << 3 | 1
_MEM_UTILIZATION: Final = 2 << 3 | 1
_RPS_FRACTIONAL: Final = 6 << 3 | 1
_EPS: Final = 7 << 3 | 1
_APPLICATION_UTILIZATION: Final = 9 << 3 | 1
_pack_double: Final = struct.Struct("<Bd").pack
_unpack_double: Final = struct.Struct("<d").unpack_from

# What is read, by its tag and by its name in text; JSON has protobuf's other spelling too.
_NAMES: Final = {
    _CPU_UTILIZATION: "cpu_utilization",
    _RPS_FRACTIONAL: "rps_fractional",
    _EPS: "eps",
    _APPLICATION_UTILIZATION: "application_utilization",
}
_OF_JSON: Final = {
    "cpuUtilization": "cpu_utilization",
    "rpsFractional": "rps_fractional",
    "applicationUtilization": "application_utilization",
}
_KNOWN: Final = frozenset(_NAMES.values())
# Not float() alone, which takes "nan", "1_0", " 1 " and the digits of every script.
_IS_NUMBER: Final = re.compile("[0-9][0-9.eE+-]*+").fullmatch
# Wire types of protobuf and the bytes that follow; 0 is a varint, 2 has its length in front.
_FIXED_BYTES: Final = {1: 8, 5: 4}
_VARINT_MAX_BYTES: Final = 10


def serialize(report: LoadReport, *, memory_utilization: float = 0.0) -> bytes:
    """Return the serialized `OrcaLoadReport`; zero is left out, as protobuf does.

    Memory is a fraction of its limit: more than 1 counts as 1, and what is no number as unknown.
    """
    data = b""
    if report.utilization > 0.0:
        data = _pack_double(_CPU_UTILIZATION, report.utilization)
    if memory_utilization > 0.0:
        data += _pack_double(_MEM_UTILIZATION, min(memory_utilization, 1.0))
    if report.qps > 0.0:
        data += _pack_double(_RPS_FRACTIONAL, report.qps)
    if report.eps > 0.0:
        data += _pack_double(_EPS, report.eps)
    return data


def text(report: LoadReport, *, memory_utilization: float = 0.0) -> str:
    """Return the same as text, with 6 significant digits.

    One negative number or NaN would make readers refuse the whole, and a header that ends in the
    space after "TEXT" loses it: so utilization is always there.
    """
    line = f"TEXT cpu_utilization={report.utilization:.6g}"
    if memory_utilization > 0.0:
        line += f",mem_utilization={min(memory_utilization, 1.0):.6g}"
    if report.qps > 0.0:
        line += f",rps_fractional={report.qps:.6g}"
    if report.eps > 0.0:
        line += f",eps={report.eps:.6g}"
    return line


def parse_message(data: object) -> LoadReport | None:
    """Read a serialized `OrcaLoadReport`; return `None` for anything that tells no weight."""
    if type(data) is not bytes or len(data) > MAX_LENGTH:
        return None
    try:
        return _report(_fields(data))
    except (ConfigError, ValueError, IndexError, struct.error):
        return None


def parse_header(value: object) -> LoadReport | None:
    """Read the HTTP header; return `None` for anything that tells no weight."""
    if type(value) is not bytes or len(value) > MAX_LENGTH:
        return None
    form, _, rest = value.partition(b" ")
    try:
        if form == b"TEXT":
            return _report(_pairs(rest.decode("ascii")))
        if form == b"JSON" and rest.lstrip().startswith(b"{"):
            return _report(json.loads(rest, object_pairs_hook=_members))
        if form == b"BIN":
            # Some write it without padding, as gRPC does.
            return parse_message(binascii.a2b_base64(rest + b"=" * (-len(rest) % 4)))
    except (ConfigError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return None


def parse_metadata(value: object) -> LoadReport | None:
    """Read the same from gRPC's trailing metadata, where some send it under HTTP's name."""
    return parse_header(value.encode("latin-1", "replace")) if type(value) is str else None


def _report(fields: Iterable[tuple[str, float]]) -> LoadReport | None:
    """Make a report of what is known; the application's own utilization outranks the CPU's."""
    known: dict[str, float] = {}
    for name, number in fields:
        if name in known:
            raise ValueError(f"{name} twice")  # Two readers could believe different things.
        if not 0.0 <= number < math.inf:
            raise ValueError(f"{name} must be in [0, inf), not {number}")
        known[name] = number
    used = known.get("application_utilization", 0.0) or known.get("cpu_utilization", 0.0)
    qps = known.get("rps_fractional", 0.0)
    report = LoadReport(utilization=used, qps=qps, eps=known.get("eps", 0.0))
    # Zero is "not said", and without these two there is no weight (gRFC A58).
    return report if report.utilization > 0.0 and report.qps > 0.0 else None


def _pairs(line: str) -> list[tuple[str, float]]:
    pairs = [piece.partition("=") for piece in line.split(",")]
    return [
        (name.strip(), _number(number.strip()))
        for name, _, number in pairs
        if name.strip() in _KNOWN
    ]


def _members(pairs: list[tuple[str, object]]) -> list[tuple[str, float]]:
    """Return what is known of one JSON object; an object inside, as of named metrics, is none."""
    named = [(_OF_JSON.get(name, name), value) for name, value in pairs]
    return [(name, _number(value)) for name, value in named if name in _KNOWN]


def _number(value: object) -> float:
    if type(value) is str:
        if _IS_NUMBER(value) is None:
            raise ValueError(value)
        return float(value)
    if type(value) is int or type(value) is float:
        return float(value)
    raise ValueError(f"not a number: {value!r:.100}")


def _fields(data: bytes) -> Iterable[tuple[str, float]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        name = _NAMES.get(tag)
        if name is not None:
            yield name, _unpack_double(data, at)[0]
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            at += length
        else:
            at += _FIXED_BYTES.get(kind, MAX_LENGTH)  # Groups are no part of the message.
    if at != len(data):
        raise ValueError("it ends inside a field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number of 7 bits a byte, lowest first, and where it ends."""
    number = 0
    for place in range(_VARINT_MAX_BYTES):
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number without an end")
