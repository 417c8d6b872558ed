"""Translate how an HTTP exchange ended into an `Outcome`.

What a backend of ours refuses, it names in `evenly-reject`.  Of others, 429 and 503 are taken for
refusals where they come with a word that only refusals for overload have.  A bare 429 is an answer:
it mostly says that one user has had enough, and to throttle everybody would not change that.
"""

from __future__ import annotations

from typing import Final, Protocol

from evenly.core.request import Outcome
from evenly.wire.metadata import REJECT_KEY, parse_reject

__all__ = ["Headers", "outcome_of"]

_REJECT: Final = REJECT_KEY.encode()
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_GATEWAY_TIMEOUT: Final = 504


class Headers(Protocol):
    """Be a response that is asked for its headers, by their names in lower case."""

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""


def outcome_of(
    status: int, headers: Headers, *, is_reported: bool, has_deadline: bool = False
) -> Outcome:
    """Return how an attempt ends that is answered so.

    `is_reported` says whether a load report came with it, so that a backend of ours has spoken, and
    `has_deadline` whether the request had one.
    """
    if status < 500 and status != _TOO_MANY:
        return Outcome.OK  # Of these, all are about the request: 404 is the work done.
    if status in (_TOO_MANY, _UNAVAILABLE):
        refused = parse_reject(headers.get(_REJECT))
        if refused is not None:
            return refused
        if status == _TOO_MANY:
            # A backend of ours says so when it refuses; else it is the handler's own answer.
            is_refusal = not is_reported and _is_overload(headers)
            return Outcome.DONT_RETRY if is_refusal else Outcome.OK
        if not is_reported and _is_overload(headers):
            return Outcome.OVERLOADED
    elif status == _GATEWAY_TIMEOUT and is_reported and has_deadline:
        return Outcome.TIMEOUT  # The backend's clock was faster: it found the deadline passed.
    return Outcome.ERROR


def _is_overload(headers: Headers) -> bool:
    return headers.get(b"retry-after") is not None or headers.get(b"x-envoy-overloaded") is not None
