"""Look a name up: its addresses are the backends, and they have no index.

A records are taken where there are any, else AAAA records: each address is taken for a backend, so
that both families would count a backend twice.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, final

from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.discovery.dns_query import Addresses, Found, Problem, Query

__all__ = ["HostLookup", "SystemLookup", "by_system"]

SystemLookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]


async def by_system(name: str) -> Sequence[str]:
    """Return the addresses that the system knows for a name (/etc/hosts and the like)."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    for family in (socket.AF_INET, socket.AF_INET6):
        hosts = [str(info[4][0]) for info in infos if info[0] == family]
        if hosts:
            return hosts
    return ()


@final
class HostLookup:
    """Look up `name` in DNS, and in the system where DNS never knew it."""

    def __init__(
        self,
        name: str,
        port: int,
        query: Query,
        *,
        system: SystemLookup | None,
        system_ttl_seconds: float,
    ) -> None:
        self._name = name
        self._port = port
        self._query = query
        self._system = system
        self._system_ttl_seconds = system_ttl_seconds
        self._is_known_to_dns = False

    async def find(self) -> Found | Problem:
        """Return the backends, sorted and without duplicates."""
        found = await self._addresses()
        if isinstance(found, Problem):
            return found
        hosts = {ipaddress.ip_address(host): host for host in found.hosts}
        backends = tuple(
            Backend(address.join(hosts[ip], self._port))
            for ip in sorted(hosts, key=lambda ip: (ip.version, int(ip), str(ip)))
        )
        return Found(backends, found.ttl_seconds)

    async def _addresses(self) -> Addresses | Problem:
        # "Name resolution APIs and libraries SHOULD recognize localhost names as special and [...]
        # SHOULD NOT send queries for localhost names" -- RFC 6761, section 6.3
        name = self._name.lower().removesuffix(".")  # /etc/hosts has no final dots.
        if f".{name}".endswith(".localhost") and self._system is not None:
            return await self._ask_system(name, Problem("DNS is not asked for localhost"))
        found = await self._query.addresses(self._name)
        if not isinstance(found, Problem):
            # From now on DNS alone is believed: a second opinion, while it is down, could only be
            # an older one.
            self._is_known_to_dns = True
        elif not self._is_known_to_dns:
            return await self._ask_system(self._name, found)
        return found

    async def _ask_system(self, name: str, problem: Problem) -> Addresses | Problem:
        if self._system is None:
            return problem
        hosts: Sequence[str] = ()
        try:
            async with asyncio.timeout(self._query.timeout_seconds):
                hosts = await self._system(name)
        except OSError:
            pass  # A time-out is one too, and so is a name that nobody knows.
        if hosts:
            return Addresses(tuple(hosts), self._system_ttl_seconds)
        return Problem(f"{problem.text}; nor does the system know it", problem.is_unknown)
