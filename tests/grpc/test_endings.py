from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
from evenly.core.request import Outcome
from evenly.grpc.common.answer import Trailers
from evenly.grpc.server.server import server
from evenly.runtime.backend_config import BackendConfig
from evenly.wire import orca
from tests.grpc.served import (
    SERVICE,
    SOON,
    TASK,
    Served,
    failure,
    press,
    served,
    trailers,
    unary,
)

uu = grpc.unary_unary_rpc_method_handler
us = grpc.unary_stream_rpc_method_handler
su = grpc.stream_unary_rpc_method_handler
ss = grpc.stream_stream_rpc_method_handler
Code = grpc.StatusCode


async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return request


async def abort(request: Any, context: Any) -> bytes:
    await context.abort(Code.NOT_FOUND, "not here", (("mine", "1"),))
    raise AssertionError


async def abort_with_trailers_set(request: Any, context: Any) -> bytes:
    context.set_trailing_metadata((("mine", "1"),))
    await context.abort(Code.NOT_FOUND, "not here")
    raise AssertionError


async def abort_with_status(request: Any, context: Any) -> bytes:
    class Status(grpc.Status):
        code = Code.NOT_FOUND
        details = "not here"
        trailing_metadata = (("mine", "1"),)

    await context.abort_with_status(Status())
    raise AssertionError


async def set_code(request: Any, context: Any) -> bytes:
    context.set_code(Code.NOT_FOUND)
    context.set_details("not here")
    context.set_trailing_metadata((("mine", "1"),))
    return b"dropped"


async def raise_with_code(request: Any, context: Any) -> bytes:
    context.set_code(Code.NOT_FOUND)
    context.set_trailing_metadata((("mine", "1"),))
    raise ValueError


@pytest.mark.parametrize(
    "handler", [abort, abort_with_trailers_set, abort_with_status, set_code, raise_with_code]
)
async def test_a_status_about_the_request_is_ok_and_keeps_the_handlers_trailers(
    handler: Any,
) -> None:
    async with served({"Do": uu(handler)}) as backend:
        call = unary(backend.channel, "Do")(b"")
        error = await failure(call)

        assert error.code() is Code.NOT_FOUND
        names = await trailers(call)
        assert names["mine"] == "1"
        assert "evenly-load" in names
        assert await backend.outcome() is Outcome.OK


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.INTERNAL, Outcome.ERROR),
        (Code.UNAVAILABLE, Outcome.ERROR),
        (Code.UNIMPLEMENTED, Outcome.ERROR),
        (Code.DEADLINE_EXCEEDED, Outcome.TIMEOUT),
        (Code.CANCELLED, Outcome.CANCELLED),
        (Code.RESOURCE_EXHAUSTED, Outcome.OK),
        (Code.PERMISSION_DENIED, Outcome.OK),
    ],
)
async def test_statuses_are_counted_as_clients_count_them(code: Any, outcome: Outcome) -> None:
    async def fail(request: bytes, context: Any) -> bytes:
        await context.abort(code, "")
        raise AssertionError

    async with served({"Do": uu(fail)}) as backend:
        assert (await failure(unary(backend.channel, "Do")(b""))).code() is code
        assert await backend.outcome() is outcome


async def test_the_response_of_a_failure_need_not_be_one() -> None:
    async def fail(request: bytes, context: Any) -> None:
        context.set_code(Code.NOT_FOUND)
        context.set_details("gone")

    async with served({"Do": uu(fail, response_serializer=bytes.fromhex)}) as backend:
        error = await failure(unary(backend.channel, "Do")(b""))
        assert (error.code(), error.details()) == (Code.NOT_FOUND, "gone")
        assert await backend.outcome() is Outcome.OK


async def test_an_exception_is_unknown_with_our_trailers_and_an_error() -> None:
    async def fail(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("mine", "1"),))
        raise ValueError("no")

    async with served({"Do": uu(fail)}) as backend:
        call = unary(backend.channel, "Do")(b"")
        error = await failure(call)

        assert error.code() is Code.UNKNOWN
        assert "ValueError" in str(error.details())
        names = await trailers(call)
        assert names["mine"] == "1"
        assert "evenly-load" in names
        assert await backend.outcome() is Outcome.ERROR


async def test_an_abort_that_the_handler_swallows_still_counts() -> None:
    async def swallow(request: bytes, context: Any) -> bytes:
        with contextlib.suppress(Exception):  # Some do.
            await context.abort(Code.INTERNAL, "no")
        return b"never sent"

    async with served({"Do": uu(swallow)}) as backend:
        assert (await failure(unary(backend.channel, "Do")(b""))).code() is Code.INTERNAL
        assert await backend.outcome() is Outcome.ERROR


async def test_a_degraded_answer_says_so() -> None:
    async def cheaper(request: bytes, context: Any) -> bytes:
        return b"cheap"

    @evenly.degradable(cheaper)
    async def work(request: bytes, context: Any) -> bytes:
        return b"dear"

    async with served({"Do": uu(work)}) as backend:
        call = unary(backend.channel, "Do")(b"")
        assert (await call, "evenly-degraded" in await trailers(call)) == (b"dear", False)
        await press(backend.runtime, 1.0)  # the foot of the SHEDDABLE ramp
        call = unary(backend.channel, "Do")(b"")

        assert await call == b"cheap"
        assert (await trailers(call))["evenly-degraded"] == "1"


async def test_clients_of_others_get_orca_and_ours_do_not() -> None:
    # gRPC takes the binary report out before a Python client sees it, so look where it is made.
    for orca_config, to_evenly, is_there in (
        ("foreign", True, False),
        ("foreign", False, True),
        ("always", True, True),
        ("always", False, True),
        ("never", True, False),
        ("never", False, False),
    ):
        made = server(config=BackendConfig(task=TASK, orca=orca_config))  # type: ignore[arg-type]
        names = dict(Trailers(made.runtime).load(to_evenly))
        assert "evenly-load" in names
        assert (orca.GRPC_KEY in names) is is_there
        await made.stop(None)


# The four kinds, ending in every way.


async def all_requests(requests: Any) -> list[bytes]:
    return [request async for request in requests]


async def stream_of(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x"


class Kinds:
    """Handlers of every kind and style; what to do comes as the first message."""

    def __init__(self) -> None:
        self.closed = 0
        self.entered = asyncio.Event()
        self.deadline_at: float | None = None

    async def act(self, what: bytes, context: Any) -> None:
        if what == b"raise":
            raise ValueError
        if what == b"abort":
            await context.abort(Code.NOT_FOUND, "", (("mine", "1"),))
        if what == b"hang":
            self.deadline_at = evenly.current_request().deadline_at
            self.entered.set()
            try:
                await asyncio.sleep(3600)
            finally:
                self.closed += 1

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        await self.act(request, context)
        return b"done"

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await self.act(request, context)
        yield b"done"

    async def unary_stream_writes(self, request: bytes, context: Any) -> None:
        await context.write(b"first")
        await self.act(request, context)
        await context.write(b"done")

    async def stream_unary(self, requests: Any, context: Any) -> bytes:
        async for request in requests:
            await self.act(request, context)
        return b"done"

    async def stream_stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        async for request in requests:
            await self.act(request, context)
        yield b"done"

    async def stream_stream_reads(self, _: Any, context: Any) -> None:
        await context.write(b"first")
        while (request := await context.read()) is not grpc.aio.EOF:
            await self.act(request, context)
        await context.write(b"done")

    def handlers(self) -> dict[str, Any]:
        return {
            "uu": uu(self.unary_unary),
            "us": us(self.unary_stream),
            "us-writes": us(self.unary_stream_writes),
            "su": su(self.stream_unary),
            "ss": ss(self.stream_stream),
            "ss-reads": ss(self.stream_stream_reads),
        }


KINDS = list(Kinds.handlers(Kinds.__new__(Kinds)))


def begin(backend: Served, kind: str, what: bytes, timeout: float | None = None) -> Any:
    async def requests() -> AsyncIterator[bytes]:
        yield what

    method = f"/{SERVICE}/{kind}"
    channel = backend.channel
    if kind == "uu":
        return channel.unary_unary(method)(what, timeout=timeout)
    if kind.startswith("us"):
        return channel.unary_stream(method)(what, timeout=timeout)
    if kind == "su":
        return channel.stream_unary(method)(requests(), timeout=timeout)
    return channel.stream_stream(method)(requests(), timeout=timeout)


async def received(call: Any) -> list[bytes]:
    if isinstance(call, grpc.aio.UnaryUnaryCall | grpc.aio.StreamUnaryCall):
        return [await call]
    return [response async for response in call]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_ends_well(kind: str) -> None:
    async with served(Kinds().handlers()) as backend:
        call = begin(backend, kind, b"ok")

        assert (await received(call))[-1] == b"done"
        assert "evenly-load" in await trailers(call)
        assert await backend.outcome() is Outcome.OK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "code", "outcome"),
    [(b"raise", Code.UNKNOWN, Outcome.ERROR), (b"abort", Code.NOT_FOUND, Outcome.OK)],
)
async def test_every_kind_may_fail(kind: str, what: bytes, code: Any, outcome: Outcome) -> None:
    async with served(Kinds().handlers()) as backend:
        call = begin(backend, kind, what)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await received(call)

        assert caught.value.code() is code
        names = await trailers(call)
        assert "evenly-load" in names
        assert ("mine" in names) == (what == b"abort")
        assert await backend.outcome() is outcome


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_may_be_cancelled_while_it_is_served(kind: str) -> None:
    kinds = Kinds()
    async with served(kinds.handlers()) as backend:
        call = begin(backend, kind, b"hang")
        await asyncio.wait_for(kinds.entered.wait(), SOON)
        call.cancel()

        assert await backend.outcome() is Outcome.CANCELLED
        assert kinds.closed == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_may_run_out_of_time(kind: str) -> None:
    for _ in range(20):
        kinds = Kinds()
        async with served(kinds.handlers()) as backend:
            await backend.channel.channel_ready()
            deadline_at = time.monotonic() + 0.3
            call = begin(backend, kind, b"hang", timeout=0.3)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await received(call)

            assert caught.value.code() is Code.DEADLINE_EXCEEDED
            # gRPC sends what remains: one that was held up on its way by more than the 20 ms that
            # the backend allows for ends early by its clock, or has not even begun.
            if kinds.deadline_at is None or kinds.deadline_at > deadline_at + 0.02:
                continue
            assert await backend.outcome() is Outcome.TIMEOUT
            assert kinds.closed == 1
            return
    raise AssertionError("the machine held every one of them up")


@pytest.mark.parametrize("kind", ["us", "us-writes", "ss", "ss-reads"])
async def test_a_stream_may_be_abandoned_after_its_first_message(kind: str) -> None:
    kinds = Kinds()
    async with served(kinds.handlers()) as backend:
        call = begin(backend, kind, b"hang")
        assert await call.read() == b"first"
        await asyncio.wait_for(kinds.entered.wait(), SOON)
        await backend.channel.close()

        assert await backend.outcome() is Outcome.CANCELLED
        assert kinds.closed == 1


async def test_a_generator_is_closed_when_its_client_stops_reading() -> None:
    closed = asyncio.Event()

    async def endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000  # more than flow control lets through unread
        finally:
            closed.set()

    async with served({"us": us(endless)}) as backend:
        call = backend.channel.unary_stream(f"/{SERVICE}/us")(b"")
        await call.read()
        call.cancel()

        await asyncio.wait_for(closed.wait(), SOON)
        assert await backend.outcome() is Outcome.CANCELLED


async def test_a_stream_that_breaks_under_a_message_is_no_error_of_the_backend() -> None:
    async def broken(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        # What `write` raises where a client goes, in one of 300 cases.
        raise grpc.aio.InternalError("Failed execute_batch")

    async with served({"us": us(broken)}) as backend:
        call = backend.channel.unary_stream(f"/{SERVICE}/us")(b"")
        assert await call.read() == b"one"
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()

        assert await backend.outcome() is Outcome.CANCELLED


async def test_a_server_that_stops_ends_what_is_under_way() -> None:
    kinds = Kinds()
    async with served(kinds.handlers()) as backend:
        calls = [begin(backend, kind, b"hang") for kind in KINDS]
        async with asyncio.timeout(SOON):
            while backend.runtime.active < len(KINDS):
                await asyncio.sleep(0.005)
        await asyncio.wait_for(backend.server.stop(0.1), SOON)

        assert set(await backend.ended(len(KINDS))) == {Outcome.CANCELLED}
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await received(call)


async def test_many_calls_of_all_kinds_ending_in_every_way_leave_nothing_behind() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- to replay it
    luck = random.Random(seed)
    kinds = Kinds()
    async with served(kinds.handlers()) as backend:

        async def one() -> None:
            what = luck.choice((b"ok", b"raise", b"abort", b"hang"))
            seconds = luck.choice((0.0001, 0.02, 0.2)) if what == b"hang" else 10.0
            call = begin(backend, luck.choice(KINDS), what, timeout=seconds)
            if luck.random() < 0.2:
                await asyncio.sleep(luck.random() * 0.01)
                call.cancel()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await received(call)

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(60)))
        async with asyncio.timeout(SOON):
            while backend.runtime.active:
                await asyncio.sleep(0.01)
        assert len(backend.ledger.outcomes) == len(backend.ledger.admitted)
        assert backend.runtime.snapshot().waiting == 0
        assert len(backend.ledger.admitted) > 300
