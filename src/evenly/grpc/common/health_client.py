"""Ask a backend's `grpc.health.v1` over its connection, in gRPC's words."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

__all__ = ["CHECK", "EVERYTHING", "UNANSWERED", "WATCH", "is_serving"]

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
EVERYTHING: Final[bytes] = health_pb2.HealthCheckRequest().SerializeToString()
"""The question, for the whole backend."""
UNANSWERED: Final = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
)
"""What gRPC itself says where nothing came back; all else is an answer, be it "no such service" or
"not you"."""


def is_serving(data: bytes) -> bool | None:
    """Return what an answer says; `None` for one that cannot be read."""
    try:
        status = health_pb2.HealthCheckResponse.FromString(data).status
    except DecodeError:
        return None
    return bool(status != health_pb2.HealthCheckResponse.NOT_SERVING)
