from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenly.core.request import Outcome
from evenly.grpc.server.interceptor import Interceptor, interceptor
from evenly.runtime.backend_config import BackendConfig
from tests.grpc.served import OPTIONS, SERVICE, SOON, TASK, Ledger, failure, press, trailers, unary

Code = grpc.StatusCode
uu = grpc.unary_unary_rpc_method_handler
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for number in range(int(request)):
        yield str(number).encode()


@dataclass
class Guarded:
    guard: Interceptor
    server: grpc.aio.Server
    channel: grpc.aio.Channel
    ledger: Ledger
    port: int


@asynccontextmanager
async def guarded(
    *others: grpc.aio.ServerInterceptor, is_attached: bool = True, **arguments: Any
) -> AsyncIterator[Guarded]:
    """A server of gRPC's own, with our interceptor."""
    ledger = Ledger()
    guard = interceptor(config=BackendConfig(task=TASK), observer=ledger, **arguments)
    server = grpc.aio.server(interceptors=(guard, *others))
    handlers = {
        "Do": uu(echo, request_deserializer=bytes.upper),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    if is_attached:
        guard.attach(server, f"127.0.0.1:{port}", services=(SERVICE,))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield Guarded(guard, server, channel, ledger, port)
    finally:
        guard.end_streams()
        await server.stop(None)
        guard.stop()


async def test_it_admits_meters_and_reports() -> None:
    async with guarded() as backend:
        call = unary(backend.channel, "Do")(b"x")
        assert await call == b"X"
        assert "evenly-load" in await trailers(call)
        stream = backend.channel.unary_stream(f"/{SERVICE}/Count")(b"3")
        assert [each async for each in stream] == [b"0", b"1", b"2"]
        assert "evenly-load" in await trailers(stream)

        assert backend.ledger.outcomes == [Outcome.OK] * 2
        await press(backend.guard.runtime, 9.0)
        call = unary(backend.channel, "Do")(b"x")
        assert (await failure(call)).code() is Code.UNAVAILABLE
        assert (await trailers(call))["evenly-reject"] == "overloaded"


async def test_a_handler_is_wrapped_once() -> None:
    async with guarded() as backend:
        for _ in range(5):
            await unary(backend.channel, "Do")(b"x")
        assert len(backend.guard.wrapper._wrapped) == 1


async def test_methods_that_are_not_there_stay_unimplemented() -> None:
    async with guarded() as backend:
        error = await failure(unary(backend.channel, "Nothing")(b""))
        assert error.code() is Code.UNIMPLEMENTED


async def test_attached_it_serves_health_load_and_probes_and_bypasses_admission() -> None:
    async with guarded() as backend:
        stub = health_pb2_grpc.HealthStub(backend.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        # The question itself makes it healthy: whoever waits for this answer sends nothing before.
        assert (await asyncio.wait_for(watch.read(), SOON)).status == SERVING
        await press(backend.guard.runtime, 9.0)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
        assert backend.guard.runtime._udp_port is not None
        backend.guard.runtime.enter_lame_duck()
        assert (await asyncio.wait_for(watch.read(), SOON)).status == NOT_SERVING
    assert not backend.ledger.admitted


async def test_it_can_be_a_lame_duck_until_it_is_announced() -> None:
    async with guarded() as backend:
        backend.guard.starts_as_lame_duck = True
        stub = health_pb2_grpc.HealthStub(backend.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await asyncio.wait_for(watch.read(), SOON)).status == NOT_SERVING
        assert await unary(backend.channel, "Do")(b"x") == b"X"
        backend.guard.announce_healthy()
        assert (await asyncio.wait_for(watch.read(), SOON)).status == SERVING


async def test_without_more_the_first_request_makes_it_healthy() -> None:
    async with guarded(is_attached=False) as backend:
        states = [backend.guard.runtime.is_lame_duck]
        await unary(backend.channel, "Do")(b"x")
        states.append(backend.guard.runtime.is_lame_duck)
    assert states == [True, False]


async def test_attaching_twice_registers_once() -> None:
    async with guarded(is_attached=False) as backend:
        server = grpc.aio.server(interceptors=(backend.guard,))
        backend.guard.attach(server)
        backend.guard.attach(server)
        assert backend.guard.is_attached


async def test_interceptors_after_it_see_requests_that_are_parsed() -> None:
    seen: list[Any] = []

    class Watching(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = await continuation(details)

            async def watched(request: Any, context: Any) -> Any:
                seen.append(request)
                return await handler.unary_unary(request, context)

            return uu(watched, handler.request_deserializer, handler.response_serializer)

    async with guarded(Watching()) as backend:
        assert await unary(backend.channel, "Do")(b"x") == b"X"
    assert seen == [b"X"]


@pytest.mark.parametrize("health", [True, False])
async def test_health_can_be_left_to_another(health: bool) -> None:
    async with guarded(health=health) as backend:
        stub = health_pb2_grpc.HealthStub(backend.channel)
        call = stub.Check(health_pb2.HealthCheckRequest())
        assert (await call.code() is Code.OK) is health
