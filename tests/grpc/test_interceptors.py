"""A user's interceptors see every attempt, and whatever they do, the counts are right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
from tests.grpc.plain import (
    ANSWERS,
    KINDS,
    OVERLOADED,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_UNARY,
    Context,
    Counts,
    answer,
    begin,
    connections,
    quick,
    served,
    settled,
    until,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
Seen = list[tuple[str, Any]]


class UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self.act((continuation, details, request))


class UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self.act((continuation, details, request))


class StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await self.act((continuation, details, requests))


class StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await self.act((continuation, details, requests))


def all_four(act: Callable[[Any], Any]) -> list[grpc.aio.ClientInterceptor]:
    """Return an interceptor for each kind of call; the health service is none of its business."""

    async def act_on_ours(what: Any) -> Any:
        continuation, details, request = what
        if b"Health" in details.method:
            return await continuation(details, request)
        return await act(what)

    return [kind(act_on_ours) for kind in (UnaryUnary, UnaryStream, StreamUnary, StreamStream)]


def noting(seen: Seen) -> list[grpc.aio.ClientInterceptor]:
    async def act(what: Any) -> Any:
        continuation, details, request = what
        seen.append((details.method.decode(), request))
        details.metadata.add("intercepted", "yes")
        return await continuation(details, request)

    return all_four(act)


@every_kind
async def test_an_interceptor_sees_the_call_and_can_add_metadata(kind: str) -> None:
    seen: Seen = []
    async with served(interceptors=noting(seen)) as ([backend], channel):
        call = begin(channel, kind)

        assert await answer(call) == ANSWERS[kind]
        assert [method for method, _ in seen] == [backend.arrivals[0].method]
        assert backend.arrivals[0].metadata["intercepted"] == "yes"
        assert (await call.code(), call.attempts) == (grpc.StatusCode.OK, 1)
        await settled(channel)


@every_kind
async def test_an_interceptor_sees_every_attempt(kind: str) -> None:
    seen: Seen = []
    async with served(2, config=quick(), interceptors=noting(seen)) as (backends, channel):
        await until(lambda: len(connections(channel)) == 2)
        for backend in backends:
            backend.refuses_with = OVERLOADED
        call = begin(channel, kind)

        with pytest.raises(evenly.Overloaded):
            await answer(call)

        assert len(seen) == call.attempts == sum(backend.requests for backend in backends)
        if kind.startswith("unary"):
            assert call.attempts > 1
        await settled(channel)


async def test_interceptors_see_messages_and_not_bytes() -> None:
    seen: list[Any] = []

    async def act(what: Any) -> Any:
        continuation, details, requests = what
        if isinstance(requests, str):
            seen.append(requests)
            return await continuation(details, requests)

        async def noted() -> AsyncIterator[Any]:
            async for request in requests:
                seen.append(request)
                yield request

        return await continuation(details, noted())

    async with served(interceptors=all_four(act)) as (_, channel):
        await channel.unary_unary(UNARY_UNARY, str.encode)("a")
        await channel.stream_unary(STREAM_UNARY, str.encode)(["b", "c"])
        call = channel.stream_stream(STREAM_STREAM, str.encode)()
        await call.write("d")
        await call.done_writing()
        assert await call.read() == b"d"

        assert seen == ["a", "b", "c", "d"]


async def fail(_: Any) -> Any:
    raise ValueError("a user's mistake")


@every_kind
async def test_what_an_interceptor_raises_comes_out_and_counts_against_nobody(kind: str) -> None:
    counts = Counts()
    async with served(interceptors=all_four(fail), observer=counts) as ([backend], channel):
        call = begin(channel, kind)

        with pytest.raises(ValueError, match="a user's mistake"):
            await answer(call)

        await settled(channel)
        assert backend.requests == 0
        assert [outcome.name for outcome in counts.finished] == ["CANCELLED"]


@every_kind
async def test_an_interceptor_may_raise_grpc_s_error(kind: str) -> None:
    async def act(_: Any) -> Any:
        raise grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, details="not you")

    async with served(interceptors=all_four(act)) as (_, channel):
        call = begin(channel, kind)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await answer(call)

        assert raised.value.code() is await call.code() is grpc.StatusCode.PERMISSION_DENIED
        await settled(channel)


async def test_an_interceptor_may_answer_itself() -> None:
    async def act(_: Any) -> Any:
        return b"from a cache"

    async with served(interceptors=[UnaryUnary(act)]) as ([backend], channel):
        call = channel.unary_unary(UNARY_UNARY)(b"x")

        assert await call == b"from a cache"
        await settled(channel)
        assert backend.requests == 0


@every_kind
async def test_a_call_can_be_cancelled_while_its_interceptor_runs(kind: str) -> None:
    running = asyncio.Event()

    async def act(_: Any) -> Any:
        running.set()
        await asyncio.Event().wait()

    async with served(interceptors=all_four(act)) as (_, channel):
        call = begin(channel, kind)
        waiting = asyncio.ensure_future(answer(call))
        await running.wait()

        assert call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(call.done)
        assert call.cancelled()
        await settled(channel)


async def test_an_interceptor_that_fails_never_meets_the_health_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(what: Any) -> Any:
        return await fail(what)

    async with served(config=quick(), interceptors=[UnaryStream(act)]) as ([backend], channel):
        for _ in range(20):
            await channel.unary_unary(UNARY_UNARY)(b"x")
            await asyncio.sleep(0.02)

        assert backend.requests == 20
        assert caplog.text == ""


async def test_an_interceptor_s_context_is_that_of_the_call() -> None:
    seen: list[str] = []

    async def act(what: Any) -> Any:
        continuation, details, request = what
        seen.append(evenly.context.current_request().customer)
        return await continuation(details, request)

    async def hold(request: bytes, context: Context) -> bytes:
        return request

    async with served(interceptors=[UnaryUnary(act)]) as ([backend], channel):
        backend.unary_unary = hold
        with evenly.request_context(customer="first"):
            first = channel.unary_unary(UNARY_UNARY)(b"x")  # It waits for the backends.
        with evenly.request_context(customer="second"):
            second = channel.unary_unary(UNARY_UNARY)(b"x")
        await asyncio.gather(answer(first), answer(second))

        assert sorted(seen) == ["first", "second"]
