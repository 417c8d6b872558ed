"""What the suite needs of a transport: how backends are started, and how requests are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import pytest

from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig, ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.core.overload.retry import RetryConfig
from evenly.runtime.client_config import ClientConfig
from tests.suites.transports import grpc_clients, http_clients
from tests.suites.transports.processes import Backends

NO_RETRIES = ClientConfig(task=ClientTaskConfig(retry=RetryConfig(attempts=1)))
# Closes an unused connection after a second, and from then on asks every 1,000 s.
IDLE = ClientConfig(
    task=ClientTaskConfig(
        membership=MembershipConfig(health=HealthConfig(idle_seconds=1.0, idle_check_every=1_000))
    )
)


class Client(Protocol):
    """Send requests through a transport, for the time of an `async with`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def send(
        self, criticality: Criticality, timeout_seconds: float
    ) -> tuple[str, str | None, str]:
        """Send a request; return how it ended, the backend, and what the error says."""

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what the client task knows; only evenly's clients have one."""

    @property
    def rests(self) -> bool:
        """Whether the client task is in idle mode towards all its backends."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Be one of the ways in which clients and backends talk."""

    name: str
    client: Callable[[Sequence[str], ClientConfig | None], Client]
    plain_client: Callable[[Sequence[str]], Client]
    """Return a client that balances as people do without evenly: round robin."""

    def backends(self, count: int, **options: Any) -> Backends:
        """Return so many backends that speak it."""
        return Backends(count, transport=self.name, **options)


GRPC = Transport("grpc", grpc_clients.evenly_client, grpc_clients.round_robin_client)
HTTP = Transport("http", http_clients.evenly_client, http_clients.round_robin_client)
TRANSPORTS = {transport.name: transport for transport in (GRPC, HTTP)}

every_transport = pytest.mark.parametrize("transport", TRANSPORTS.values(), ids=TRANSPORTS)
