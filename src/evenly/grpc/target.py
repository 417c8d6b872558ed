"""Name backends as gRPC does."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

from evenly.discovery.authority import authority_of

__all__ = ["authority_of", "grpc_target", "is_unsent"]


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
