"""Backends that are listed in the target itself: `static:`, and gRPC's `ipv4:`, `ipv6:`, `unix:`.

A backend's index is its position, and an empty entry is a hole: whoever takes a backend out of
`static:a:1,b:2,c:3` writes `static:a:1,,c:3`, and nobody else's place moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import final

from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.errors import ConfigError

__all__ = ["StaticDiscovery", "parse_list"]


@final
class StaticDiscovery:
    """Say the same list once, and then nothing more."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._backends = tuple(backends)

    async def watch(self) -> AsyncGenerator[Sequence[Backend], None]:
        """Yield the list, then wait until cancelled."""
        yield self._backends
        await asyncio.Event().wait()


def parse_list(scheme: str, text: str) -> tuple[Backend, ...]:
    """Return the backends of `host:port,host:port,…`, each with its position as its index.

    With scheme `ipv4` or `ipv6` all hosts have to be addresses of that family.
    """
    what = f"an address in {scheme}:"
    backends: list[Backend] = []
    positions: dict[str, int] = {}
    for position, entry in enumerate(text.split(",")):
        if not entry.strip():
            continue
        if scheme == "static":
            place = address.parse(entry.strip(), what)
        else:
            place = _literal(scheme, entry.strip())
        if place in positions:
            raise ConfigError(
                f"{scheme}: lists {address.shown(place)} at positions {positions[place]} and"
                f" {position}; every backend must be listed once"
            )
        positions[place] = position
        backends.append(Backend(place, position))
    if not backends:
        raise ConfigError(f"{scheme}: must list at least one host:port, not {address.shown(text)}")
    return tuple(backends)


def _literal(scheme: str, entry: str) -> str:
    host, port = address.split(entry, f"an address in {scheme}:")
    is_v6 = ":" in host
    if address.canonical_ip(host) is None or is_v6 != (scheme == "ipv6"):
        form = "[IPv6 address]:port" if scheme == "ipv6" else "IPv4 address:port"
        raise ConfigError(
            f"an address in {scheme}: must be {form} (names: use static: or dns:),"
            f" not {address.shown(entry)}"
        )
    return address.join(host, port)
