"""Read what a request says about itself, before anything else of it is looked at.

Most requests of a client say the same, so what was made of it is remembered: reading it again is
one look-up.  A request that claims nothing needs no trust, and its peer is not even asked for.
"""

from __future__ import annotations

import time
from typing import Any, Final, final

from evenly.core.claim import Trust
from evenly.core.request import Request
from evenly.wire import metadata as wire

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
_REMEMBERED_MOST: Final = 1024
_REMEMBERED_LENGTH: Final = 1024

_Metadata = tuple[tuple[str, str | bytes], ...]


@final
class _Claims:
    """Remember what was made of some metadata."""

    __slots__ = ("if_not", "if_trusted", "is_evenly")

    def __init__(self, said: _Metadata) -> None:
        claims = wire.claims_of_grpc(said)
        self.is_evenly = claims.is_evenly
        self.if_trusted = wire.believed(claims, peer_is_trusted=True, now=0.0)
        self.if_not: tuple[Request, int] | None
        self.if_not = wire.believed(claims, peer_is_trusted=False, now=0.0)
        if self.if_not == self.if_trusted:
            self.if_not = None  # Who says it does not matter.


@final
class Incoming:
    """Make a `Request` of what gRPC's context says."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._known: dict[_Metadata, _Claims] = {}

    def read(self, context: Any) -> tuple[Request, int, bool]:
        """Return the request, its attempt number, and whether its client is one of ours."""
        metadata: _Metadata = context.invocation_metadata()
        said = metadata
        # One alone is the user agent: what a request carries that claims nothing.
        if len(metadata) != 1:
            said = tuple([entry for entry in metadata if entry[0] in _READ][:_READ_MOST])
        claims = self._known.get(said)
        if claims is None:
            claims = self._learn(said)
        request, attempt = claims.if_trusted
        if claims.if_not is not None and not self._is_trusted(context):
            request, attempt = claims.if_not
        remaining_seconds = context.time_remaining()
        if remaining_seconds is not None:
            request = Request(
                criticality=request.criticality,
                customer=request.customer,
                deadline_at=time.monotonic() + remaining_seconds,
            )
        return request, attempt, claims.is_evenly

    def _learn(self, said: _Metadata) -> _Claims:
        claims = _Claims(said)
        if sum(len(value) for _, value in said) <= _REMEMBERED_LENGTH:
            if len(self._known) >= _REMEMBERED_MOST:
                self._known.clear()
            self._known[said] = claims
        return claims

    def _is_trusted(self, context: Any) -> bool:
        peer = context.peer()
        if self._trust.is_trusted(peer):
            return True
        # Only then, because this asks gRPC for a copy of the certificate's properties.
        has_identity = bool(context.peer_identities())
        return self._trust.is_trusted(peer, has_mtls_identity=has_identity)
