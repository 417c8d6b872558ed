"""Remember what was made of what requests say about themselves.

Most requests of a client say the same, so that reading it again is one look-up.  A request that
claims nothing needs no trust, and its peer is not even asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, final

from evenly.core.request import Request
from evenly.wire.metadata import Claims, believed

__all__ = ["Beliefs", "KnownClaims"]

_REMEMBERED_MOST: Final = 1024
_REMEMBERED_LENGTH: Final = 1024

Said = TypeVar("Said", bound=bytes | tuple[tuple[str | bytes, str | bytes], ...])


@final
class Beliefs:
    """Hold what some claims amount to, for either kind of peer; deadlines are left out."""

    __slots__ = ("if_not", "if_trusted", "is_evenly")

    def __init__(self, claims: Claims, first_attempt: int) -> None:
        self.is_evenly = claims.is_evenly
        """Whether the sender says it is a client of ours."""
        claims.deadline_ms = None
        self.if_trusted = believed(
            claims, peer_is_trusted=True, now=0.0, first_attempt=first_attempt
        )
        """The request and its attempt number, from a peer that is trusted."""
        self.if_not: tuple[Request, int] | None
        """... and from one that is not; `None` where who says it does not matter."""
        self.if_not = believed(claims, peer_is_trusted=False, now=0.0, first_attempt=first_attempt)
        if self.if_not == self.if_trusted:
            self.if_not = None


@final
class KnownClaims(dict[Said, Beliefs]):
    """Look up what is believed of some entries, and read them where they are new.

    What is said is pairs, or one value where the transport knows what that is.  `read` never
    raises; `first_attempt` is the number that a first attempt carries.  A dictionary, so that what
    is known costs no call.
    """

    __slots__ = ("_first_attempt", "_read")

    def __init__(self, read: Callable[[Said], Claims], *, first_attempt: int) -> None:
        super().__init__()
        self._read = read
        self._first_attempt = first_attempt

    def __missing__(self, said: Said) -> Beliefs:
        beliefs = Beliefs(self._read(said), self._first_attempt)
        if _length(said) <= _REMEMBERED_LENGTH:
            if len(self) >= _REMEMBERED_MOST:
                self.clear()
            self[said] = beliefs
        return beliefs


def _length(said: bytes | tuple[tuple[str | bytes, str | bytes], ...]) -> int:
    return sum(len(value) for _, value in said) if isinstance(said, tuple) else len(said)
