"""Know the names under which a browser may speak to the dashboard.

A page of a stranger can have its own name point to 127.0.0.1 ("DNS rebinding"), and is then the
same origin as far as the browser is concerned.  But the browser still says that name in `Host`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Hosts", "hosts_of", "in_url"]

_AUTHORITY: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::(?P<port>[0-9]+))?")
_HTTP_PORT: Final = "80"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Be the values of `Host` that are ours."""

    names: frozenset[str]
    port: int
    is_any_address: bool = False
    """Whether every numeric address counts: for who listens on all of them.

    That is safe: to rebind a name one has to use a name.
    """

    def include(self, host: str) -> bool:
        """Return whether a `Host` header is one of ours."""
        match = _AUTHORITY.fullmatch(host.lower())
        # Browsers leave the port of the scheme out.
        if match is None or (match["port"] or _HTTP_PORT) != str(self.port):
            return False
        name = match["name"]
        return name in self.names or (self.is_any_address and _is_address(name.strip("[]")))


def hosts_of(host: str, address: str, port: int) -> Hosts:
    """Return the hosts of who was asked to listen on `host` and is bound to `address`."""
    bound = ipaddress.ip_address(address)
    names = {in_url(host.lower()), in_url(address)}
    if bound.is_loopback or bound.is_unspecified:
        names.add("localhost")
    return Hosts(names=frozenset(names), port=port, is_any_address=bound.is_unspecified)


def in_url(host: str) -> str:
    """Return a host as URLs and `Host` write it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
