"""What code written for gRPC's own channel meets here: the same exceptions, the same states."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly.grpc
from evenly.grpc.client.connection import Connection
from tests.grpc.plain import STREAM_UNARY, UNARY_UNARY, echo, plain_backends, quick, target
from tests.grpc.served import SERVICE, SOON, failure, served, unary

NOBODY = "static:127.0.0.1:1"


async def test_writing_to_a_call_that_was_refused_here_raises_the_refusal() -> None:
    async with evenly.grpc.channel(NOBODY, config=quick(connect_seconds=0.2)) as channel:
        call = channel.stream_unary(STREAM_UNARY)(timeout=SOON)
        for _ in range(2):
            with pytest.raises(evenly.grpc.NoBackendRpcError):
                await call.write(b"message")


async def test_writing_to_a_cancelled_call_raises_as_grpc_does() -> None:
    async with evenly.grpc.channel(NOBODY, config=quick(connect_seconds=0.2)) as channel:
        call = channel.stream_unary(STREAM_UNARY)(timeout=SOON)
        call.cancel()
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"message")


class Raising(grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        raise LookupError("not today")


async def test_writing_raises_what_an_interceptor_raised() -> None:
    async with (
        plain_backends(1) as [one],
        evenly.grpc.channel(target(one), interceptors=[Raising()]) as channel,
    ):
        call = channel.stream_unary(STREAM_UNARY)(timeout=SOON)
        for _ in range(2):
            with pytest.raises(LookupError, match="not today"):
                await call.write(b"message")


class Noting(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        self.methods.append(client_call_details.method.decode())
        return await continuation(client_call_details, request)


class NotingStreams(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        self.methods.append(client_call_details.method.decode())
        return await continuation(client_call_details, request)


async def test_interceptors_never_see_our_questions_about_health() -> None:
    noting, streams = Noting(), NotingStreams()
    async with (
        plain_backends(1) as [one],
        evenly.grpc.channel(target(one), interceptors=[noting, streams]) as channel,
    ):
        await channel.unary_unary(UNARY_UNARY)(b"", timeout=SOON)
        [connection] = channel.service.connections.values()
        connection.check()
        await asyncio.wait(connection._tasks, timeout=0.1)
        await channel.unary_unary(UNARY_UNARY)(b"", timeout=SOON)

    assert noting.methods == [UNARY_UNARY] * 2
    assert streams.methods == []


async def test_the_states_of_a_channel_are_those_of_grpc() -> None:
    async with plain_backends(1) as [one]:
        channel = evenly.grpc.channel(target(one))
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        assert channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.IDLE
        async with asyncio.timeout(SOON):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
            await channel.channel_ready()
        await channel.close()
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        with pytest.raises(grpc.aio.UsageError, match="closed"):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.SHUTDOWN)


async def test_a_call_that_met_a_goaway_waits_for_its_connection_to_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC ends such a call before its channel leaves READY; no backend has processed it."""
    answers = [True, True, True, False]  # To send it, and then each time we look.
    asked = Connection.is_ready

    def is_ready(connection: Connection) -> bool:
        return answers.pop(0) if answers else asked(connection)

    async def go_away(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if answers:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed (GOAWAY received)")
        return request

    async with plain_backends(1) as [one], evenly.grpc.channel(target(one)) as channel:
        one.unary_unary = go_away
        await channel.channel_ready()
        monkeypatch.setattr(Connection, "is_ready", is_ready)

        assert await channel.unary_unary(UNARY_UNARY)(b"hello", timeout=SOON) == b"hello"
        assert one.requests == 2


async def test_a_method_registered_after_the_start_is_warned_of_and_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served({}) as things:
        handlers = {"Late": grpc.unary_unary_rpc_method_handler(echo)}
        things.server.add_registered_method_handlers(SERVICE, handlers)

        assert "Cannot register method handlers once server has started" in caplog.text
        error = await failure(unary(things.channel, "Late")(b"", timeout=SOON))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_cancelled_while_it_waits_for_a_goaway_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go_away(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed (GOAWAY received)")
        return request

    async with plain_backends(1) as [one], evenly.grpc.channel(target(one)) as channel:
        one.unary_unary = go_away
        await channel.channel_ready()
        call = channel.unary_unary(UNARY_UNARY)(b"hello", timeout=SOON)
        looks = [True, False]  # While it waits, and when it is cancelled.
        waiting = asyncio.Event()

        def is_ready(connection: Connection) -> bool:
            waiting.set()
            return looks.pop(0) if looks else True

        monkeypatch.setattr(Connection, "is_ready", is_ready)
        await waiting.wait()

        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (call.done(), call.cancelled()) == (True, True)
        await asyncio.sleep(0)
        assert one.requests == 1
        assert sum(view.active for view in channel.snapshot().backends) == 0


def test_what_is_no_interceptor_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="must be UnaryUnaryClientInterceptor or"):
        evenly.grpc.channel(NOBODY, interceptors=[object()])
