"""The load report in the words of everyone else's clients: ORCA's `OrcaLoadReport`.

FIELD section 2: gRPC's and Envoy's weighted round robin read it, as a serialized message in gRPC's
trailing metadata and as text in an HTTP header.  Four fields, all doubles, say what we have to say,
so the message is written by hand; the tests compare it with the generated module.

Envoy refuses base64 whose length is not a multiple of 4, and gRPC sends binary metadata without
padding: a message must have a multiple of 3 bytes.  A double with its tag has 9, so that any
combination of these fields has; a field of another type would need an unknown field as filler.
"""

from __future__ import annotations

import struct
from typing import Final

from evenly.core.report import LoadReport

__all__ = ["GRPC_KEY", "HTTP_KEY", "serialize", "text"]

GRPC_KEY: Final = "endpoint-load-metrics-bin"
HTTP_KEY: Final = "endpoint-load-metrics"

# A tag is (field number << 3) | wire type, and 1 is the wire type of a double.
_CPU_UTILIZATION: Final = 1 << 3 | 1
_MEM_UTILIZATION: Final = 2 << 3 | 1
_RPS_FRACTIONAL: Final = 6 << 3 | 1
_EPS: Final = 7 << 3 | 1
_pack_double: Final = struct.Struct("<Bd").pack


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
