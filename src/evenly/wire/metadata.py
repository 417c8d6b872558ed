"""What requests and rejections carry beside their bodies, in gRPC's metadata and HTTP's headers.

A request on its first attempt with the default criticality and customer carries nothing at all:
each entry costs gRPC 5 µs and more, and absent means default.  Criticality travels twice, under a
key of ours and in W3C `baggage`, which is what other people's middleware passes on; ours beats it.
The luck is written here, and read in `level.py`.

What is read here is not yet believed: `Claims` holds the values as they came, and `believed` asks
`core.claim`.  Nothing received raises, whatever it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from evenly.core import claim
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import ConfigError, UsageError
from evenly.wire.level import LEVEL_KEY, LUCK_KEY, line_steps, luck_steps

__all__ = [
    "ATTEMPT_COUNT_KEY",
    "BAGGAGE_KEY",
    "CRITICALITY_KEY",
    "CUSTOMER_KEY",
    "DEADLINE_KEY",
    "DEGRADED",
    "PREVIOUS_ATTEMPTS_KEY",
    "REJECT_KEY",
    "Claims",
    "believed",
    "claims_of_grpc",
    "claims_of_http",
    "parse_reject",
    "rejection_to_grpc",
    "rejection_to_http",
    "to_grpc",
    "to_http",
]

CRITICALITY_KEY: Final = "evenly-criticality"
CUSTOMER_KEY: Final = "evenly-customer"
DEADLINE_KEY: Final = "evenly-deadline-ms"
BAGGAGE_KEY: Final = "baggage"
PREVIOUS_ATTEMPTS_KEY: Final = "grpc-previous-rpc-attempts"
"""gRPC's own, counted from 0: absent on the first attempt, 1 on the second."""
ATTEMPT_COUNT_KEY: Final = "x-envoy-attempt-count"
"""Envoy's, counted from 1."""
REJECT_KEY: Final = "evenly-reject"
DEGRADED: Final = ("evenly-degraded", "1")

Entries = tuple[tuple[str, str], ...]

_GRPC_FIELDS: Final[Mapping[object, str]] = {
    CRITICALITY_KEY: "criticality",
    CUSTOMER_KEY: "customer",
    PREVIOUS_ATTEMPTS_KEY: "attempt",
    BAGGAGE_KEY: "baggage",
    "user-agent": "agent",
}
_HTTP_FIELDS: Final[Mapping[object, str]] = {
    CRITICALITY_KEY.encode(): "criticality",
    CUSTOMER_KEY.encode(): "customer",
    ATTEMPT_COUNT_KEY.encode(): "attempt",
    DEADLINE_KEY.encode(): "deadline_ms",
    BAGGAGE_KEY.encode(): "baggage",
    b"user-agent": "agent",
}
# What everyone has to pass on (W3C Baggage, "Limits"): beyond it, nobody can count on an entry.
_BAGGAGE_LOOKED_AT: Final = 8192
# Not after ";": there come the properties of another member.
_BAGGAGE_MEMBER: Final = re.compile(
    rf"(?:\A|,)[ \t]*+{CRITICALITY_KEY}[ \t]*+=[ \t]*+"
    rf"({'|'.join(Criticality.__members__)})[ \t]*+(?:[;,]|\Z)"
)
# gRPC puts the application's own agent first, and honest ones are short.
_AGENT_LOOKED_AT: Final = 512
# Beyond this a millisecond is less than a float's precision; readers stop at a month anyway.
_DEADLINE_MAX_MS: Final = 2.0**53
_RETRY_AFTER_MAX_SECONDS: Final = 86_400.0


def to_grpc(request: Request, attempt: int, line: float = 0.0) -> Entries:
    """Return the metadata of one attempt, 1 for the first.  The deadline is gRPC's own matter.

    `line` is the level below which the client task sends nothing.
    """
    criticality, luck = request.criticality, request.luck
    if luck is None and not line:
        return _grpc_entries(criticality, request.customer, attempt, True)
    entries = _grpc_entries(criticality, request.customer, attempt, False)
    return (*entries, *_level_entries(criticality, luck_steps(luck), line_steps(line)))


def to_http(request: Request, attempt: int, now: float, line: float = 0.0) -> Entries:
    """Return the headers of one attempt, 1 for the first, with what remains of the deadline."""
    criticality, luck = request.criticality, request.luck
    if luck is None and not line:
        entries = _http_entries(criticality, request.customer, attempt, True)
    else:
        entries = _http_entries(criticality, request.customer, attempt, False)
        entries = (*entries, *_level_entries(criticality, luck_steps(luck), line_steps(line)))
    if request.deadline_at is None:
        return entries
    remaining_ms = (request.deadline_at - now) * 1000.0
    if not remaining_ms <= _DEADLINE_MAX_MS:
        return entries
    # Rounded down: the backend should give up no later than we do.
    return (*entries, (DEADLINE_KEY, str(int(max(0.0, remaining_ms)))))


# Requests of few kinds repeat, so that this is one look-up for each.  Bounded, because customers
# may be many.
@lru_cache(maxsize=1024)
def _grpc_entries(criticality: Criticality, customer: str, attempt: int, is_all: bool) -> Entries:
    entries = _carried(criticality, customer, is_all)
    return (*entries, (PREVIOUS_ATTEMPTS_KEY, str(attempt - 1))) if attempt > 1 else entries


@lru_cache(maxsize=1024)
def _http_entries(criticality: Criticality, customer: str, attempt: int, is_all: bool) -> Entries:
    entries = _carried(criticality, customer, is_all)
    return (*entries, (ATTEMPT_COUNT_KEY, str(attempt))) if attempt > 1 else entries


# Apart, for a luck that differs from request to request would leave no room for the others.
@lru_cache(maxsize=4096)
def _level_entries(criticality: Criticality, luck: int | None, line: int) -> Entries:
    """Return luck and line, and `baggage`, which says both criticality and luck."""
    said: list[str] = []
    baggage: list[str] = []
    if criticality is not Criticality.CRITICAL:
        baggage.append(f"{CRITICALITY_KEY}={criticality.name}")
    if luck is not None:
        said.append(f"u={luck}")
        if baggage:
            baggage.append(f"{LUCK_KEY}={luck}")
    if line:
        said.append(f"l={line}")
    entries: Entries = ()
    if said:
        entries = ((LEVEL_KEY, ";".join(said)),)
    if baggage:
        entries = (*entries, (BAGGAGE_KEY, ",".join(baggage)))
    return entries


def _carried(criticality: Criticality, customer: str, is_all: bool) -> Entries:
    """Return what is said of any attempt; `is_all` unless its level will be said too."""
    entries: Entries = ()
    if criticality is not Criticality.CRITICAL:
        entries = ((CRITICALITY_KEY, criticality.name),)
        if is_all:
            entries = (*entries, *_level_entries(criticality, None, 0))
    if customer:
        # A line break in it would be a header of the customer's own.
        if not claim.is_customer(customer):
            raise ConfigError(f"no header can carry the customer {customer!r:.200}")
        entries = (*entries, (CUSTOMER_KEY, customer))
    return entries


@final
@dataclass(slots=True)
class Claims:
    """Hold what a request says about itself, as received: any type, any length, not believed."""

    criticality: object = None
    customer: object = None
    attempt: object = None
    deadline_ms: object = None
    is_evenly: bool = False
    """Whether the sender says it is a client of ours: it then understands `evenly-` trailers."""
    from_baggage: bool = False
    """Whether the criticality comes from `baggage`, which only trusted peers are believed."""


def claims_of_grpc(metadata: Iterable[tuple[str, str | bytes]]) -> Claims:
    """Read a request's metadata, in one pass."""
    return _claims(metadata, str, _GRPC_FIELDS)


def claims_of_http(headers: Iterable[tuple[bytes, bytes]]) -> Claims:
    """Read a request's headers, in one pass; names in lower case, as ASGI has them."""
    return _claims(headers, bytes, _HTTP_FIELDS)


def believed(
    claims: Claims,
    *,
    peer_is_trusted: bool,
    now: float,
    deadline_ms: object = None,
    first_attempt: int = 0,
    default_criticality: Criticality = Criticality.CRITICAL,
) -> tuple[Request, int]:
    """Return the request that the claims amount to, and its attempt number, 1 for the first.

    `deadline_ms` is the transport's own, where it has one.  `first_attempt` is 0 for gRPC, which
    counts *previous* attempts, and 1 for HTTP.
    """
    is_hidden = claims.from_baggage and not peer_is_trusted
    return claim.believe(
        criticality=None if is_hidden else claims.criticality,
        customer=claims.customer,
        attempt=claims.attempt,
        deadline_ms=claims.deadline_ms if deadline_ms is None else deadline_ms,
        peer_is_trusted=peer_is_trusted,
        now=now,
        first_attempt=first_attempt,
        default_criticality=default_criticality,
    )


def _claims(
    entries: Iterable[tuple[object, object]], key_type: type, fields: Mapping[object, str]
) -> Claims:
    found: dict[str, object] = {}
    baggage: list[object] = []
    for key, value in entries:
        field = fields.get(key) if type(key) is key_type else None
        if field is None:
            continue
        if field == "baggage":
            baggage.append(value)
        elif field not in found:  # The first one counts.
            found[field] = value
    claims = Claims(
        found.get("criticality"),
        found.get("customer"),
        found.get("attempt"),
        found.get("deadline_ms"),
        "evenly/" in _text(found.get("agent"), _AGENT_LOOKED_AT),
    )
    if baggage and claims.criticality is None:
        claims.criticality = _criticality_in(baggage)
        claims.from_baggage = claims.criticality is not None
    return claims


def _criticality_in(baggage: Iterable[object]) -> str | None:
    """Return the first valid criticality of several `baggage` headers, each with many members."""
    left = _BAGGAGE_LOOKED_AT
    for value in baggage:
        text = _text(value, left + 1)  # One more, to see whether it was cut.
        left -= len(text)  # −1 once it was, and then nothing more is read.
        if left < 0:  # Drop the member that may have been cut: half of CRITICAL_PLUS is CRITICAL.
            text = text.rpartition(",")[0]
        # Most baggage is about other things, and this takes a twentieth of the pattern's time.
        match = _BAGGAGE_MEMBER.search(text) if CRITICALITY_KEY in text else None
        if match is not None:
            return match[1]
    return None


def _text(value: object, max_length: int) -> str:
    """Return the beginning of a text, and nothing where there is no text."""
    if type(value) is str:
        return value[:max_length]
    if type(value) is bytes:
        return value[:max_length].decode("latin-1")
    return ""


_OVERLOADED: Final = (REJECT_KEY, "overloaded")
_DONT_RETRY: Final = (REJECT_KEY, "dont-retry")
_QUOTA: Final = (REJECT_KEY, "quota")
_PUSHBACK: Final = ("grpc-retry-pushback-ms", "-1")
# Envoy retries on x-envoy-overloaded; only this one stops it.
_RATE_LIMITED: Final = ("x-envoy-ratelimited", "true")
# Who sent an expired request has given up, and its status says it all.
_GRPC_REJECTIONS: Final[Mapping[Reason, Entries]] = {
    Reason.EXPIRED: (),
    Reason.OVERLOADED: (_OVERLOADED,),
    Reason.DONT_RETRY: (_DONT_RETRY, _PUSHBACK),
    Reason.OUT_OF_QUOTA: (_QUOTA, _PUSHBACK),
}
_HTTP_REJECTIONS: Final[Mapping[Reason, Entries]] = {
    Reason.EXPIRED: (),
    Reason.OVERLOADED: (_OVERLOADED,),
    Reason.DONT_RETRY: (_DONT_RETRY, _RATE_LIMITED),
    Reason.OUT_OF_QUOTA: (_QUOTA, _RATE_LIMITED),
}
_OUTCOMES: Final = {
    _OVERLOADED[1]: Outcome.OVERLOADED,
    _DONT_RETRY[1]: Outcome.DONT_RETRY,
    _QUOTA[1]: Outcome.OUT_OF_QUOTA,
}


def rejection_to_grpc(rejection: Rejection) -> Entries:
    """Return the trailing metadata of a refusal: "do not retry" is said in gRPC's words too."""
    return _entries_of(rejection, _GRPC_REJECTIONS)


def rejection_to_http(rejection: Rejection) -> Entries:
    """Return the headers of a refusal: "do not retry" is said in Envoy's words too."""
    entries = _entries_of(rejection, _HTTP_REJECTIONS)
    seconds = rejection.retry_after_seconds
    if rejection.reason is not Reason.OUT_OF_QUOTA or seconds is None:
        return entries
    # Written so that NaN asks for the longest wait: nobody knows when there will be quota.
    if not seconds < _RETRY_AFTER_MAX_SECONDS:
        seconds = _RETRY_AFTER_MAX_SECONDS
    return (*entries, ("retry-after", str(math.ceil(max(1.0, seconds)))))


def parse_reject(value: object) -> Outcome | None:
    """Return how a backend's `evenly-reject` ends an attempt, or `None` for anything else."""
    return _OUTCOMES.get(_text(value, 16))  # More than the longest has: a longer text stays wrong.


def _entries_of(rejection: Rejection, table: Mapping[Reason, Entries]) -> Entries:
    entries = table.get(rejection.reason)
    if entries is None:
        raise UsageError(f"{rejection.reason.name} is a client task's own refusal: it is not sent")
    return entries
