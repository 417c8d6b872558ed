"""What core decides, in gRPC's words; and what gRPC says of a call, in core's.

What a backend of ours refuses, it names in `evenly-reject`.  Of others, RESOURCE_EXHAUSTED is taken
for a refusal where it comes with a retry pushback.  Without one it is an answer: one user's limit,
or a message that is too large, neither of which throttling would change.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final
from urllib.parse import unquote

import grpc

from evenly.core.attempt import Attempt
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.wire.metadata import parse_reject, to_grpc

__all__ = [
    "ERROR_CODES",
    "PUSHBACK_KEY",
    "grpc_target",
    "is_unsent",
    "local_status",
    "options_of",
    "outcome_of",
    "outcome_of_lost",
]

_Code = grpc.StatusCode
# By their own names, because an enum's members take long to look up.
_OK: Final = Outcome.OK
_CODE_OK: Final = _Code.OK

PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""When a server wants to be tried again: gRPC's own word for "not now"."""

ERROR_CODES: Final = frozenset(
    {_Code.UNKNOWN, _Code.INTERNAL, _Code.DATA_LOSS, _Code.UNAVAILABLE, _Code.UNIMPLEMENTED}
)
"""Statuses that say that the backend failed.  UNIMPLEMENTED is among them: in a deploy gone wrong
one backend lacks the method, and must not draw traffic by failing fast.  All others are answers
about the request: NOT_FOUND is the work done."""


_OF_OTHERS: Final = {
    _Code.RESOURCE_EXHAUSTED: Outcome.DONT_RETRY,
    # Without a word from the backend these are what grpc itself says of a broken connection;
    # CANCELLED is what a call gets that meets a server on its way out.
    _Code.UNAVAILABLE: Outcome.LOST,
    _Code.CANCELLED: Outcome.LOST,
}


def outcome_of(
    code: grpc.StatusCode,
    reject: object,
    *,
    is_reported: bool,
    is_cancelled: bool,
    has_pushback: bool = False,
) -> Outcome:
    """Return how an attempt ended.

    `reject` is the value of `evenly-reject`, `is_reported` whether a load report came with the
    status (so that the backend itself, and a backend of ours, has spoken), `is_cancelled` whether
    this side gave up, and `has_pushback` whether the status says when to try again.
    """
    if code is _CODE_OK:
        return _OK
    if is_cancelled:
        return Outcome.CANCELLED
    refused = None if reject is None else parse_reject(reject)
    if refused is not None:
        return refused
    is_limit = code is _Code.RESOURCE_EXHAUSTED and not has_pushback
    if not is_reported and not is_limit and code in _OF_OTHERS:
        return _OF_OTHERS[code]
    if code is _Code.DEADLINE_EXCEEDED:
        return Outcome.TIMEOUT
    return Outcome.ERROR if code in ERROR_CODES else Outcome.OK


def outcome_of_lost(
    attempt: Attempt, details: str | None, now: float, *, is_ready: bool
) -> Outcome:
    """Return what became of a call whose backend said nothing, and whose connection `is_ready`."""
    deadline_at = attempt.request.deadline_at
    if deadline_at is not None and now >= deadline_at:
        return Outcome.TIMEOUT  # The backend's clock was faster: it says CANCELLED then.
    if not is_ready and is_unsent(details, attempt.backend.address):
        return Outcome.NOT_SENT
    return Outcome.LOST


def options_of(  # noqa: PLR0917 -- by position, which is faster
    request: Request,
    number: int,
    now: float,
    metadata: Any,
    credentials: grpc.CallCredentials | None,
    compression: grpc.Compression | None,
    line: float = 0.0,
) -> dict[str, Any]:
    """Return the keywords of gRPC's own call; what nobody asked for is left out, which is fast."""
    options: dict[str, Any] = {}
    if request.deadline_at is not None:
        options["timeout"] = request.deadline_at - now
    ours = to_grpc(request, number, line)
    if ours:
        metadata = ours if metadata is None else (*metadata, *ours)
    if metadata is not None:
        options["metadata"] = metadata
    if credentials is not None:
        options["credentials"] = credentials
    if compression is not None:
        options["compression"] = compression
    return options


def local_status(
    rejection: Rejection, request: Request, target: str
) -> tuple[grpc.StatusCode, str]:
    """Return the status of a request that never left this process."""
    details = f"evenly: {rejection.text}; {target}, {request.criticality.name} (local)"
    if rejection.reason is Reason.EXPIRED:
        return grpc.StatusCode.DEADLINE_EXCEEDED, details
    if rejection.reason is Reason.NO_BACKEND or rejection.reason is Reason.NO_CONNECTION:
        return grpc.StatusCode.UNAVAILABLE, details
    return grpc.StatusCode.RESOURCE_EXHAUSTED, details


def grpc_target(address: str) -> str:
    """Return what to give a channel to one backend: an address as it is, a name to be looked up."""
    if address.startswith(("unix:", "unix-abstract:")):
        return address
    host = address.rpartition(":")[0]
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
    except ValueError:
        return f"dns:///{address}"
    return f"ipv{version}:{address}"


def is_unsent(details: str | None, address: str) -> bool:
    """Return whether gRPC says that the backend at this address has not seen a call.

    Whether any backend has seen it gRPC knows, and says only in words.  A backend that passes on
    the failure of a backend of its own may say nearly the same, but then of another address.  The
    second text has none: it is of a call that was taken back because the backend had said that it
    would not look at it.
    """
    text = unquote(details or "")
    if text.startswith("failed to connect to all addresses"):
        return f" {grpc_target(address)}: " in text
    return text.startswith("Stream removed (GOAWAY received")
