"""Backends that DNS knows: the addresses of a name, or the targets of its SRV records.

A name is asked for again when its answer's time to live is over.  Whatever fails, the last good
answer stays in use, because a name server that is down says nothing about the backends:

    delay = clamp(smallest TTL, ttl_min_seconds, ttl_max_seconds) × (1 ± jitter_ratio)
    delay after f failures in a row =
        min(retry_seconds × retry_multiplier^(f − 1), retry_max_seconds) × (1 ± jitter_ratio)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.core.balancing.backend import Backend
from evenly.discovery import address
from evenly.discovery.dns_host import HostLookup, SystemLookup, by_system
from evenly.discovery.dns_query import Problem, Query
from evenly.discovery.dns_service import ServiceLookup
from evenly.discovery.problems import ProblemLog

__all__ = ["DnsConfig", "DnsDiscovery"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    """Set how often DNS is asked."""

    ttl_min_seconds: float = 1.0
    """A time to live of 0 means "do not cache", not "ask without a pause"."""
    ttl_max_seconds: float = 300.0
    """Nobody waits a day for a new backend because a zone file says so."""
    system_ttl_seconds: float = 30.0
    """For names from /etc/hosts and the like, which have no time to live."""
    retry_seconds: float = 1.0
    retry_multiplier: float = 1.6
    retry_max_seconds: float = 30.0
    jitter_ratio: float = 0.1
    """± this part of every delay, so that client tasks do not ask in step."""
    timeout_seconds: float = 5.0
    """How long one name is asked for, all servers and repetitions included."""

    def __post_init__(self) -> None:
        check.number("ttl_min_seconds", self.ttl_min_seconds, 0.01, 86_400.0)
        check.number("ttl_max_seconds", self.ttl_max_seconds, self.ttl_min_seconds, 86_400.0)
        check.number("system_ttl_seconds", self.system_ttl_seconds, 0.01, 86_400.0)
        check.number("retry_seconds", self.retry_seconds, 0.01, 3600.0)
        check.number("retry_multiplier", self.retry_multiplier, 1.0, 10.0)
        check.number("retry_max_seconds", self.retry_max_seconds, self.retry_seconds, 3600.0)
        check.fraction("jitter_ratio", self.jitter_ratio)
        check.number("timeout_seconds", self.timeout_seconds, 0.01, 300.0)


@final
class DnsDiscovery:
    """Ask DNS for a service's backends, again and again.

    With a `port` the addresses of `name` are its backends; without one its SRV records say them.
    `server` is the one DNS server to ask instead of the system's.  `system` is asked for names that
    DNS does not know: by default the operating system, but for a `server`, nobody.
    """

    def __init__(
        self,
        name: str,
        port: int | None,
        *,
        server: tuple[str, int] | None = None,
        config: DnsConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
        system: SystemLookup | None = None,
    ) -> None:
        self._name = name
        self._port = port
        self._server = server
        self._config = DnsConfig() if config is None else config
        self._sleep = sleep
        self._rng = random.Random() if rng is None else rng
        self._system = by_system if system is None and server is None else system

    async def watch(self) -> AsyncGenerator[Sequence[Backend], None]:
        """Yield the backends whenever DNS has others."""
        config = self._config
        problems = ProblemLog(self._source())
        lookup = self._lookup()
        known: tuple[Backend, ...] | None = None
        failures = 0
        while True:
            found = await lookup.find()
            problem = found.text if isinstance(found, Problem) else found.problem
            if problem is not None:
                failures += 1
                problems.report(problem, None if known is None else len(known))
            if isinstance(found, Problem):
                delay = self._retry_delay(failures)
            else:
                delay = max(config.ttl_min_seconds, min(found.ttl_seconds, config.ttl_max_seconds))
                if problem is None:
                    failures = 0
                    problems.solved(len(found.backends))
                else:
                    delay = min(delay, self._retry_delay(failures))
                if found.backends != known:
                    known = found.backends
                    yield known
            jitter = config.jitter_ratio * (2.0 * self._rng.random() - 1.0)
            await self._sleep(delay * (1.0 + jitter))

    def _lookup(self) -> HostLookup | ServiceLookup:
        query = Query(self._server, timeout_seconds=self._config.timeout_seconds)
        if self._port is None:
            return ServiceLookup(self._name, query)
        return HostLookup(
            self._name,
            self._port,
            query,
            system=self._system,
            system_ttl_seconds=self._config.system_ttl_seconds,
        )

    def _retry_delay(self, failures: int) -> float:
        config = self._config
        # The largest multiplier, 10, to the power of 300 is still a float.
        delay = config.retry_seconds * config.retry_multiplier ** min(failures - 1, 300)
        return min(delay, config.retry_max_seconds)

    def _source(self) -> str:
        server = "" if self._server is None else address.join(*self._server)
        name = self._name if self._port is None else address.join(self._name, self._port)
        return f"dns://{server}/{name}"
