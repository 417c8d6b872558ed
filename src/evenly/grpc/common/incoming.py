"""Read what a request says about itself, before anything else of it is looked at."""

from __future__ import annotations

import time
from typing import Any, Final, final

from evenly.core.claim import Trust
from evenly.core.request import Request
from evenly.wire import metadata as wire
from evenly.wire.known_claims import KnownClaims
from evenly.wire.level import LEVEL_KEY, NO_LEVEL, TWICE, Levels, without_luck

__all__ = ["Incoming"]

_AGENT: Final = "user-agent"
_READ: Final = frozenset(
    {
        wire.CRITICALITY_KEY,
        wire.CUSTOMER_KEY,
        wire.PREVIOUS_ATTEMPTS_KEY,
        wire.BAGGAGE_KEY,
        _AGENT,
        LEVEL_KEY,
    }
)
# Of what a hostile client repeats; there are five keys besides the level.
_READ_MOST: Final = 16

_Metadata = tuple[tuple[str, str | bytes], ...]


@final
class Incoming:
    """Make a `Request` of what gRPC's context says."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        # What gRPC counts is *previous* attempts.
        self._known = KnownClaims[_Metadata](wire.claims_of_grpc, first_attempt=0)
        self._levels = Levels()

    def read(
        self, context: Any, *, level_is_believed: bool = False
    ) -> tuple[Request, int, bool, float | None, float]:
        """Return the request, its attempt number, whether its client is ours, its luck and line.

        The request is shared by all that say the same, and so has no luck.  `level_is_believed`
        whoever says it: the caller asks for the peer later.
        """
        metadata: _Metadata = context.invocation_metadata()
        said = metadata
        luck, line = NO_LEVEL
        # One alone is the user agent: what a request carries that claims nothing.
        if len(metadata) != 1 or metadata[0][0] != _AGENT:
            said, luck, line = self._sorted(metadata)
        beliefs = self._known[said]
        request, attempt = beliefs.if_trusted
        says_level = luck is not None or line > 0.0
        if (beliefs.if_not is not None or (says_level and not level_is_believed)) and (
            not self.is_trusted(context)
        ):
            luck, line = NO_LEVEL
            request, attempt = beliefs.if_not or beliefs.if_trusted
        remaining_seconds = context.time_remaining()
        if remaining_seconds is not None:
            request = request.until(time.monotonic() + remaining_seconds)
        return request, attempt, beliefs.is_evenly, luck, line

    def _sorted(self, metadata: _Metadata) -> tuple[_Metadata, float | None, float]:
        """Return what is remembered, and apart from it the level, which differs by request."""
        said: list[tuple[str, str | bytes]] = []
        level: object = None
        luck_in_baggage: float | None = None
        for entry in metadata:
            key = entry[0]
            if key not in _READ:
                continue
            if key == LEVEL_KEY:
                level = entry[1] if level is None else TWICE
            elif key != wire.BAGGAGE_KEY:
                said.append(entry)
            else:
                rest, luck = without_luck(entry[1])
                said.append((key, rest))
                luck_in_baggage = luck if luck_in_baggage is None else luck_in_baggage
        luck, line = NO_LEVEL if level is None else self._levels.of(level)
        luck = luck_in_baggage if luck is None else luck
        return tuple(said[:_READ_MOST]), luck, line

    def is_trusted(self, context: Any) -> bool:
        """Return whether what the peer says is believed."""
        peer = context.peer()
        if self._trust.is_trusted(peer):
            return True
        # Only then, because this asks gRPC for a copy of the certificate's properties.
        has_identity = bool(context.peer_identities())
        return self._trust.is_trusted(peer, has_mtls_identity=has_identity)
