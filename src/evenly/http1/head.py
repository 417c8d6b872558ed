"""Write the head of an HTTP/1.1 request, and refuse what would not be one (RFC 9112).

A line break in a value would be a second header or a second request, chosen by whoever chose the
value: nothing is escaped or repaired here, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from evenly.discovery.address import shown
from evenly.errors import ConfigError

__all__ = ["WITH_BODY", "check_visible", "request_head"]

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 9110, section 5.5: visible characters, spaces and tabs; what is above ASCII is opaque.
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_LENGTH: Final = re.compile(r"[0-9]{1,19}")
# Names of headers in lower case, by the spelling that was checked: there are few, and a look-up
# costs a tenth of the check.  Bounded, because a caller may make names up.
_NAMES: Final[dict[str, str]] = {}
_NAMES_MAX: Final = 1024
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
"""A body is expected of these, so that having none is worth saying (RFC 9110, section 8.6)."""


def request_head(
    method: str,
    target: str,
    headers: Iterable[tuple[str | bytes, str | bytes]],
    *,
    host: str,
    body_length: int | None,
    is_chunked: bool,
) -> bytes:
    """Return the request line and the headers, down to the empty line.

    `Host`, `Content-Length` and `Transfer-Encoding` are added unless they are given; given ones
    that contradict the body are refused with a `ConfigError`, as is everything else that is no
    HTTP.
    """
    if method not in _NAMES:
        _checked_name("method", method)
    if method == "CONNECT":
        raise ConfigError("method must not be CONNECT: there are no tunnels here")
    check_visible("target", target)
    lines = [f"{method} {target} HTTP/1.1"]
    # Host comes first, as RFC 9110, section 7.2 asks; a given one takes its place.
    lines.append("")
    given_host = given_length = given_coding = None
    for raw_name, raw_value in headers:
        name = raw_name if isinstance(raw_name, str) else raw_name.decode("latin-1")
        value = raw_value if isinstance(raw_value, str) else raw_value.decode("latin-1")
        lower = _NAMES.get(name) or _checked_name("header name", name)
        # Two quick tests for what nearly all values are; isprintable refuses all controls.
        if not (value.isascii() and value.isprintable()) and not _VALUE.fullmatch(value):
            raise ConfigError(f"header {name} must have no control characters, not {shown(value)}")
        if lower == "host":
            given_host = _only_one("Host", given_host, value)
            continue
        if lower == "content-length":
            given_length = _only_one("Content-Length", given_length, value)
        elif lower == "transfer-encoding":
            given_coding = _only_one("Transfer-Encoding", given_coding, value)
        lines.append(f"{name}: {value}")
    if given_host is None:
        check_visible("host", host)
        given_host = host
    lines[1] = f"Host: {given_host}"
    framing = _framing(method, body_length, is_chunked, given_length, given_coding)
    if framing is not None:
        lines.append(framing)
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1")


def _framing(
    method: str,
    body_length: int | None,
    is_chunked: bool,
    given_length: str | None,
    given_coding: str | None,
) -> str | None:
    """Return the header that says how long the body is, unless it is given or needless."""
    if is_chunked and body_length is not None:
        raise ConfigError(f"a chunked body must have no body_length, not {body_length}")
    if given_coding is not None and (given_coding.lower() != "chunked" or not is_chunked):
        raise ConfigError(
            "header Transfer-Encoding must be chunked, and the body too,"
            f" not {shown(given_coding)} with is_chunked={is_chunked}"
        )
    if given_length is not None and (
        not _LENGTH.fullmatch(given_length) or is_chunked or int(given_length) != (body_length or 0)
    ):
        raise ConfigError(
            f"header Content-Length must be the body's length ({body_length}),"
            f" not {shown(given_length)} with is_chunked={is_chunked}"
        )
    if is_chunked:
        return "Transfer-Encoding: chunked" if given_coding is None else None
    if given_length is not None or body_length is None:
        return None
    return f"Content-Length: {body_length}" if body_length or method in WITH_BODY else None


def _only_one(name: str, given: str | None, value: str) -> str:
    if given is not None:
        raise ConfigError(
            f"header {name} must be given once, not as {shown(given)} and {shown(value)}"
        )
    return value


def _checked_name(what: str, name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"{what} must be a token (RFC 9110, section 5.6.2), not {shown(name)}")
    lower = name.lower()
    if len(_NAMES) < _NAMES_MAX:
        _NAMES[name] = lower
    return lower


def check_visible(what: str, text: str) -> None:
    """Refuse what cannot stand in the first two lines; `what` names it."""
    if not (text and text.isascii() and text.isprintable() and " " not in text):
        raise ConfigError(f"{what} must be visible ASCII characters, not {shown(text)}")
