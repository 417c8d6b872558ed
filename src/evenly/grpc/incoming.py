"""Read what a request says about itself, before anything else of it is looked at.

Most requests of a client say the same, so what was made of it is remembered: reading it again is
one look-up.  A request that claims nothing needs no trust, and its peer is not even asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final, final

from evenly.core.claim import Trust
from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.wire import metadata as wire

__all__ = ["READ_METADATA", "Incoming"]

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

READ_METADATA: Final[ContextVar[Iterable[tuple[str, str | bytes]] | None]] = ContextVar(
    "evenly_read_metadata", default=None
)
"""The metadata of the call that is being looked up: asking gRPC again would cost 5 µs."""

# Criticality, customer and attempt.
_Believed = tuple[Criticality, str, int]


@final
class _Claims:
    __slots__ = ("if_not", "if_trusted", "is_evenly")

    def __init__(self, if_trusted: _Believed, if_not: _Believed, *, is_evenly: bool) -> None:
        self.if_trusted = if_trusted
        self.if_not = if_not
        self.is_evenly = is_evenly


@final
class Incoming:
    """Make a `Request` of what gRPC's context says."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._known: dict[tuple[Any, ...], _Claims] = {}

    def read(self, context: Any) -> tuple[Request, int, bool]:  # noqa: ANN401 -- gRPC's own
        """Return the request, its attempt number, and whether its client is one of ours."""
        metadata = READ_METADATA.get()
        if metadata is None:
            metadata = context.invocation_metadata()
        else:
            READ_METADATA.set(None)  # It is this call's, and not that of a server made inside it.
        said = tuple([entry for entry in metadata if entry[0] in _READ][:_READ_MOST])
        claims = self._known.get(said)
        if claims is None:
            claims = self._learn(said)
        believed = claims.if_trusted
        if believed is not claims.if_not and not self._is_trusted(context):
            believed = claims.if_not
        criticality, customer, attempt = believed
        remaining_seconds = context.time_remaining()
        deadline_at = None
        if remaining_seconds is not None:
            deadline_at = time.monotonic() + remaining_seconds
        request = Request(criticality=criticality, customer=customer, deadline_at=deadline_at)
        return request, attempt, claims.is_evenly

    def _learn(self, said: tuple[tuple[str, str | bytes], ...]) -> _Claims:
        claims = wire.claims_of_grpc(said)
        if_trusted = _believed(claims, is_trusted=True)
        if_not = _believed(claims, is_trusted=False)
        if if_not == if_trusted:
            if_not = if_trusted  # One object: who sends it does not matter.
        known = _Claims(if_trusted, if_not, is_evenly=claims.is_evenly)
        if sum(len(value) for _, value in said) <= _REMEMBERED_LENGTH:
            if len(self._known) >= _REMEMBERED_MOST:
                self._known.clear()
            self._known[said] = known
        return known

    def _is_trusted(self, context: Any) -> bool:  # noqa: ANN401 -- gRPC's own
        peer = context.peer()
        if self._trust.is_trusted(peer):
            return True
        # Only then, because this asks gRPC for a copy of the certificate's properties.
        has_identity = bool(context.peer_identities())
        return self._trust.is_trusted(peer, has_mtls_identity=has_identity)


def _believed(claims: wire.Claims, *, is_trusted: bool) -> _Believed:
    request, attempt = wire.believed(claims, peer_is_trusted=is_trusted, now=0.0)
    return request.criticality, request.customer, attempt
