"""What a user of grpc.aio observes: the same with evenly on either side, or on both.

Each case returns what it saw.  It is run against plain gRPC first, which is the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly.grpc
from tests.conformance.grpc.parts import (
    NAME,
    SERVICE,
    SOON,
    STREAM_STREAM,
    STREAM_UNARY,
    UNARY_STREAM,
    UNARY_UNARY,
    Certificates,
    certificates,
    unused_port,
)

QUICK = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100)]
TRAILERS = (("x-end", "1"), ("x-end-bin", b"\x00\xff"))


RICH = (("x-rich-bin", b"\x01"), ("x-twice", "1"), ("x-twice", "2"))
SHOWN = ("transport_security_type", "x509_common_name", "security_level")


class RichStatus(grpc.Status):  # type: ignore[misc]
    code = grpc.StatusCode.FAILED_PRECONDITION
    details = "rich"
    trailing_metadata = RICH


def of_a_user(entry: tuple[str, Any]) -> bool:
    return not entry[0].startswith(("evenly-", "grpc-accept", "user-agent"))


def told_of(request: bytes, context: Any) -> bytes:
    """Answer a question about the call, or return the request."""
    if request == b"all metadata":
        return repr([m for m in map(tuple, context.invocation_metadata()) if of_a_user(m)]).encode()
    if request == b"deadline":
        left = context.time_remaining()
        return str(None if left is None or left > SOON * 10 else round(left / 10)).encode()
    if request == b"compressed":
        context.set_compression(grpc.Compression.Deflate)
        return b"y" * 50_000
    if request == b"identity":
        known = (context.peer_identity_key(), context.peer_identities())
        context_of_tls = context.auth_context()
        return repr(
            (known, [(k, context_of_tls[k]) for k in SHOWN if k in context_of_tls])
        ).encode()
    return request


async def unary(request: bytes, context: Any) -> bytes:
    if request == b"abort":
        await context.abort(grpc.StatusCode.NOT_FOUND, "gone", TRAILERS)
    if request == b"code":
        context.set_code(grpc.StatusCode.OUT_OF_RANGE)
        context.set_details("too far")
    if request == b"slow":
        await asyncio.sleep(SOON)
    if request == b"metadata":
        await context.send_initial_metadata((("x-begin", "1"),))
        context.set_trailing_metadata(TRAILERS)
        sent = [item for item in context.invocation_metadata() if item[0].startswith("x-")]
        return repr(sorted(map(tuple, sent))).encode()
    if request == b"status":
        await context.abort_with_status(RichStatus())
    if request == b"raise":
        raise LookupError("a handler's own")
    return told_of(request, context)


async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield request
    if request == b"abort":
        await context.abort(grpc.StatusCode.ABORTED, "enough", TRAILERS)
    yield request


async def join(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def each(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


HANDLERS = {
    "UnaryUnary": grpc.unary_unary_rpc_method_handler(unary),
    "UnaryStream": grpc.unary_stream_rpc_method_handler(stream),
    "StreamUnary": grpc.stream_unary_rpc_method_handler(join),
    "StreamStream": grpc.stream_stream_rpc_method_handler(each),
}


@dataclass(frozen=True)
class World:
    """Open channels of one kind to servers of one kind."""

    client: str
    server: str

    @asynccontextmanager
    async def channel(
        self,
        *,
        tls: bool = False,
        mutual: bool = False,
        options: Sequence[tuple[str, Any]] = (),
        guards: Sequence[grpc.aio.ServerInterceptor] = (),
        **arguments: Any,
    ) -> AsyncIterator[Any]:
        secret = certificates() if tls else None
        credentials = None if secret is None else secret.for_client(mutual=mutual)
        async with self.serving(secret, mutual=mutual, interceptors=guards) as port:
            made = self.opened(port, credentials, options, **arguments)
            async with asyncio.timeout(SOON), made as channel:
                yield channel

    @asynccontextmanager
    async def serving(
        self,
        secret: Certificates | None = None,
        *,
        port: int = 0,
        mutual: bool = False,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> AsyncIterator[int]:
        make = grpc.aio.server if self.server == "plain" else evenly.grpc.server
        server = make(interceptors=interceptors)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, HANDLERS),))
        address = f"127.0.0.1:{port}"
        if secret is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, secret.for_server(mutual=mutual))
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)

    def opened(
        self,
        port: int,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
        **arguments: Any,
    ) -> Any:
        if self.client == "evenly":
            target = f"static:127.0.0.1:{port}"
            return evenly.grpc.channel(
                target, credentials=credentials, options=options, **arguments
            )
        if credentials is None:
            return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options, **arguments)
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options, **arguments)


def own(metadata: Any) -> list[tuple[str, Any]]:
    return [item for item in map(tuple, metadata or ()) if item[0].startswith("x-")]


async def seen(call: Any) -> Any:
    """Return everything that a call tells, however it ends."""
    try:
        if hasattr(call, "__aiter__"):
            answer: Any = [message async for message in call]
        else:
            answer = await call
    except grpc.aio.AioRpcError as error:
        answer = (error.code(), error.details(), own(error.trailing_metadata()))
    except asyncio.CancelledError:
        answer = "cancelled"
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
        return repr(error)
    status = (await call.code(), await call.details())
    return answer, status, own(await call.trailing_metadata()), call.done(), call.cancelled()


async def four_kinds(world: World) -> Any:
    async with world.channel() as channel:
        return [
            await seen(channel.unary_unary(UNARY_UNARY)(b"a")),
            await seen(channel.unary_stream(UNARY_STREAM)(b"a")),
            await seen(channel.stream_unary(STREAM_UNARY)(iter([b"a", b"b"]))),
            await seen(channel.stream_stream(STREAM_STREAM)(iter([b"a", b"b"]))),
        ]


async def metadata(world: World) -> Any:
    async with world.channel() as channel:
        sent = (("x-text", "v"), ("x-data-bin", b"\x00\x01"))
        call = channel.unary_unary(UNARY_UNARY)(b"metadata", metadata=sent)
        return await seen(call), own(await call.initial_metadata())


async def aborts_and_codes(world: World) -> Any:
    async with world.channel() as channel:
        return [
            await seen(channel.unary_unary(UNARY_UNARY)(b"abort")),
            await seen(channel.unary_unary(UNARY_UNARY)(b"code")),
            await seen(channel.unary_stream(UNARY_STREAM)(b"abort")),
            await seen(channel.unary_unary(f"/{SERVICE}/Nothing")(b"")),
        ]


async def deadline(world: World) -> Any:
    async with world.channel() as channel:
        await channel.channel_ready()
        call = channel.unary_unary(UNARY_UNARY)(b"slow", timeout=0.05)
        return (await seen(call))[1][0], call.time_remaining() == 0


async def words_of_a_deadline(world: World) -> Any:
    async with world.channel() as channel:
        await channel.channel_ready()
        return (await seen(channel.unary_unary(UNARY_UNARY)(b"slow", timeout=0.05)))[1]


async def cancellation(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)(b"slow")
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        first = call.cancel()
        result = await seen(call)
        await ended.wait()
        return first, result, call.cancel()


async def writing(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.stream_unary(STREAM_UNARY)()
        await call.write(b"a")
        await call.done_writing()
        await call.done_writing()
        faults = []
        try:
            await call.write(b"b")
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
            faults.append(repr(error))
        result = await seen(call)
        given = channel.stream_unary(STREAM_UNARY)(iter([b"a"]))
        try:
            await given.write(b"b")
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
            faults.append(repr(error))
        return result, faults, await seen(given)


async def compression_and_waiting(world: World) -> Any:
    async with world.channel(compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        large = b"x" * 50_000
        return await call(large, wait_for_ready=True), await call(
            large, compression=grpc.Compression.NoCompression
        )


async def states(world: World) -> Any:
    async with world.channel() as channel:
        await channel.channel_ready()
        ready = channel.get_state()
        await channel.close()
        faults = []
        uses: Sequence[Callable[[], Any]] = (
            lambda: channel.wait_for_state_change(grpc.ChannelConnectivity.SHUTDOWN),
            lambda: channel.unary_unary(UNARY_UNARY)(b"a"),
        )
        for use in uses:
            try:
                await use()
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
                faults.append(repr(error))
        return ready, channel.get_state(), faults


async def tls_with_another_name(world: World) -> Any:
    named = [("grpc.ssl_target_name_override", NAME)]
    async with world.channel(tls=True, options=named) as channel:
        return await seen(channel.unary_unary(UNARY_UNARY)(b"identity"))


async def tls_with_an_authority(world: World) -> Any:
    named = [("grpc.default_authority", NAME)]
    async with world.channel(tls=True, options=named) as channel:
        return await seen(channel.unary_unary(UNARY_UNARY)(b"identity"))


async def tls_of_both_sides(world: World) -> Any:
    named = [("grpc.ssl_target_name_override", NAME)]
    async with world.channel(tls=True, mutual=True, options=named) as channel:
        return await seen(channel.unary_unary(UNARY_UNARY)(b"identity"))


async def tls_with_a_wrong_name(world: World) -> Any:
    async with world.channel(tls=True) as channel:
        return (await seen(channel.unary_unary(UNARY_UNARY)(b"a")))[1][0]


class Interceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self, name: str, notes: list[str], does: str = "") -> None:
        self.name, self.notes, self.does = name, notes, does

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self.notes.append(self.name)
        if self.does == "raise":
            raise LookupError(self.name)
        if self.does == "answer":
            return b"made up"
        return await continuation(details, request + self.name.encode())


async def interceptors(world: World) -> Any:
    notes: list[str] = []
    results = []
    for does in ("", "raise", "answer"):
        chain = [Interceptor("1", notes), Interceptor("2", notes, does)]
        async with world.channel(interceptors=chain) as channel:
            call = channel.unary_unary(UNARY_UNARY)(b"a")
            try:
                results.append(await call)
            except LookupError as error:
                results.append(repr(error))
    return results, notes


class All(Interceptor):
    """Note the kind of each call, and what the messages are."""

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        self.notes.append(f"stream back {self.name} {request!r}")
        return await continuation(details, request + self.name.encode())

    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        self.notes.append(f"stream there {self.name}")
        return await continuation(details, self.changed(requests))

    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        self.notes.append(f"streams {self.name}")
        return await continuation(details, self.changed(requests))

    async def changed(self, requests: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request + self.name.encode()


def of_all_kinds(name: str, notes: list[str], does: str = "") -> list[grpc.aio.ClientInterceptor]:
    kinds = {
        "unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
        "unary_stream": grpc.aio.UnaryStreamClientInterceptor,
        "stream_unary": grpc.aio.StreamUnaryClientInterceptor,
        "stream_stream": grpc.aio.StreamStreamClientInterceptor,
    }
    one = All(name, notes, does)
    # gRPC uses an interceptor of several kinds as the first of them only.
    return [
        type(kind, (base,), {f"intercept_{kind}": getattr(one, f"intercept_{kind}")})()
        for kind, base in kinds.items()
    ]


async def stream_of(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def interceptors_of_all_kinds(world: World) -> Any:
    notes: list[str] = []
    chain = [*of_all_kinds("1", notes), *of_all_kinds("2", notes)]
    async with world.channel(interceptors=chain) as channel:
        return [
            await seen(channel.unary_unary(UNARY_UNARY)(b"a")),
            await seen(channel.unary_stream(UNARY_STREAM)(b"a")),
            await seen(channel.stream_unary(STREAM_UNARY)(stream_of(b"a", b"b"))),
            await seen(channel.stream_stream(STREAM_STREAM)(stream_of(b"a", b"b"))),
        ], notes


class Watching(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Answer in place of a backend that cannot be had."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = await continuation(details, request)
        self.notes.append(await call.code())
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            self.notes.append(error.code())
            return b"made up"


async def interceptors_without_a_backend(world: World) -> Any:
    notes: list[Any] = []
    chain = [*of_all_kinds("1", notes), *of_all_kinds("2", notes)]
    codes = []
    with unused_port() as port:
        async with asyncio.timeout(SOON), world.opened(port, interceptors=chain) as channel:
            for call in (
                channel.unary_unary(UNARY_UNARY)(b"a"),
                channel.unary_stream(UNARY_STREAM)(b"a"),
                channel.stream_unary(STREAM_UNARY)(stream_of(b"a", b"b")),
                channel.stream_stream(STREAM_STREAM)(stream_of(b"a", b"b")),
            ):
                answer, status, *rest = await seen(call)
                codes.append((answer[0], status[0], rest))
        async with (
            asyncio.timeout(SOON),
            world.opened(port, interceptors=[Watching(notes)]) as channel,
        ):
            answered = await seen(channel.unary_unary(UNARY_UNARY)(b"a"))
        chain = of_all_kinds("1", notes, "raise")
        async with asyncio.timeout(SOON), world.opened(port, interceptors=chain) as channel:
            return codes, answered, await seen(channel.unary_unary(UNARY_UNARY)(b"a")), notes


class Guarding(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if details.method.startswith(f"/{SERVICE}/"):
            self.notes.append((details.method, own(details.invocation_metadata)))
        if ("x-deny", "1") in own(details.invocation_metadata):
            return grpc.unary_unary_rpc_method_handler(deny)
        return await continuation(details)


async def deny(request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no", TRAILERS)
    return b""


async def interceptors_of_the_server(world: World) -> Any:
    notes: list[Any] = []
    async with world.channel(guards=[Guarding(notes)]) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            await seen(call(b"a", metadata=(("x-text", "v"),))),
            await seen(call(b"a", metadata=(("x-deny", "1"),))),
            await seen(channel.stream_stream(STREAM_STREAM)(stream_of(b"a", b"b"))),
        ], notes


async def waiting_for_a_backend(world: World) -> Any:
    with unused_port() as port:
        async with asyncio.timeout(SOON), world.opened(port, options=QUICK) as channel:
            call = channel.unary_unary(UNARY_UNARY)(b"a", wait_for_ready=True)
            while channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                await asyncio.sleep(0.005)
            refused = await seen(channel.unary_unary(UNARY_UNARY)(b"a"))
            async with world.serving(port=port):
                return refused[1][0], call.done(), await seen(call)


async def states_before_ready(world: World) -> Any:
    async with world.serving() as port, asyncio.timeout(SOON):
        channel = world.opened(port)
        states = [channel.get_state(), channel.get_state(try_to_connect=True)]
        await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
        await channel.channel_ready()
        states.append(channel.get_state())
        await channel.close()
        return states


def kind_of(fault: BaseException) -> str:
    """Return what kind it is; gRPC writes addresses of objects into the words of some."""
    return type(fault).__name__


async def tried(use: Callable[[], Any]) -> Any:
    """Return what came of it, or of awaiting it."""
    try:
        answer = use()
        return await answer if hasattr(answer, "__await__") else answer
    except grpc.aio.AioRpcError as error:
        return error.code()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- compared
        return kind_of(error)


METADATA: Sequence[Any] = (
    (("x-b", "1"), ("x-a", "2"), ("x-b", "3"), ("x-b-bin", b"\x00\xff"), ("x-b-bin", b"2")),
    grpc.aio.Metadata(("x-b", "1"), ("x-a", "2"), ("x-b", "3")),
    [("x-list", "1")],
    (),
    None,
    (("X-Upper", "1"),),
    (("x space", "1"),),
    (("x-line", "a\nb"),),
    ((":path", "/x"),),
    (("te", "x"), ("content-type", "foo")),
    (("grpc-own", "1"),),
    (("grpc-timeout", "1S"),),
    (("x-bytes", b"ab"),),
    (("x-number", 1),),
    (("alone",),),
    5,
)


async def metadata_of_all_sorts(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            await tried(lambda: call(b"all metadata", metadata=entries, timeout=SOON))  # noqa: B023 -- called now
            for entries in METADATA
        ]


async def aborts_with_a_status(world: World) -> Any:
    async with world.channel() as channel:
        return [
            await seen(channel.unary_unary(UNARY_UNARY)(b"status")),
            await seen(channel.unary_unary(UNARY_UNARY)(b"raise")),
        ]


async def deadlines_that_are_seen(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            await tried(lambda: call(b"deadline", timeout=SOON)),
            await tried(lambda: call(b"deadline")),
            await tried(lambda: call(b"deadline", timeout=-1)),
            await tried(lambda: call(b"deadline", timeout="soon")),
            await tried(lambda: channel.stream_unary(STREAM_UNARY)(timeout=0.05)),
        ]


async def compression_of_calls(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            await tried(lambda: call(b"compressed", compression=how))  # noqa: B023 -- called now
            for how in (None, *grpc.Compression)
        ], [
            await seen(
                channel.stream_stream(STREAM_STREAM)(stream_of(b"x" * 50_000), compression=how)
            )
            for how in grpc.Compression
        ]


async def limits_of_messages(world: World) -> Any:
    limits = [("grpc.max_send_message_length", 100), ("grpc.max_receive_message_length", 60)]
    async with world.channel(options=limits) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [await seen(call(b"x" * size)) for size in (50, 80, 120)]


async def two_options_of_one_name(world: World) -> Any:
    limits = [("grpc.max_send_message_length", 100), ("grpc.max_send_message_length", 10)]
    async with world.channel(options=limits) as channel:
        return [await seen(channel.unary_unary(UNARY_UNARY)(b"x" * size)) for size in (50, 120)]


async def options_that_are_none(world: World) -> Any:
    async with world.serving() as port:
        return await tried(lambda: kind_of(world.opened(port, None, [("a", object())])))


async def interceptors_that_are_none(world: World) -> Any:
    async with world.serving() as port:
        return await tried(lambda: world.opened(port, interceptors=[object()]))


async def reading_and_writing(world: World) -> Any:
    async with world.channel() as channel:
        call = channel.stream_stream(STREAM_STREAM)()
        await call.write(b"a")
        first = await call.read()
        await call.done_writing()
        ends = [await call.read() is grpc.aio.EOF for _ in range(2)]
        mixed = await tried(call.__aiter__)
        return first, ends, mixed, await tried(lambda: call.write(b"b")), await seen(call)


async def mistakes(world: World) -> Any:
    def fails(_: bytes) -> bytes:
        raise LookupError("the caller's own")

    async with world.channel() as channel:
        return [
            await tried(lambda: channel.unary_unary(UNARY_UNARY, fails)(b"a")),
            await tried(lambda: channel.unary_unary(UNARY_UNARY, None, fails)(b"a")),
            await tried(lambda: channel.unary_unary(UNARY_UNARY)("text")),
            await tried(lambda: channel.unary_unary("no path")(b"a")),
            await tried(
                lambda: channel.unary_unary(UNARY_UNARY)(
                    b"a", credentials=grpc.access_token_call_credentials("x")
                )
            ),
        ]


async def requests_that_are_no_stream(world: World) -> Any:
    async with world.channel() as channel:
        return await tried(lambda: channel.stream_unary(STREAM_UNARY)(5, timeout=SOON))


async def words_to_write_where_nobody_is(world: World) -> Any:
    with unused_port() as port:
        async with asyncio.timeout(SOON), world.opened(port) as channel:
            call = channel.stream_unary(STREAM_UNARY)()
            await call.code()
            return await tried(lambda: call.write(b"a")), await tried(call.done_writing)


async def a_channel_closed_meanwhile(world: World) -> Any:
    async with world.channel() as channel:
        await channel.channel_ready()
        call = channel.unary_unary(UNARY_UNARY)(b"slow")
        await asyncio.sleep(0)
        await channel.close()
        ended = await seen(call)
        again = await tried(channel.__aenter__) is channel
        return ended, again, await tried(channel.close), await tried(channel.channel_ready)


CASES: Sequence[Callable[[World], Awaitable[Any]]] = (
    metadata_of_all_sorts,
    aborts_with_a_status,
    deadlines_that_are_seen,
    compression_of_calls,
    limits_of_messages,
    two_options_of_one_name,
    options_that_are_none,
    interceptors_that_are_none,
    reading_and_writing,
    mistakes,
    requests_that_are_no_stream,
    words_to_write_where_nobody_is,
    a_channel_closed_meanwhile,
    four_kinds,
    metadata,
    aborts_and_codes,
    deadline,
    words_of_a_deadline,
    cancellation,
    writing,
    compression_and_waiting,
    states,
    tls_with_another_name,
    states_before_ready,
    tls_with_an_authority,
    tls_of_both_sides,
    tls_with_a_wrong_name,
    interceptors,
    interceptors_of_all_kinds,
    interceptors_without_a_backend,
    interceptors_of_the_server,
    waiting_for_a_backend,
)


# docs/conformance.md says the same of each, and of nothing else.
DIFFERENCES = (
    words_of_a_deadline,
    options_that_are_none,
    requests_that_are_no_stream,
    words_to_write_where_nobody_is,
)


TRUTHS: dict[Any, Any] = {}


@pytest.mark.parametrize(
    ("client", "server"), [("evenly", "plain"), ("plain", "evenly"), ("evenly", "evenly")]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_same_is_observed(
    case: Callable[[World], Awaitable[Any]], client: str, server: str
) -> None:
    if case not in TRUTHS:
        TRUTHS[case] = await case(World("plain", "plain"))

    observed = await case(World(client, server))
    if case is words_of_a_deadline and client == "evenly":
        # Which of the two words it is depends on who is first to see the deadline pass.
        assert observed[0] == TRUTHS[case][0]
    elif case in DIFFERENCES and client == "evenly":
        assert observed != TRUTHS[case]
    else:
        assert observed == TRUTHS[case]
