"""Turn a target string into something that says which backends there are.

The schemes are gRPC's own where it has one, so that a target can be taken over unchanged.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.discovery.file import FileDiscovery
from evenly.discovery.static import StaticDiscovery, parse_list
from evenly.errors import ConfigError

if TYPE_CHECKING:
    from evenly.discovery.dns import DnsDiscovery

__all__ = ["Discovery", "from_target"]

_DNS_PORT: Final = 53
# What no host:port is: a word, and behind its colon a name, an address or another colon.
_HAS_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+-]*:(?:[A-Za-z]|.*[.:])").match


class Discovery(Protocol):
    """Say which backends a service has, and say so again when that changes."""

    def watch(self) -> AsyncIterator[Sequence[Backend]]:
        """Yield each new list of backends, the first one as soon as it is known.

        It never ends and never raises for what it finds: a source that fails keeps its last list.
        Each call watches on its own.  Cancel whoever waits for the next list to end it.
        """


def from_target(target: str | Discovery) -> Discovery:
    """Return the discovery that `target` names or is, or raise `ConfigError`.

    Nothing is opened yet.
    """
    if not isinstance(target, str):
        # A class has a `watch` too, but nobody to call it on.
        if isinstance(target, type) or not callable(getattr(target, "watch", None)):
            raise ConfigError(
                f"target must be a string or a Discovery, not {address.shown(target)}"
            )
        return target
    scheme, _, rest = target.partition(":")
    match scheme:
        case "static" | "ipv4" | "ipv6":
            return StaticDiscovery(parse_list(scheme, rest))
        case "unix":
            return StaticDiscovery([Backend(address.unix(rest, "target"), 0)])
        case "file":
            return FileDiscovery(_file_path(rest))
        case "dns":
            return _dns(rest)
    if "/" in target or "," in target or (_HAS_SCHEME(target) and not _is_bare_ipv6(target)):
        raise ConfigError(
            "target must be host:port or begin with dns:, file:, static:, ipv4:, ipv6: or unix:,"
            f" not {address.shown(target)}"
        )
    return _dns(target)


def _is_bare_ipv6(target: str) -> bool:
    """Return whether this is an IPv6 address without its brackets, with a port or without."""
    return any(address.canonical_ip(text) for text in (target, target.rpartition(":")[0]))


def _file_path(rest: str) -> str:
    path = rest[2:] if rest.startswith("///") else rest
    if not path.startswith("/") or path.startswith("//") or "\0" in path:
        raise ConfigError(
            f"file: must be followed by an absolute path, as in file:/path or file:///path,"
            f" not {address.shown(rest)}"
        )
    return path


def _dns(rest: str) -> Discovery:
    server = None
    if rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        if not slash:
            raise ConfigError(
                "dns:// must be followed by a DNS server or nothing, then / and the name, as in"
                f" dns:///host:port, not {address.shown(authority)}"
            )
        if authority:
            server = _server(authority)
    if rest.startswith("_"):
        if not address.is_name(rest):
            raise ConfigError(
                "dns: with a name that begins with _ asks for SRV records, which have ports of"
                " their own; it must be a name like _grpc._tcp.search.prod, not"
                f" {address.shown(rest)}"
            )
        return _dns_discovery()(rest, None, server=server)
    host, port = address.split(rest, "a dns: target, as any without a scheme,")
    if address.canonical_ip(host) is not None:
        return StaticDiscovery([Backend(address.join(host, port))])
    return _dns_discovery()(host, port, server=server)


def _server(authority: str) -> tuple[str, int]:
    ip = address.canonical_ip(authority.removeprefix("[").removesuffix("]"))
    if ip is not None:
        return ip, _DNS_PORT
    host, port = address.split(authority, "the DNS server in dns://server/name")
    if address.canonical_ip(host) is None:
        raise ConfigError(
            "the DNS server in dns://server/name must be an IP address, or one with a port,"
            f" not {address.shown(authority)}"
        )
    return host, port


def _dns_discovery() -> type[DnsDiscovery]:
    try:
        from evenly.discovery.dns import DnsDiscovery  # noqa: PLC0415  An extra.
    except ImportError as error:
        raise ImportError(
            'dns: targets need dnspython: pip install "evenly[grpc]"', name=error.name
        ) from error
    return DnsDiscovery
