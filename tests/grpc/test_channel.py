"""An evenly channel is a `grpc.aio.Channel`: its stubs, its life, what it shares."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import evenly
import evenly.grpc
import evenly.grpc.sync
from evenly.errors import ConfigError, UsageError
from tests.grpc.plain import (
    KINDS,
    UNARY_STREAM,
    UNARY_UNARY,
    Context,
    Counts,
    Listed,
    PlainBackend,
    answer,
    begin,
    connections,
    plain_backends,
    quick,
    served,
    settled,
    target,
    until,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
READY = grpc.ChannelConnectivity.READY


async def hang(_: object, context: Context) -> bytes:
    await asyncio.Event().wait()
    return b""


# With stubs.


async def test_generated_stubs_take_it_unchanged() -> None:
    servicer = health.aio.HealthServicer()

    def also(server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

    async with (
        plain_backends(1, also=also) as [backend],
        evenly.grpc.channel(target(backend)) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        reply = await stub.Check(request, timeout=20)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING

        watch = stub.Watch(request)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        await settled(channel)


async def test_stubs_made_for_each_call_leave_nothing_behind() -> None:
    async with served() as (_, channel):
        await channel.unary_unary(UNARY_UNARY)(b"")
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(200):
            await channel.unary_unary(UNARY_UNARY)(b"")
        gc.collect()

        # Even one object kept per call would be 200.
        assert len(gc.get_objects()) - before < 200


# Its life.


async def test_it_is_idle_then_ready_then_shut_down() -> None:
    async with plain_backends(1) as [backend]:
        channel = evenly.grpc.channel(target(backend))
        assert isinstance(channel, grpc.aio.Channel)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        with pytest.raises(UsageError):
            channel.snapshot()

        assert channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.IDLE
        await channel.wait_for_state_change(grpc.ChannelConnectivity.CONNECTING)
        assert channel.get_state() is READY
        await channel.channel_ready()

        waiting = asyncio.ensure_future(channel.wait_for_state_change(READY))
        await asyncio.sleep(0)
        await channel.close()
        await waiting
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_it_says_that_it_fails_where_nobody_listens() -> None:
    backend = PlainBackend()
    await backend.start()
    await backend.stop()
    async with evenly.grpc.channel(target(backend), config=quick()) as channel:
        await until(lambda: channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        ready = asyncio.ensure_future(channel.channel_ready())
        await backend.start()
        await asyncio.wait_for(ready, 20)
        await backend.stop()


async def test_a_closed_channel_takes_no_calls() -> None:
    async with served() as (_, channel):
        call = channel.unary_unary(UNARY_UNARY)
        await call(b"")
        await channel.close()
        await channel.close()  # A second time does nothing.

        with pytest.raises(grpc.aio.UsageError, match="closed"):
            call(b"")
        with pytest.raises(grpc.aio.UsageError, match="closed"):
            await channel.channel_ready()


async def test_a_channel_that_was_never_used_can_be_closed() -> None:
    channel = evenly.grpc.channel("static:127.0.0.1:1")
    await channel.close()
    with pytest.raises(grpc.aio.UsageError, match="closed"):
        channel.unary_unary(UNARY_UNARY)(b"")


def test_a_channel_whose_loop_is_closed_can_be_closed() -> None:
    channel = evenly.grpc.channel("static:127.0.0.1:1", config=quick())

    async def begin() -> None:
        channel.start()

    async def close() -> None:
        await channel.close(0.1)
        await channel.close()

    asyncio.run(begin())
    asyncio.run(close())

    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_a_channel_of_another_loop_is_not_closed_here_and_can_be_closed_there() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    channel = evenly.grpc.channel("static:127.0.0.1:1", config=quick())

    async def begin() -> None:
        channel.start()

    there(begin())
    with pytest.raises(UsageError, match="another event loop"):
        await channel.close()
    assert channel.service.users == 1
    there(channel.close())
    assert channel.service.users == 0
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    loop.close()


@every_kind
async def test_closing_cancels_what_is_active(kind: str) -> None:
    async def hang_stream(_: object, context: Context) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    counts = Counts()
    async with served(observer=counts) as ([backend], channel):
        backend.unary_unary = backend.stream_unary = hang
        backend.unary_stream = backend.stream_stream = hang_stream
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await until(lambda: backend.requests)

        await channel.close()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.cancelled()
        assert channel.snapshot().active == 0
        assert [outcome.name for outcome in counts.finished] == ["CANCELLED"]


async def test_closing_cancels_what_waits_for_a_backend() -> None:
    channel = evenly.grpc.channel(Listed(), config=quick())
    calls = [begin(channel, kind, wait_for_ready=True) for kind in KINDS]
    waiting = [asyncio.ensure_future(answer(call)) for call in calls]
    await asyncio.sleep(0)

    await channel.close()

    for one in waiting:
        with pytest.raises(asyncio.CancelledError):
            await one


async def test_closing_with_grace_lets_calls_end() -> None:
    go_on = asyncio.Event()

    async def wait(request: bytes, context: Context) -> bytes:
        await go_on.wait()
        return request

    async with served() as ([backend], channel):
        backend.unary_unary = wait
        call = channel.unary_unary(UNARY_UNARY)(b"x")
        await until(lambda: backend.requests)
        closing = asyncio.ensure_future(channel.close(grace=20.0))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.UsageError):
            channel.unary_unary(UNARY_UNARY)(b"")

        go_on.set()

        assert await call == b"x"
        await closing


async def test_nothing_runs_after_it_was_closed() -> None:
    async with plain_backends(2) as backends:
        before = asyncio.all_tasks()
        for _ in range(5):
            channel = evenly.grpc.channel(target(*backends), config=quick(is_probing=True))
            await channel.unary_unary(UNARY_UNARY)(b"")
            stream = channel.unary_stream(UNARY_STREAM)(b"")
            await stream.read()
            await channel.close()

            left = {task for task in asyncio.all_tasks() - before if "evenly" in repr(task)}
            assert left == set()


async def test_nothing_runs_after_a_channel_without_backends_was_closed() -> None:
    before = asyncio.all_tasks()
    channel = evenly.grpc.channel(Listed(), config=quick())
    channel.get_state(try_to_connect=True)
    await asyncio.sleep(0)
    await channel.close()

    assert asyncio.all_tasks() == before


async def test_a_channel_that_is_dropped_closes() -> None:
    async with plain_backends(1) as [backend]:
        channel = evenly.grpc.channel(target(backend), config=quick())
        await channel.unary_unary(UNARY_UNARY)(b"")
        service = channel.service
        del channel
        gc.collect()

        await until(lambda: service.users == 0)
        await until(lambda: not service.connections)


# What channels share.


async def test_channels_to_the_same_target_share_their_connections() -> None:
    async with plain_backends(1) as [backend]:
        first = evenly.grpc.channel(target(backend), options=[("grpc.max_send_message_length", 9)])
        second = evenly.grpc.channel(target(backend), options=[("grpc.max_send_message_length", 9)])
        assert await first.unary_unary(UNARY_UNARY)(b"1") == b"1"
        assert await second.unary_unary(UNARY_UNARY)(b"2") == b"2"

        assert first.service is second.service
        assert len(connections(first)) == 1
        await first.close()
        assert await second.unary_unary(UNARY_UNARY)(b"2") == b"2"
        await second.close()
        assert second.service.connections == {}


async def test_closing_one_of_two_channels_cancels_only_its_own_calls() -> None:
    go_on = asyncio.Event()

    async def wait(request: bytes, context: Context) -> bytes:
        await go_on.wait()
        return request

    async with plain_backends(1) as [backend]:
        backend.unary_unary = wait
        first = evenly.grpc.channel(target(backend))
        second = evenly.grpc.channel(target(backend))
        own = first.unary_unary(UNARY_UNARY)(b"1")
        other = second.unary_unary(UNARY_UNARY)(b"2")
        await until(lambda: backend.requests == 2)

        await first.close()

        assert own.cancelled()
        go_on.set()
        assert await other == b"2"
        await second.close()


async def test_a_channel_opened_after_the_last_was_closed_starts_anew() -> None:
    async with plain_backends(1) as [backend]:
        first = evenly.grpc.channel(target(backend))
        await first.unary_unary(UNARY_UNARY)(b"")
        await first.close()
        async with evenly.grpc.channel(target(backend)) as second:
            assert await second.unary_unary(UNARY_UNARY)(b"x") == b"x"
            assert second.service is not first.service


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"config": quick()}, id="config"),
        pytest.param({"options": (("grpc.keepalive_time_ms", 77_777),)}, id="options"),
        pytest.param({"compression": grpc.Compression.Gzip}, id="compression"),
        pytest.param({"observer": Counts()}, id="observer"),
    ],
)
async def test_channels_that_differ_share_nothing(other: dict[str, Any]) -> None:
    async with (
        plain_backends(1) as [backend],
        evenly.grpc.channel(target(backend)) as first,
        evenly.grpc.channel(target(backend), **other) as second,
    ):
        assert first.service is not second.service


# Mistakes.


@pytest.mark.parametrize("wrong", ["static:", "http://x", "dns:///x", "file:relative"])
def test_a_wrong_target_fails_at_once(wrong: str) -> None:
    with pytest.raises(ConfigError):
        evenly.grpc.channel(wrong)


async def test_what_is_no_interceptor_is_refused_where_the_channel_is_made() -> None:
    with pytest.raises(ValueError, match=r"Interceptor <object .* must be UnaryUnaryClient"):
        evenly.grpc.channel("static:127.0.0.1:1", interceptors=[object()])


async def test_an_option_that_grpc_does_not_take_is_said_by_the_first_call() -> None:
    options: Any = [("grpc.max_send_message_length", None)]
    channel = evenly.grpc.channel("static:127.0.0.1:1", options=options)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            channel.unary_unary(UNARY_UNARY)(b"")
    await channel.close()


@pytest.mark.parametrize("make", [evenly.grpc.channel, evenly.grpc.sync.channel])
def test_wrong_targets_and_configs_fail_where_a_channel_is_made(make: Any) -> None:
    with pytest.raises(ConfigError, match="target must be a string or a Discovery, not None"):
        make(None)
    with pytest.raises(ConfigError, match=r"config must be a ClientConfig, not \{\}"):
        make("static:127.0.0.1:1", config={})
