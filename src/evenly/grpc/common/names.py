"""The names that gRPC has for services, methods and addresses."""

from __future__ import annotations

from typing import Final

import grpc

__all__ = ["HEALTH_SERVICE", "ORCA_SERVICE", "is_exempt", "name_of", "split_address"]

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
ORCA_SERVICE: Final = "xds.service.orca.v3.OpenRcaService"
_EXEMPT: Final = (f"/{HEALTH_SERVICE}/", f"/{ORCA_SERVICE}/")


def is_exempt(method: str) -> bool:
    """Return whether a method, `/package.Service/Method`, is served without admission."""
    return method.startswith(_EXEMPT)


def name_of(handler: grpc.GenericRpcHandler) -> str | None:
    """Return the name of the service whose methods a generic handler has, if it says so."""
    service_name = getattr(handler, "service_name", None)
    return None if service_name is None else service_name()


def split_address(address: str) -> tuple[str, int] | None:
    """Return host and port of an address as gRPC has it; `None` where there is no UDP."""
    text = address
    for scheme in ("ipv4:", "ipv6:", "dns:"):
        text = text.removeprefix(scheme)
    host, colon, port = text.removeprefix("///").rpartition(":")
    is_port = colon and port.isascii() and port.isdigit() and int(port) <= 65535
    is_host = "/" not in host and (":" not in host or host.startswith("["))
    if host == "0.0.0.0":  # noqa: S104 -- for gRPC that is every address, of both families
        host = "::"
    return (host, int(port)) if is_port and is_host else None
