"""Send requests over gRPC: through evenly, and as gRPC's own `round_robin` does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

import evenly
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.grpc.client.channel import channel
from evenly.runtime.client_config import ClientConfig

_METHOD = "/test.Work/Do"
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class GrpcClient:
    """Send through a channel of evenly's, or through one of gRPC's own."""

    def __init__(self, made: grpc.aio.Channel) -> None:
        self.channel = made
        self._do = made.unary_unary(_METHOD)

    async def __aenter__(self) -> GrpcClient:
        await self.channel.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.channel.close()

    def snapshot(self) -> ClientTaskSnapshot:
        taken: ClientTaskSnapshot = self.channel.snapshot()
        return taken

    @property
    def rests(self) -> bool:
        views = self.channel.service.runtime.task._membership.views
        return all(view.health.is_idle for view in views)

    async def send(self, criticality: Criticality, timeout_seconds: float) -> tuple[str, Any, str]:
        with evenly.request_context(criticality=criticality):
            call = self._do(b"work", timeout=timeout_seconds)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return _name(error), getattr(call, "backend", None), str(error.details())
        return "OK", getattr(call, "backend", None), ""


def _name(error: grpc.aio.AioRpcError) -> str:
    where = f" ({error.where})" if isinstance(error, evenly.RejectedError) else ""
    return f"{error.code().name}{where}"


def evenly_client(addresses: Sequence[str], config: ClientConfig | None) -> GrpcClient:
    """Return a client that balances through evenly."""
    return GrpcClient(channel(f"static:{','.join(addresses)}", config=config))


def round_robin_client(addresses: Sequence[str]) -> GrpcClient:
    """Return a client that balances as gRPC does when told to."""
    options = [("grpc.service_config", _ROUND_ROBIN), ("grpc.enable_retries", 0)]
    return GrpcClient(grpc.aio.insecure_channel(f"ipv4:{','.join(addresses)}", options=options))
