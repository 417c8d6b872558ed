"""Look a service up by its SRV records (RFC 2782): they say targets and ports.

A target is a backend with a stable index where its first label ends in `-` and a number, as the
pods of a StatefulSet do: `search-3.search.prod` is backend 3.  Records of the lowest priority
number are taken; their weights are not, because backends say themselves what they can take.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, final

import dns.name
import dns.rdtypes.IN.SRV
import dns.resolver
from dns.rdatatype import RdataType

from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.discovery.dns_query import Addresses, Found, Problem, Query, end, hosts_of, ttl_of
from evenly.errors import ConfigError

__all__ = ["ServiceLookup"]

_ORDINAL: Final = re.compile(r".*-([0-9]{1,9})")
# Targets whose addresses did not come with the SRV records are asked for, so many at a time.
_CONCURRENT_TARGETS: Final = 16


@final
class ServiceLookup:
    """Look up the SRV records of `name` and the addresses of their targets."""

    def __init__(self, name: str, query: Query) -> None:
        self._name = name
        self._query = query
        self._targets: dict[dns.name.Name, Addresses] = {}

    async def find(self) -> Found | Problem:
        """Return the backends, with indices if all targets have one, and otherwise sorted."""
        answer = await self._query.ask(self._name, RdataType.SRV)
        if isinstance(answer, Problem):
            return answer
        used = _most_wanted(answer)
        if not used:
            return Problem(f"DNS has no SRV records of {address.shown(self._name)}")
        hosts, problem = await self._hosts(dict.fromkeys(target for target, _ in used), answer)
        if not hosts:
            return Problem(problem or "no SRV target has an address")
        self._targets = hosts
        ordinals = _ordinals([target for target, _ in used])
        backends = _backends(
            (host, port, ordinals.get(target))
            for target, port in used
            if target in hosts
            for host in hosts[target].hosts
        )
        ttls = [found.ttl_seconds for found in hosts.values()]
        return Found(backends, min(ttl_of(answer), *ttls), problem)

    async def _hosts(
        self, targets: Collection[dns.name.Name], answer: dns.resolver.Answer
    ) -> tuple[dict[dns.name.Name, Addresses], str | None]:
        """Return the addresses of each target, and why some are from before or missing."""
        hosts = _additional(answer)
        missing = [target for target in targets if target not in hosts]
        problem: str | None = None
        for target, found in zip(missing, await self._ask(missing), strict=True):
            if not isinstance(found, Problem):
                hosts[target] = found
                continue
            problem = problem or found.text
            # A target that DNS no longer knows is gone; one that it failed to answer for is not.
            if target in self._targets and not found.is_unknown:
                hosts[target] = self._targets[target]
        return {target: hosts[target] for target in targets if target in hosts}, problem

    async def _ask(self, targets: Sequence[dns.name.Name]) -> list[Addresses | Problem]:
        if not targets:
            return []
        gate = asyncio.Semaphore(_CONCURRENT_TARGETS)

        async def ask(target: dns.name.Name) -> Addresses | Problem:
            async with gate:
                return await self._query.addresses(target)

        tasks = [asyncio.create_task(ask(target)) for target in targets]
        try:
            # One limit for all, because an answer may name thousands that nobody answers for.
            await asyncio.wait(tasks, timeout=self._query.timeout_seconds)
        finally:
            await end(tasks)
        seconds = self._query.timeout_seconds
        late = Problem(f"DNS failed for SRV targets: no answer within {seconds:g} s")
        return [late if task.cancelled() else task.result() for task in tasks]


def _most_wanted(answer: dns.resolver.Answer) -> list[tuple[dns.name.Name, int]]:
    """Return targets and ports of the records with the lowest priority number."""
    records = [
        record
        for record in answer
        # "A Target of "." means that the service is decidedly not available at this domain."
        if isinstance(record, dns.rdtypes.IN.SRV.SRV)
        and record.target != dns.name.root
        and record.port > 0
    ]
    first = min((record.priority for record in records), default=0)
    return sorted({(record.target, record.port) for record in records if record.priority == first})


def _additional(answer: dns.resolver.Answer) -> dict[dns.name.Name, Addresses]:
    """Return the addresses that came along with SRV records, A before AAAA."""
    hosts: dict[dns.name.Name, Addresses] = {}
    for kind in (RdataType.A, RdataType.AAAA):
        for rrset in answer.response.additional:
            found = hosts_of(rrset)
            if rrset.rdtype == kind and found and rrset.name not in hosts:
                hosts[rrset.name] = Addresses(found, float(rrset.ttl))
    return hosts


def _ordinals(targets: Sequence[dns.name.Name]) -> dict[dns.name.Name, int]:
    """Return the number at the end of each target's first label, if all have one of their own."""
    ordinals: dict[dns.name.Name, int] = {}
    for target in targets:
        label = target[0].decode("ascii", "replace")
        match = _ORDINAL.fullmatch(label)
        # Kubernetes calls a pod without a hostname by its address: 10-0-0-7, or fd00--7.
        if match is None or any(
            address.canonical_ip(label.replace("-", mark)) for mark in (".", ":")
        ):
            return {}
        ordinals[target] = int(match[1])
    return ordinals if len(set(ordinals.values())) == len(targets) else {}


def _backends(found: Iterable[tuple[str, int, int | None]]) -> tuple[Backend, ...]:
    """Return the backends without duplicates, all with an index of their own or none."""
    indices: dict[tuple[int, int, int], int | None] = {}
    count = 0
    for host, port, index in found:
        ip = ipaddress.ip_address(host)
        indices[ip.version, int(ip), port] = index
        count += 1
    places = {key: address.join(str(_ip(key)), key[2]) for key in sorted(indices)}
    # A target with two addresses is two backends here, and an address of two targets is one: then
    # the numbers are not those of backends.
    if None not in indices.values() and len(set(indices.values())) == count == len(indices):
        try:
            indexed = [Backend(place, indices[key]) for key, place in places.items()]
        except ConfigError:
            pass  # A number beyond what an index may be.
        else:
            return tuple(sorted(indexed, key=lambda backend: backend.index or 0))
    return tuple(Backend(place) for place in places.values())


def _ip(key: tuple[int, int, int]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    version, number, _ = key
    return ipaddress.IPv4Address(number) if version == 4 else ipaddress.IPv6Address(number)
