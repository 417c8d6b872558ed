"""What a backend says in HTTP's words: the answer of a refusal, the headers of every response.

`docs/wire.md` has the table of statuses.  Nothing is guessed from a status or a text: a refusal is
named in `evenly-reject` too, and the JSON body is for people and their logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.http.server.asgi import Header, Scope, Send
from evenly.runtime.answer import LoadEntries, details, passed_on
from evenly.runtime.backend import BackendRuntime
from evenly.wire import load_header, orca
from evenly.wire.metadata import DEGRADED, rejection_to_http

__all__ = ["Answers", "outcome_of_status", "send_json"]

_STATUS: Final = {
    Reason.EXPIRED: 504,
    Reason.OVERLOADED: 503,
    Reason.DONT_RETRY: 503,
    Reason.OUT_OF_QUOTA: 429,
}
_ERROR: Final = {
    Reason.EXPIRED: "expired",
    Reason.OVERLOADED: "overloaded",
    Reason.DONT_RETRY: "dont-retry",
    Reason.OUT_OF_QUOTA: "quota",
}
_CLOSE: Final = (b"connection", b"close")
_DEGRADED: Final = (DEGRADED[0].encode(), DEGRADED[1].encode())
_LOAD_NAME: Final = load_header.KEY.encode()
_ORCA_NAME: Final = orca.HTTP_KEY.encode()
# What uvicorn reads ahead, whether the application wants it or not.
_BODY_MOST_BYTES: Final = 64 * 1024

_Refusal = tuple[tuple[Header, ...], bytes]


def outcome_of_status(status: int) -> Outcome:
    """Return how a request ended that was answered with this status.

    What the client calls an error is one here too (`evenly.http.client.outcome`).
    """
    if status < 500:
        return Outcome.OK
    return Outcome.TIMEOUT if status == 504 else Outcome.ERROR


@final
class Answers:
    """Make the headers that a response of this backend carries, and whole refusals."""

    def __init__(self, runtime: BackendRuntime) -> None:
        self.loads = loads = LoadEntries(runtime, load=_load_header, orca=_orca_header)
        # Bound once: this runs once per request.
        self.load: Callable[[bool], tuple[Header, ...]] = loads.entries
        """Return the load report, in the words that this client understands."""
        self.news_for: Callable[[Hashable], tuple[Header, ...]] = loads.news_for
        """Return the load report for a client of ours, unless this connection was told it."""
        self.should_degrade = runtime.should_degrade
        self.is_lame_duck = runtime.is_lame_duck
        self._refusals: dict[tuple[Reason, Criticality], _Refusal] = {}
        runtime.on_state(self._changed)

    def mark(
        self, headers: list[Header], scope: Scope, *, to_evenly: bool, is_degraded: bool
    ) -> None:
        """Add what is not said in every response."""
        if is_degraded:
            headers.append(_DEGRADED)
        # A client of ours has heard; others go on sending to whomever they are connected to.
        if self.is_lame_duck and not to_evenly and _can_close(scope):
            _close(headers)

    async def refuse(
        self,
        rejection: Rejection,
        request: Request,
        scope: Scope,
        send: Send,
        *,
        to_evenly: bool,
        error: BaseException | None = None,
    ) -> None:
        """Answer a request that is refused, or whose handler let the refusal `error` out."""
        if rejection.reason is Reason.OUT_OF_QUOTA or error is not None:
            own, body = _refusal(rejection, request, error)
        else:
            # Few kinds, and made often: a refusal has to be cheap.
            key = (rejection.reason, request.criticality)
            known = self._refusals.get(key)
            if known is None:
                known = self._refusals[key] = _refusal(rejection, request, None)
            own, body = known
        headers = [*own, *self.load(to_evenly)]
        self.mark(headers, scope, to_evenly=to_evenly, is_degraded=False)
        if _can_close(scope) and _has_large_body(scope):
            _close(headers)
        await send(
            {
                "type": "http.response.start",
                "status": _STATUS[rejection.reason],
                "headers": headers,
            }
        )
        await send({"type": "http.response.body", "body": body})

    def _changed(self, is_lame_duck: bool) -> None:
        self.is_lame_duck = is_lame_duck


async def send_json(
    send: Send, status: int, said: dict[str, object], headers: Iterable[Header]
) -> None:
    """Send a small answer of our own."""
    body = _json(said)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*_headers_of(body), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _refusal(rejection: Rejection, request: Request, error: BaseException | None) -> _Refusal:
    text = details(rejection, request)
    body = _json(
        {
            "error": _ERROR[rejection.reason],
            "detail": text if error is None else passed_on(text, error),
            "retryable": rejection.retryable,
            "criticality": request.criticality.name,
        }
    )
    named = [(name.encode(), value.encode()) for name, value in rejection_to_http(rejection)]
    return (*_headers_of(body), *named), body


def _json(said: dict[str, object]) -> bytes:
    return json.dumps(said).encode()


def _headers_of(body: bytes) -> tuple[Header, ...]:
    return (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    )


def _load_header(text: str) -> Header:
    return _LOAD_NAME, text.encode()


def _orca_header(report: LoadReport, memory_utilization: float) -> Header:
    return _ORCA_NAME, orca.text(report, memory_utilization=memory_utilization).encode()


def _close(headers: list[Header]) -> None:
    """Ask that the connection be closed, unless the application has said something about it."""
    if not any(name.lower() == b"connection" for name, _ in headers):
        headers.append(_CLOSE)


def _can_close(scope: Scope) -> bool:
    # From HTTP/2 on there is no such header (RFC 9113, section 8.2.2).
    version: str = scope.get("http_version", "1.1")
    return version.startswith("1")


def _has_large_body(scope: Scope) -> bool:
    """Return whether a body is announced that would have to be read for the next request's sake.

    Whoever waits to be told to go on may leave its body out once it is refused, or send it: nobody
    knows where the next request begins.
    """
    for name, value in scope.get("headers") or ():
        if name in {b"transfer-encoding", b"expect"}:
            return True
        # Not int() alone, which takes more than digits; the server has parsed it anyway.
        if name == b"content-length" and not (
            value.isdigit() and len(value) < 10 and int(value) <= _BODY_MOST_BYTES
        ):
            return True
    return False
