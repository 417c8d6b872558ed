"""Let in only who has the link, and only under our own name.

The page does things to processes, so whoever else is on this machine or in this browser must not
reach it.  In this order, and before any other code sees the request:

1. `Host` must be ours (`evenly.lab.dashboard.hosts`), also for what holds no secret.
2. `Origin`, where the browser says one, must be the page's own; `null` is nobody's.
3. What changes something is a POST, which no link, image or redirect can make; the rest is not.
4. Everything but the page, its files and the metrics needs the token, as a header.  No other page
   can know it, and none can send a header of its own across origins without being asked, and we
   never answer.  Prometheus has no token.

The token comes from the fragment of the URL, which browsers send to nobody.
"""

from __future__ import annotations

import hmac
from typing import Final, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenly.lab.dashboard.asgi import answer
from evenly.lab.dashboard.hosts import Hosts

__all__ = ["CONTROL", "METRICS", "STATIC", "TARGETS", "TOKEN_HEADER", "Guard"]

CONTROL: Final = "/api/control"
STATIC: Final = "/static"
TARGETS: Final = "/targets"
METRICS: Final = "/metrics"
TOKEN_HEADER: Final = b"evenly-token"

_POLICY: Final = (
    b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"object-src 'none'"
)
_HEADERS: Final = {
    b"content-security-policy": _POLICY,
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


@final
class Refusal(Exception):
    """Carry the answer for who is not let in."""

    def __init__(
        self, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


@final
class Guard:
    """Stand before an ASGI application."""

    def __init__(self, app: ASGIApp, *, hosts: Hosts, token: str) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; either way with the headers that bind the browser."""
        if scope["type"] != "http":
            raise RuntimeError(f"the dashboard speaks http, not {scope['type']!r}")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _guarded(scope["path"], message)}
            await send(message)

        try:
            self._check(scope)
        except Refusal as refusal:
            error = {"error": str(refusal)}
            await answer(send_guarded, refusal.status, error, refusal.headers)
        else:
            await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        self._check_names(scope)
        path = scope["path"]
        allowed = ("POST",) if path == CONTROL else ("GET", "HEAD")
        if scope["method"] not in allowed:
            allow = ", ".join(allowed)
            text = f"the method must be {allow.replace(', ', ' or ')}, not {scope['method']}"
            raise Refusal(405, text, ((b"allow", allow.encode("ascii")),))
        if not _is_public(path):
            self._check_token(scope)

    def _check_names(self, scope: Scope) -> None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._hosts.include(hosts[0].decode("latin-1")):
            raise Refusal(403, "the Host header is not the address of this dashboard")
        # Not any of our hosts, but this one: 127.0.0.1 and localhost are two origins.
        if any(origin != b"http://" + hosts[0] for origin in _values(scope, b"origin")):
            raise Refusal(403, "the Origin header is not the address of this dashboard")

    def _check_token(self, scope: Scope) -> None:
        tokens = _values(scope, TOKEN_HEADER)
        # In constant time, or an answer's delay would tell how much of a guess is right.
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0], self._token):
            text = "the evenly-token header is missing or wrong: use the address that was printed"
            raise Refusal(401, text, ((b"www-authenticate", TOKEN_HEADER),))


def _is_public(path: str) -> bool:
    # All else is secret, also what does not exist: a route added later cannot be forgotten here.
    return path in {TARGETS, METRICS} or _is_page(path)


def _is_page(path: str) -> bool:
    return path == "/" or path.startswith(f"{STATIC}/")


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _guarded(path: str, message: Message) -> list[tuple[bytes, bytes]]:
    # no-cache: keep it, but ask whether it is still so.  After an upgrade old files would not fit.
    ours = {**_HEADERS, b"cache-control": b"no-cache" if _is_page(path) else b"no-store"}
    theirs = [(name, value) for name, value in message.get("headers", ()) if name not in ours]
    return [*theirs, *ours.items()]
