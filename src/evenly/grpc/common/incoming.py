"""Read what a request says about itself, before anything else of it is looked at."""

from __future__ import annotations

import time
from typing import Any, Final, final

from evenly.core.claim import Trust
from evenly.core.request import Request
from evenly.wire import metadata as wire
from evenly.wire.known_claims import KnownClaims

__all__ = ["Incoming"]

_READ: Final = frozenset(
    {
        wire.CRITICALITY_KEY,
        wire.CUSTOMER_KEY,
        wire.PREVIOUS_ATTEMPTS_KEY,
        wire.BAGGAGE_KEY,
        "user-agent",
    }
)
# Of what a hostile client repeats; there are five keys.
_READ_MOST: Final = 16

_Metadata = tuple[tuple[str, str | bytes], ...]


@final
class Incoming:
    """Make a `Request` of what gRPC's context says."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        # What gRPC counts is *previous* attempts.
        self._known = KnownClaims[_Metadata](wire.claims_of_grpc, first_attempt=0)

    def read(self, context: Any) -> tuple[Request, int, bool]:
        """Return the request, its attempt number, and whether its client is one of ours."""
        metadata: _Metadata = context.invocation_metadata()
        said = metadata
        # One alone is the user agent: what a request carries that claims nothing.
        if len(metadata) != 1:
            said = tuple([entry for entry in metadata if entry[0] in _READ][:_READ_MOST])
        beliefs = self._known[said]
        request, attempt = beliefs.if_trusted
        if beliefs.if_not is not None and not self._is_trusted(context):
            request, attempt = beliefs.if_not
        remaining_seconds = context.time_remaining()
        if remaining_seconds is not None:
            request = request.until(time.monotonic() + remaining_seconds)
        return request, attempt, beliefs.is_evenly

    def _is_trusted(self, context: Any) -> bool:
        peer = context.peer()
        if self._trust.is_trusted(peer):
            return True
        # Only then, because this asks gRPC for a copy of the certificate's properties.
        has_identity = bool(context.peer_identities())
        return self._trust.is_trusted(peer, has_mtls_identity=has_identity)
