"""Serve and ask over gRPC, with evenly on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import grpc
import grpc.aio

import evenly.grpc
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import Observer
from evenly.lab.demo.talk import Answer, Broken, Ready
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

__all__ = ["GrpcCaller", "serve"]

_SERVICE = "evenly.lab.demo.Demo"
_METHOD = "Ask"


async def serve(
    answer: Answer,
    *,
    host: str,
    port: int,
    config: BackendConfig,
    observer: Observer,
    ready: Ready,
) -> None:
    """Serve until SIGTERM; `ready` is told the port and what drives the backend."""

    async def ask(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            await answer()
        except Broken as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return b""

    server = evenly.grpc.server(config=config, observer=observer)
    method = grpc.unary_unary_rpc_method_handler(ask)
    handlers = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})
    server.add_generic_rpc_handlers((handlers,))
    bound = server.add_insecure_port(f"{host}:{port}")

    async def warm_up() -> None:
        ready(bound, server.runtime)

    await evenly.grpc.serve(server, warm_up=warm_up, grace_seconds=2.0)


@final
class GrpcCaller:
    """Ask one service, over one channel."""

    def __init__(self, addresses: Sequence[str], config: ClientConfig, observer: Observer) -> None:
        target = f"static:{','.join(addresses)}"
        self._channel = evenly.grpc.channel(target, config=config, observer=observer)
        self._ask: Callable[..., grpc.aio.UnaryUnaryCall] = self._channel.unary_unary(
            f"/{_SERVICE}/{_METHOD}"
        )

    async def start(self) -> None:
        """Begin to look for backends, and to connect."""
        await self._channel.__aenter__()

    async def ask(self, timeout_seconds: float) -> None:
        """Ask once; raise a `RejectedError` if that was refused, anything else if it failed."""
        await self._ask(b"", timeout=timeout_seconds)

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what the client task knows."""
        return self._channel.snapshot()

    async def close(self) -> None:
        """Close the connections."""
        await self._channel.close()
