"""What travels with a call: criticality, customer, deadline, compression."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from evenly import Criticality
from tests.grpc.plain import (
    KINDS,
    UNARY_UNARY,
    answer,
    begin,
    plain_backends,
    served,
)

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
async def test_criticality_customer_and_deadline_of_the_context_travel(kind: str) -> None:
    async with served() as ([backend], channel):
        with evenly.request_context(
            criticality=Criticality.SHEDDABLE, customer="indexer", user="ann", deadline_seconds=50.0
        ):
            call = begin(channel, kind)
            luck = evenly.current_request().luck
        await answer(call)

        arrival = backend.arrivals[0]
        assert arrival.metadata["evenly-criticality"] == "SHEDDABLE"
        assert luck is not None
        assert arrival.metadata["evenly-level"] == f"u={luck * 64:.0f}"
        assert (
            arrival.metadata["baggage"]
            == f"evenly-criticality=SHEDDABLE,evenly-luck={luck * 64:.0f}"
        )
        assert arrival.metadata["evenly-customer"] == "indexer"
        assert arrival.seconds_left is not None
        assert 0.0 < arrival.seconds_left <= 50.5  # gRPC rounds up to three digits.


@pytest.mark.parametrize(
    ("context_seconds", "timeout", "most"),
    [
        pytest.param(50.0, 20.0, 20.0, id="its own is shorter"),
        pytest.param(20.0, 50.0, 20.0, id="the inherited one is shorter"),
        pytest.param(None, 20.0, 20.0, id="its own alone"),
    ],
)
async def test_the_shorter_deadline_counts(
    context_seconds: float | None, timeout: float, most: float
) -> None:
    async with served() as ([backend], channel):
        with evenly.request_context(deadline_seconds=context_seconds):
            await channel.unary_unary(UNARY_UNARY)(b"", timeout=timeout)

        left = backend.arrivals[0].seconds_left
        assert left is not None
        assert most - 15.0 < left <= most * 1.01  # gRPC rounds up to three digits.


async def test_a_call_of_no_particular_kind_carries_nothing_of_ours() -> None:
    async with served() as ([backend], channel):
        await channel.unary_unary(UNARY_UNARY)(b"")

        metadata = backend.arrivals[0].metadata
        assert [key for key in metadata if key.startswith(("evenly", "grpc-prev", "bagg"))] == []
        assert "evenly/" in str(metadata["user-agent"])  # So a backend need not send ORCA.


async def test_a_deadline_of_the_context_that_has_passed_sends_nothing() -> None:
    async with served() as ([backend], channel):
        await channel.channel_ready()
        with evenly.request_context(deadline_seconds=0.0):
            call = channel.unary_unary(UNARY_UNARY)(b"")

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert backend.requests == 0


class Meter:
    """Pass bytes on between one client and a server, and count what the client sends."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.tasks.add(asyncio.create_task(self.pass_on(there, writer)))
        while data := await reader.read(65536):
            self.sent += len(data)
            back.write(data)
            await back.drain()
        back.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.mark.parametrize("where", ["channel", "call"])
@every_kind
async def test_messages_are_compressed_where_that_was_asked_for(kind: str, where: str) -> None:
    gzip = grpc.Compression.Gzip
    async with plain_backends(1) as [backend]:
        meter = Meter(backend.port)
        relay = await asyncio.start_server(meter.accept, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        options: dict[str, Any] = {"compression": gzip} if where == "call" else {}
        message = bytes(1_000_000)
        async with evenly.grpc.channel(
            f"static:127.0.0.1:{port}", compression=gzip if where == "channel" else None
        ) as channel:
            make = getattr(channel, kind)
            path = {"unary_unary": "UnaryUnary", "unary_stream": "UnaryStream"}.get(
                kind, "StreamUnary" if kind == "stream_unary" else "StreamStream"
            )
            sent = [message] if kind.startswith("stream") else message
            replies = await answer(make(f"/test.Echo/{path}")(sent, **options))

            assert set(replies) == {message}
            assert meter.sent < 100_000  # A million zeros: gzip leaves about a thousandth.
        relay.close()
        await relay.wait_closed()
        await asyncio.gather(*meter.tasks)
