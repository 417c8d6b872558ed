"""Say under which name a service is known, whatever its backends' addresses are."""

from __future__ import annotations

__all__ = ["authority_of"]


def authority_of(target: str) -> str | None:
    """Return the service's name, which TLS certificates are checked for; `None` where it has none.

    A service that was looked up is known by its name and not by its backends' addresses.
    """
    if target.startswith("dns:"):
        name = target.removeprefix("dns:").rpartition("/")[2]
        # SRV records are asked for as `_grpc._tcp.search.prod`: the service is `search.prod`.
        while name.startswith("_"):
            name = name.partition(".")[2]
        return name
    if target.startswith(("static:", "file:", "ipv4:", "ipv6:", "unix:")):
        return None
    return target
