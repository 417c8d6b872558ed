"""Read what a request says about itself, before anything else of it is looked at."""

from __future__ import annotations

from typing import Final, final

from evenly.core.claim import Trust
from evenly.core.request import Request
from evenly.http.server.asgi import Header, Scope
from evenly.wire import metadata as wire
from evenly.wire.known_claims import KnownClaims
from evenly.wire.level import LEVEL_KEY, NO_LEVEL, TWICE, Levels, without_luck

__all__ = ["Incoming"]

_AGENT: Final = b"user-agent"
_DEADLINE: Final = wire.DEADLINE_KEY.encode()
_LEVEL: Final = LEVEL_KEY.encode()
_BAGGAGE: Final = wire.BAGGAGE_KEY.encode()
_READ: Final = frozenset(
    {
        wire.CRITICALITY_KEY.encode(),
        wire.CUSTOMER_KEY.encode(),
        wire.ATTEMPT_COUNT_KEY.encode(),
        _BAGGAGE,
        _DEADLINE,
        _LEVEL,
        _AGENT,
    }
)
# Of what a hostile client repeats; there are four names besides these three.
_READ_MOST: Final = 16
# So many digits are less than a month, beyond which a deadline is none.
_PLAIN_DIGITS: Final = 9
# What is left of a time-out of four seconds, in whole milliseconds.
_REMEMBERED_MOST: Final = 4096

_Headers = tuple[Header, ...]


@final
class Incoming:
    """Make a `Request` of what an ASGI scope says.

    Believed are peers by their address, as the server knows it (behind a proxy that is what
    uvicorn's `--proxy-headers` made of it), peers on a Unix socket, and those with a certificate
    where the server has ASGI's TLS extension.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        # Envoy counts attempts from 1.
        self._known = KnownClaims[bytes | _Headers](_claims, first_attempt=1)
        self._seconds = _Seconds()
        self._levels = Levels()

    def read(  # noqa: C901, PLR0912 -- written out: once per request
        self, scope: Scope
    ) -> tuple[Request, int, bool, float | None, float | None, float]:
        """Return the request, its attempt number, whether its client is ours, and three more.

        Those are the seconds left, the luck and the client's line.  The request is shared by all
        that say the same, and so has neither deadline nor luck.
        """
        said: _Headers = ()
        agent: bytes | None = None
        deadline_ms: bytes | None = None
        level: object = None
        luck_in_baggage: float | None = None
        for name, value in scope.get("headers") or ():
            if name in _READ:
                # The first one counts, as everywhere.
                if name == _AGENT:
                    if agent is None:
                        agent = value
                elif name == _DEADLINE:
                    if deadline_ms is None:
                        deadline_ms = value
                elif name == _LEVEL:
                    level = value if level is None else TWICE
                elif len(said) < _READ_MOST:
                    rest = value
                    if name == _BAGGAGE:
                        rest, luck = without_luck(value)
                        luck_in_baggage = luck if luck_in_baggage is None else luck_in_baggage
                    said += ((name, rest),)
        if agent is None:
            agent = b""
        # Most say no more than who they are.
        beliefs = self._known[(*said, (_AGENT, agent)) if said else agent]
        request, attempt = beliefs.if_trusted
        luck, line = NO_LEVEL
        if level is not None or luck_in_baggage is not None:
            luck, line = self._levels.of(level)
            luck = luck_in_baggage if luck is None else luck
            if not self._is_trusted(scope):
                luck, line = NO_LEVEL
                request, attempt = beliefs.if_not or beliefs.if_trusted
        elif beliefs.if_not is not None and not self._is_trusted(scope):
            request, attempt = beliefs.if_not
        seconds_left: float | None = None
        if deadline_ms is not None:
            try:
                seconds_left = self._seconds[deadline_ms]
            except TypeError:  # It cannot be looked up, and so is no text of a header.
                seconds_left = None
        return request, attempt, beliefs.is_evenly, seconds_left, luck, line

    def _is_trusted(self, scope: Scope) -> bool:
        client = scope.get("client")
        if client:
            peer = client[0]
            # A forwarded header may have said so, and no server says it of a Unix socket.
            if isinstance(peer, str) and peer.startswith("unix"):
                peer = None
        else:
            # A Unix socket has a path and no port, and its peer no address.
            server = scope.get("server")
            peer = "unix:" if server and server[1] is None else None
        if self._trust.is_trusted(peer):
            return True
        tls = (scope.get("extensions") or {}).get("tls")
        has_identity = bool(
            tls and tls.get("client_cert_name") and not tls.get("client_cert_error")
        )
        return self._trust.is_trusted(peer, has_mtls_identity=has_identity)


def _claims(said: bytes | _Headers) -> wire.Claims:
    return wire.claims_of_http(said if isinstance(said, tuple) else ((_AGENT, said),))


@final
class _Seconds(dict[bytes, float | None]):
    """Look up what a deadline says, and read it where it is new: most clients have one time-out."""

    __slots__ = ()

    def __missing__(self, value: bytes) -> float | None:
        # Nearly always, and then it needs no more looking at.
        if type(value) is bytes and len(value) <= _PLAIN_DIGITS and value.isdigit():
            if len(self) >= _REMEMBERED_MOST:
                self.clear()
            seconds = self[value] = int(value) / 1000.0
            return seconds
        claims = wire.Claims(deadline_ms=value)
        return wire.believed(claims, peer_is_trusted=False, now=0.0)[0].deadline_at
