"""What gRPC's own call says of an attempt that has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

import grpc

from evenly.core.request import Outcome
from evenly.grpc.common.translation import PUSHBACK_KEY, outcome_of, outcome_of_lost
from evenly.grpc.sync.client.turn import Placed
from evenly.wire.metadata import REJECT_KEY

__all__ = ["Trailers", "first", "outcome_by"]

Trailers = Iterable[tuple[str, str | bytes]] | None


def first(key: str, entries: Trailers) -> str | bytes | None:
    """Return the first value under a key, or `None`."""
    for name, value in entries or ():
        if name == key:
            return value
    return None


def outcome_by(
    placed: Placed,
    code: grpc.StatusCode,
    trailers: Trailers,
    details: str | None,
    *,
    is_reported: bool,
    is_cancelled: bool,
) -> Outcome:
    """Return how an attempt ended."""
    outcome = outcome_of(
        code,
        first(REJECT_KEY, trailers),
        is_reported=is_reported,
        has_pushback=first(PUSHBACK_KEY, trailers) is not None,
        is_cancelled=is_cancelled,
    )
    if outcome is not Outcome.LOST:
        return outcome
    attempt, connection = placed
    return outcome_of_lost(attempt, details, time.monotonic(), is_ready=connection.is_ready)
