"""Read and write the addresses of backends: `host:port`, with IPv6 in brackets, or `unix:/path`.

Each address has one spelling, because views of backends are keyed by it: IP addresses are written
in their canonical form.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Final

from evenly.errors import ConfigError

__all__ = ["canonical_ip", "is_name", "join", "parse", "shown", "split", "unix"]

_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_PORT_MAX: Final = 65_535
# RFC 1123, and the underscore, which container tools put into names of services.
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NAME_MAX: Final = 253
_ZONE: Final = re.compile(r"[0-9A-Za-z._-]{1,32}")
_SHOWN_MAX: Final = 120
# sockaddr_un has 108 bytes for the path and its final zero (unix(7)).
_UNIX_PATH_MAX_BYTES: Final = 107
_ALLOWED: Final = (
    "host:port with a name, an IPv4 address or an IPv6 address in brackets and a port in [1, 65535]"
)


def parse(text: str, what: str) -> str:
    """Return an address in its one spelling; `what` names the value in the `ConfigError`."""
    if text.startswith("unix:"):
        return unix(text.removeprefix("unix:"), what)
    return join(*split(text, what))


def split(text: str, what: str) -> tuple[str, int]:
    """Return the host (an IPv6 address without its brackets) and the port of `host:port`."""
    host, colon, port = text.rpartition(":")
    if colon and _PORT.fullmatch(port) and int(port) <= _PORT_MAX:
        if host.startswith("[") and host.endswith("]"):
            ip = canonical_ip(host[1:-1])
            if ip is not None and ":" in ip:
                return ip, int(port)
        else:
            ip = canonical_ip(host)
            # Without brackets the last group of an IPv6 address would pass for a port.
            if ip is not None and ":" not in ip:
                return ip, int(port)
            if is_name(host):
                return host, int(port)
    raise ConfigError(f"{what} must be {_ALLOWED}, not {shown(text)}")


def join(host: str, port: int) -> str:
    """Return `host:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unix(path: str, what: str) -> str:
    """Return the address of a Unix socket; `/path` and `///path` are the same."""
    if path.startswith("///"):
        path = path[2:]
    if (
        not path.startswith("/")
        or path.startswith("//")
        or not path.isprintable()
        or len(os.fsencode(path)) > _UNIX_PATH_MAX_BYTES
    ):
        raise ConfigError(
            f"{what} must be unix: and an absolute path of printable characters, at most"
            f" {_UNIX_PATH_MAX_BYTES} bytes, not {shown(path)}"
        )
    return f"unix:{path}"


def canonical_ip(text: str) -> str | None:
    """Return an IP address in its one spelling, or `None` if it is none."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is not None:
        return str(ip) if _ZONE.fullmatch(ip.scope_id) else None
    return str(ip)


def is_name(text: str) -> bool:
    """Return whether DNS could know a host of this name; other scripts come as `xn--`."""
    labels = text.removesuffix(".").split(".")
    return (
        len(text) <= _NAME_MAX
        and all(_LABEL.fullmatch(label) for label in labels)
        # No top-level domain is a number: this is an IPv4 address with a mistake in it.
        and not labels[-1].isdigit()
    )


def shown(value: object) -> str:
    """Return a value as it may stand in a message: quoted, escaped and not too long."""
    text = ascii(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
