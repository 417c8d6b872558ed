"""What gRPC is told about one attempt, awaited or waited for."""

from __future__ import annotations

from typing import Any

import grpc

from evenly.core.request import Request
from evenly.wire.metadata import to_grpc

__all__ = ["options_of"]


def options_of(  # noqa: PLR0917 -- by position, which is faster
    request: Request,
    number: int,
    now: float,
    metadata: Any,
    credentials: grpc.CallCredentials | None,
    compression: grpc.Compression | None,
) -> dict[str, Any]:
    """Return the keywords of gRPC's own call; what nobody asked for is left out, which is fast."""
    options: dict[str, Any] = {}
    if request.deadline_at is not None:
        options["timeout"] = request.deadline_at - now
    ours = to_grpc(request, number)
    if ours:
        metadata = ours if metadata is None else (*metadata, *ours)
    if metadata is not None:
        options["metadata"] = metadata
    if credentials is not None:
        options["credentials"] = credentials
    if compression is not None:
        options["compression"] = compression
    return options
