"""Ask DNS one question, and say in a value what came of it.

Messages have no times or counts in them, so that the same problem has the same text each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, final

import dns.asyncresolver
import dns.exception
import dns.name
import dns.rdatatype
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
import dns.resolver
from dns.rdatatype import RdataType

from evenly.core.balancing.backend import Backend
from evenly.discovery import address

__all__ = ["Addresses", "Found", "Name", "Problem", "Query", "end", "hosts_of", "ttl_of"]

Name: TypeAlias = str | dns.name.Name


@final
class Problem(NamedTuple):
    """Say why there is no answer."""

    text: str
    is_unknown: bool = False
    """DNS did answer: there is no such name, or it has no such records."""


@final
class Addresses(NamedTuple):
    """Be the IP addresses of one name, and for how long they are good."""

    hosts: tuple[str, ...]
    ttl_seconds: float


@final
class Found(NamedTuple):
    """Be a list of backends, and for how long it is good."""

    backends: tuple[Backend, ...]
    ttl_seconds: float
    problem: str | None = None
    """Why a part of it is from before, or missing."""


@final
class Query:
    """Ask the system's DNS servers, or the one `server` alone."""

    def __init__(self, server: tuple[str, int] | None, *, timeout_seconds: float) -> None:
        self._server = server
        self.timeout_seconds = timeout_seconds
        self._resolver: dns.asyncresolver.Resolver | None = None

    async def addresses(self, name: Name) -> Addresses | Problem:
        """Ask for A and AAAA records at once; take AAAA records only where there are no others."""
        v6 = asyncio.create_task(self.ask(name, RdataType.AAAA))
        try:
            answer = await self.ask(name, RdataType.A)
            if isinstance(answer, Problem) and not answer.is_unknown:
                # AAAA records would not do: they would replace every backend for a moment.
                return answer
            if isinstance(answer, Problem) or not answer.rrset:
                answer = await v6
        finally:
            await end([v6])
        if isinstance(answer, Problem):
            return answer
        hosts = hosts_of(answer)
        if not hosts:
            return Problem(f"DNS has no addresses of {_shown(name)}", is_unknown=True)
        return Addresses(hosts, ttl_of(answer))

    async def ask(self, name: Name, kind: RdataType) -> dns.resolver.Answer | Problem:
        """Ask for one kind of records; the answer may have none."""
        try:
            return await self._get_resolver().resolve(
                name,
                kind,
                raise_on_no_answer=False,
                lifetime=self.timeout_seconds,
                # /etc/resolv.conf says what to append to short names; a server alone says nothing.
                search=self._server is None,
            )
        except dns.resolver.NXDOMAIN:
            return Problem(f"DNS does not know {_shown(name)}", is_unknown=True)
        except dns.exception.Timeout:
            reason = f"no answer within {self.timeout_seconds:g} s"
        except dns.resolver.NoNameservers as error:
            reason = _reason(error)
        except (dns.exception.DNSException, OSError) as error:
            reason = type(error).__name__
        # The servers may have been replaced: read the system's configuration again.
        self._resolver = None
        return Problem(f"DNS failed for {_shown(name)} ({dns.rdatatype.to_text(kind)}): {reason}")

    def _get_resolver(self) -> dns.asyncresolver.Resolver:
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(configure=self._server is None)
            if self._server is not None:
                resolver.nameservers = [self._server[0]]
                resolver.port = self._server[1]
            self._resolver = resolver
        return self._resolver


async def end(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel what still runs, and wait until its sockets are closed."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def ttl_of(answer: dns.resolver.Answer) -> float:
    """Return the smallest time to live on the way to the answer, aliases included."""
    return float(answer.chaining_result.minimum_ttl)


def hosts_of(records: Iterable[object]) -> tuple[str, ...]:
    """Return the IP addresses in A and AAAA records."""
    kinds = (dns.rdtypes.IN.A.A, dns.rdtypes.IN.AAAA.AAAA)
    return tuple(record.address for record in records if isinstance(record, kinds))


def _reason(error: dns.resolver.NoNameservers) -> str:
    """Return what the last server said: an error code, or what went wrong with it."""
    errors = error.kwargs.get("errors") or ()
    if not errors:
        return "no servers"
    said = errors[-1][3]
    return said if isinstance(said, str) else type(said).__name__


def _shown(name: Name) -> str:
    return address.shown(str(name))
