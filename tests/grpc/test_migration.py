from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome
from tests.grpc.served import SERVICE, SOON, Served, failure, press, served, trailers, unary

uu = grpc.unary_unary_rpc_method_handler
Code = grpc.StatusCode


def burn(seconds: float) -> None:
    ends_at = time.thread_time() + seconds
    while time.thread_time() < ends_at:
        pass


class Kinds:
    """Plain functions of every kind; what to do comes as the first message."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.closed = threading.Event()

    def act(self, what: bytes, context: Any) -> None:
        if what == b"raise":
            raise ValueError
        if what == b"abort":
            context.abort(Code.NOT_FOUND, "not here", (("mine", "1"),))
        if what == b"hang":
            self.entered.set()
            self.go_on.wait(SOON)

    def unary_unary(self, request: bytes, context: Any) -> bytes:
        self.act(request, context)
        return b"done"

    def unary_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        try:
            yield b"first"
            self.act(request, context)
            yield b"done"
        finally:
            self.closed.set()

    def stream_unary(self, requests: Any, context: Any) -> bytes:
        for request in requests:
            self.act(request, context)
        return b"done"

    def stream_stream(self, requests: Any, context: Any) -> Iterator[bytes]:
        yield b"first"
        for request in requests:
            self.act(request, context)
        yield b"done"

    def handlers(self) -> dict[str, Any]:
        return {
            "uu": uu(self.unary_unary),
            "us": grpc.unary_stream_rpc_method_handler(self.unary_stream),
            "su": grpc.stream_unary_rpc_method_handler(self.stream_unary),
            "ss": grpc.stream_stream_rpc_method_handler(self.stream_stream),
        }


KINDS = ["uu", "us", "su", "ss"]


def begin(backend: Served, kind: str, what: bytes) -> Any:
    async def requests() -> AsyncIterator[bytes]:
        yield b""
        yield what

    method = f"/{SERVICE}/{kind}"
    channel = backend.channel
    return {
        "uu": lambda: channel.unary_unary(method)(what),
        "us": lambda: channel.unary_stream(method)(what),
        "su": lambda: channel.stream_unary(method)(requests()),
        "ss": lambda: channel.stream_stream(method)(requests()),
    }[kind]()


async def received(call: Any, kind: str) -> list[bytes]:
    if kind.endswith("u"):
        return [await call]
    return [response async for response in call]


@pytest.mark.parametrize("kind", KINDS)
async def test_plain_functions_of_every_kind_are_served(kind: str) -> None:
    async with served(Kinds().handlers()) as backend:
        call = begin(backend, kind, b"ok")
        expected = [b"done"] if kind.endswith("u") else [b"first", b"done"]

        assert await received(call, kind) == expected
        assert "evenly-load" in await trailers(call)
        assert await backend.outcome() is Outcome.OK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "code", "outcome"),
    [(b"raise", Code.UNKNOWN, Outcome.ERROR), (b"abort", Code.NOT_FOUND, Outcome.OK)],
)
async def test_plain_functions_may_fail(
    kind: str, what: bytes, code: Any, outcome: Outcome
) -> None:
    async with served(Kinds().handlers()) as backend:
        call = begin(backend, kind, what)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await received(call, kind)

        assert caught.value.code() is code
        names = await trailers(call)
        assert "evenly-load" in names
        assert ("mine" in names) == (what == b"abort")
        assert await backend.outcome() is outcome


async def test_a_thread_learns_that_its_client_has_gone() -> None:
    kinds = Kinds()
    async with served(kinds.handlers()) as backend:
        call = begin(backend, "us", b"hang")
        await call.read()
        while not kinds.entered.is_set():
            await evenly.run_in_thread(kinds.entered.wait, 0.05)
        call.cancel()

        assert await backend.outcome() is Outcome.CANCELLED
        kinds.go_on.set()  # It yields, and nobody is there: the generator is closed.
        assert await evenly.run_in_thread(kinds.closed.wait, SOON)


async def test_they_run_in_the_servers_threads_inside_the_context_and_are_charged() -> None:
    seen: list[Any] = []

    def work(request: bytes, context: Any) -> bytes:
        request_seen = evenly.current_request()
        seen.append((threading.current_thread().name, request_seen.criticality))
        burn(0.03)
        return b""

    with ThreadPoolExecutor(1, thread_name_prefix="migration") as pool:
        async with served({"Do": uu(work)}, migration_thread_pool=pool) as backend:
            metadata = (("evenly-criticality", "SHEDDABLE"),)
            await unary(backend.channel, "Do")(b"", metadata=metadata)
            await backend.outcome()

    assert seen == [("migration_0", Criticality.SHEDDABLE)]
    # 0.03 s in the thread; handing it over takes far less than a third of that.
    assert 0.03 <= backend.ledger.costs[0] < 0.04


async def test_they_are_refused_without_a_thread() -> None:
    began: list[bytes] = []
    handler = uu(lambda request, _: began.append(request))
    async with served({"Do": handler}) as backend:
        await press(backend.runtime, 9.0)
        assert (await failure(unary(backend.channel, "Do")(b""))).code() is Code.UNAVAILABLE
    assert not began


async def test_degraded_answers_from_threads_say_so() -> None:
    def cheaper(request: bytes, context: Any) -> bytes:
        return b"cheap"

    @evenly.degradable(cheaper)
    def work(request: bytes, context: Any) -> bytes:
        return b"dear"

    async with served({"Do": uu(work)}) as backend:
        await press(backend.runtime, 1.0)
        call = unary(backend.channel, "Do")(b"")

        assert await call == b"cheap"
        assert (await trailers(call))["evenly-degraded"] == "1"


async def test_what_they_do_with_their_context_works_as_in_grpc() -> None:
    ended = threading.Event()
    kept: list[Any] = []

    def poke(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert isinstance(context, grpc.ServicerContext)
        assert context.is_active()
        assert context.peer().startswith("ipv4:127.0.0.1:")
        assert context.peer_identities() is None
        assert context.peer_identity_key() is None
        assert isinstance(context.auth_context(), dict)
        assert 0.0 < context.time_remaining() <= 61.0
        assert ("mine", "1") in tuple(context.invocation_metadata())
        assert context.add_callback(ended.set)
        context.set_trailing_metadata((("a", "b"),))
        assert context.trailing_metadata() == (("a", "b"),)
        context.set_compression(grpc.Compression.Gzip)
        context.disable_next_message_compression()
        context.send_initial_metadata((("early", "1"),))
        context.set_code(Code.NOT_FOUND)
        context.set_details("not here")
        assert (context.code(), context.details()) == (Code.NOT_FOUND, "not here")
        with pytest.raises(NotImplementedError):
            context.cancel()
        kept.append(context)
        return b""

    async with served({"Do": uu(poke)}) as backend:
        call = unary(backend.channel, "Do")(b"", timeout=60.0, metadata=(("mine", "1"),))
        error = await failure(call)
        assert (error.code(), error.details()) == (Code.NOT_FOUND, "not here")
        assert ("early", "1") in tuple(await call.initial_metadata())
        assert (await trailers(call))["a"] == "b"
        assert await backend.outcome() is Outcome.OK
        assert await evenly.run_in_thread(ended.wait, SOON)
        # Afterwards nothing may touch what gRPC has freed.
        assert not kept[0].is_active()
        assert not kept[0].add_callback(ended.set)
        with pytest.raises(RuntimeError, match="has ended"):
            kept[0].peer()
