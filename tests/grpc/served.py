"""A backend of ours on loopback, and a client of gRPC's own that talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.utilization_config import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.core.request import Outcome, Reason, Request
from evenly.grpc.server.server import Server, server
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig

SERVICE = "test.Things"
SOON = 20.0  # Nothing in these tests takes so long, unless it hangs.
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
_STEEP = (Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0), Ramp(4.0, 5.0))
_SIGNALS = {
    **default_signals(),
    "test": SignalConfig(ramps=_STEEP, decay_seconds=0.001, expiry_seconds=3600.0),
}
TASK = BackendTaskConfig(quiet_seconds=0.0, utilization=UtilizationConfig(signals=_SIGNALS))
QUICK = BackendConfig(task=TASK)

Trailers = dict[str, Any]


class Ledger(Observer):
    """Note how every admitted request ended."""

    def __init__(self) -> None:
        self.admitted: list[Request] = []
        self.outcomes: list[Outcome] = []
        self.costs: list[float] = []
        self.rejected: list[Reason] = []

    def request_admitted(self, request: Request) -> None:
        self.admitted.append(request)

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.rejected.append(reason)

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.outcomes.append(outcome)
        self.costs.append(cost)


@dataclass
class Served:
    server: Server
    channel: grpc.aio.Channel
    ledger: Ledger
    port: int

    @property
    def runtime(self) -> BackendRuntime:
        return self.server.runtime

    async def outcome(self) -> Outcome:
        """Return how the one request ended, once it has."""
        return (await self.ended(1))[0]

    async def ended(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(SOON):
            while len(self.ledger.outcomes) < count:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)  # Whoever ended it a second time would have by now.
        assert len(self.ledger.outcomes) == len(self.ledger.admitted) == count
        assert self.runtime.active == self.runtime.snapshot().task.active == 0
        assert self.runtime.snapshot().waiting == 0
        return self.ledger.outcomes


@asynccontextmanager
async def served(
    handlers: Mapping[str, grpc.RpcMethodHandler],
    *,
    config: BackendConfig = QUICK,
    client_options: tuple[tuple[str, Any], ...] = (),
    **arguments: Any,
) -> AsyncIterator[Served]:
    """Serve these methods of `test.Things`."""
    ledger = Ledger()
    made = server(config=config, observer=ledger, **arguments)
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    options = (*OPTIONS, *client_options)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield Served(made, channel, ledger, port)
    finally:
        await made.stop(None)


def unary(channel: grpc.aio.Channel, name: str) -> grpc.aio.UnaryUnaryMultiCallable:
    return channel.unary_unary(f"/{SERVICE}/{name}")


async def failure(call: grpc.aio.Call) -> grpc.aio.AioRpcError:
    """Return the error with which a call of one response ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it succeeded")


async def trailers(call: grpc.aio.Call) -> Trailers:
    return {key: value for key, value in await call.trailing_metadata()}  # noqa: C416 -- has no len


async def press(runtime: BackendRuntime, level: float) -> None:
    """Set the signal that nobody else records: at 2 SHEDDABLE is refused, at 5 everything is."""
    for _ in range(2):  # The value is an average over time.
        with runtime.lock:
            runtime.task.record_signal("test", level)
        await asyncio.sleep(0.02)
