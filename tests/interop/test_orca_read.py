"""Stock backends that report in ORCA are balanced by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly.grpc
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig, ClientTaskSnapshot
from evenly.core.report import LoadReport
from evenly.http.client.session import Session
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig
from evenly.wire import orca
from tests.grpc.plain import target, until
from tests.http.raw_backend import Arrival, Handler, raw_backends, reply
from tests.interop.stock_backend import METHOD, client_of, stock_backends

USED = (0.2, 0.8)
CONFIG = ClientConfig(
    task=ClientTaskConfig(
        policy=PolicyConfig(
            name="weighted_round_robin",
            weights=WeightConfig(
                blackout_seconds=0.0, slow_start_seconds=0.0, smoothing_seconds=0.1
            ),
        )
    ),
    probe=ProbeConfig(is_on=False),
)


def said(used: float) -> LoadReport:
    return LoadReport(utilization=used, qps=100.0)


async def until_weighed(
    send: Callable[[], Awaitable[object]], snapshot: Callable[[], ClientTaskSnapshot]
) -> None:
    """Send until the idle backend weighs more than twice what the busy one does."""
    async with asyncio.timeout(60.0):
        while True:
            for _ in range(4):
                await send()
            by_used = {one.utilization: one.weight for one in snapshot().backends}
            idle, busy = (by_used.get(used) for used in USED)
            if idle is not None and busy is not None and idle > 2.0 * busy:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("status", [200, 404])
async def test_http(status: int) -> None:
    def reporting(used: float) -> Handler:
        async def answer(_: Arrival) -> bytes:
            return reply(status, b"", (orca.HTTP_KEY, orca.text(said(used))))

        return answer

    async with raw_backends(2) as backends:
        for backend, used in zip(backends, USED, strict=True):
            backend.handler = reporting(used)
        target = "static:" + ",".join(backend.address for backend in backends)
        async with Session(target, config=CONFIG) as session:
            await until_weighed(lambda: session.get("/"), session.snapshot)


@pytest.mark.parametrize("api", ["aio", "sync"])
async def test_a_grpc_trailer_with_the_headers_name(api: str) -> None:
    async with stock_backends(2) as backends:
        for backend, used in zip(backends, USED, strict=True):
            backend.trailers = ((orca.HTTP_KEY, orca.text(said(used))),)
        config = replace(CONFIG, orca_seconds=0.0)
        async with client_of(api, backends, config) as client:
            await until_weighed(client.send, client.snapshot)
        assert [backend.asked for backend in backends] == [0, 0]


async def test_grpc_takes_the_trailer_away_before_anybody_reads_it() -> None:
    """Be the reason why it is asked for out of band: the day this fails, read the trailer too."""

    async def do(request: bytes, context: Any) -> bytes:
        trailers = ((orca.GRPC_KEY, orca.serialize(said(0.5))), ("x-other-bin", b"1"))
        context.set_trailing_metadata(trailers)
        return request

    method = grpc.unary_unary_rpc_method_handler(do)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Stock", {"Do": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/test.Stock/Do")(b"")
            await call
            assert list(await call.trailing_metadata()) == [("x-other-bin", b"1")]
    finally:
        await server.stop(None)


class Noting(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        self.methods.append(client_call_details.method.decode())
        return await continuation(client_call_details, request)


async def test_interceptors_never_see_that_it_is_asked_for() -> None:
    noting = Noting()
    async with (
        stock_backends(1) as backends,
        evenly.grpc.channel(
            target(*backends),
            config=replace(CONFIG, orca_seconds=0.02),
            interceptors=[noting],
        ) as channel,
    ):
        await until(lambda: backends[0].told > 2)
        assert noting.methods == []
        call = channel.unary_stream(METHOD)(b"")  # A user's own.
        await call.read()
        call.cancel()
        assert noting.methods == [METHOD]
