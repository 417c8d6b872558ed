"""What a user of grpc's threads observes: the same with evenly on either side, or on both.

Each case returns what it saw.  It is run against plain gRPC first, which is the truth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

import evenly.grpc.sync
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
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


RICH = (("x-rich-bin", b"\x01"), ("x-twice", "1"), ("x-twice", "2"))


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
        return repr((known, context.auth_context().get("x509_common_name"))).encode()
    return request


def unary(request: bytes, context: Any) -> bytes:
    if request == b"abort":
        context.set_trailing_metadata(TRAILERS)
        context.abort(grpc.StatusCode.NOT_FOUND, "gone")
    if request == b"code":
        context.set_code(grpc.StatusCode.OUT_OF_RANGE)
        context.set_details("too far")
    if request == b"raise":
        raise LookupError("a handler's own")
    if request == b"slow":
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait(SOON)
    if request == b"metadata":
        context.send_initial_metadata((("x-begin", "1"),))
        context.set_trailing_metadata(TRAILERS)
        return repr(sorted(own(context.invocation_metadata()))).encode()
    if request == b"status":
        context.abort_with_status(RichStatus())
    return told_of(request, context)


def stream(request: bytes, context: Any) -> Iterator[bytes]:
    yield request
    if request == b"abort":
        context.set_trailing_metadata(TRAILERS)
        context.abort(grpc.StatusCode.ABORTED, "enough")
    if request == b"slow":
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait(SOON)
    yield request


def join(requests: Iterator[bytes], context: Any) -> bytes:
    return b"".join(requests)


def each(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from requests


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

    @contextmanager
    def channel(
        self,
        *,
        tls: bool = False,
        mutual: bool = False,
        options: Sequence[tuple[str, Any]] = (),
        guards: Sequence[grpc.ServerInterceptor] = (),
        compression: grpc.Compression | None = None,
    ) -> Iterator[Any]:
        secret = certificates() if tls else None
        credentials = None if secret is None else secret.for_client(mutual=mutual)
        with (
            self.serving(secret, mutual=mutual, interceptors=guards) as port,
            self.opened(port, credentials, options, compression) as channel,
        ):
            yield channel

    @contextmanager
    def serving(
        self,
        secret: Certificates | None = None,
        *,
        port: int = 0,
        mutual: bool = False,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
    ) -> Iterator[int]:
        make = grpc.server if self.server == "plain" else evenly.grpc.sync.server
        with ThreadPoolExecutor(8) as pool:
            server = make(pool, interceptors=interceptors)
            handler = grpc.method_handlers_generic_handler(SERVICE, HANDLERS)
            server.add_generic_rpc_handlers((handler,))
            address = f"127.0.0.1:{port}"
            if secret is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, secret.for_server(mutual=mutual))
            server.start()
            try:
                yield port
            finally:
                server.stop(None).wait(SOON)

    def opened(
        self,
        port: int,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
        compression: grpc.Compression | None = None,
    ) -> Any:
        if self.client == "evenly":
            return evenly.grpc.sync.channel(
                f"static:127.0.0.1:{port}",
                credentials=credentials,
                options=options,
                compression=compression,
            )
        if credentials is None:
            return grpc.insecure_channel(f"127.0.0.1:{port}", options, compression)
        return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options, compression)


def own(metadata: Any) -> list[tuple[str, Any]]:
    return [item for item in map(tuple, metadata or ()) if item[0].startswith("x-")]


def told(call: Any) -> Any:
    """Return what a call that has ended says of itself."""
    kinds = [isinstance(call, kind) for kind in (grpc.Call, grpc.Future)]
    status = (call.code(), call.details(), own(call.initial_metadata()))
    return status, own(call.trailing_metadata()), kinds


def read(call: Any) -> Any:
    """Return everything that a stream of responses tells, however it ends."""
    messages = []
    try:
        for message in call:
            messages.append(message)  # noqa: PERF402 -- what came before an error counts
    except grpc.RpcError as error:
        return messages, told(error), told(call)
    return messages, told(call), call.done(), call.cancelled()


def ended(future: Any) -> Any:
    """Return everything that a future tells, however it ends."""
    try:
        answer: Any = future.result(timeout=SOON)
    except grpc.RpcError as error:
        answer = told(error)
    except grpc.FutureCancelledError as error:
        answer = repr(error)
    raised: Any = None
    try:
        raised = type(future.exception(timeout=SOON)) is type(None)
    except grpc.FutureCancelledError as error:
        raised = repr(error)
    return answer, raised, told(future), future.done(), future.running(), future.cancelled()


def blocked(callable_: Any, request: Any, **arguments: Any) -> Any:
    """Return what a caller who waits sees, in all three ways of waiting."""
    results: list[Any] = []
    try:
        results.append(callable_(request(), timeout=SOON, **arguments))
    except grpc.RpcError as error:
        results.append(told(error))
    try:
        answer, call = callable_.with_call(request(), timeout=SOON, **arguments)
        results.append((answer, told(call)))
    except grpc.RpcError as error:
        results.append(told(error))
    results.append(ended(callable_.future(request(), timeout=SOON, **arguments)))
    return results


def fault_of(use: Callable[[], Any]) -> str:
    try:
        return f"none: {use()!r}"
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
        return repr(error)


def all_kinds(channel: Any) -> list[Any]:
    return [
        blocked(channel.unary_unary(UNARY_UNARY), lambda: b"a"),
        read(channel.unary_stream(UNARY_STREAM)(b"a")),
        blocked(channel.stream_unary(STREAM_UNARY), lambda: iter([b"a", b"b"])),
        read(channel.stream_stream(STREAM_STREAM)(iter([b"a", b"b"]))),
    ]


def four_kinds(world: World) -> Any:
    with world.channel() as channel:
        return all_kinds(channel)


def metadata(world: World) -> Any:
    sent = (("x-text", "v"), ("x-data-bin", b"\x00\x01"))
    with world.channel() as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"metadata", metadata=sent)


def aborts_and_codes(world: World) -> Any:
    with world.channel() as channel:
        return [
            blocked(channel.unary_unary(UNARY_UNARY), lambda: b"abort"),
            blocked(channel.unary_unary(UNARY_UNARY), lambda: b"code"),
            blocked(channel.unary_unary(UNARY_UNARY), lambda: b"raise"),
            read(channel.unary_stream(UNARY_STREAM)(b"abort")),
            blocked(channel.unary_unary(f"/{SERVICE}/Nothing"), lambda: b""),
        ]


def late(world: World) -> tuple[Any, Any]:
    faults = []
    # A channel for each: a client task whose calls all time out may come to throttle itself.
    with world.channel() as channel:
        grpc.channel_ready_future(channel).result(SOON)
        try:
            channel.unary_unary(UNARY_UNARY)(b"slow", timeout=0.05)
        except grpc.RpcError as error:
            faults.append(told(error))
    with world.channel() as channel:
        grpc.channel_ready_future(channel).result(SOON)
        faults.append(ended(channel.unary_unary(UNARY_UNARY).future(b"slow", timeout=0.05))[2])
    return [fault[0][0] for fault in faults], [fault[0][1] for fault in faults]


def deadline(world: World) -> Any:
    return late(world)[0]


def words_of_a_deadline(world: World) -> Any:
    return late(world)[1]


def cancellation(world: World) -> Any:
    with world.channel() as channel:
        future = channel.unary_unary(UNARY_UNARY).future(b"slow")
        heard: list[Any] = []
        over = threading.Event()

        def hear(one: Any) -> None:
            heard.append(one is future)
            over.set()

        future.add_done_callback(hear)
        first = future.cancel()
        result = ended(future)
        over.wait(SOON)
        responses = channel.unary_stream(UNARY_STREAM)(b"slow")
        got = next(responses)
        responses.cancel()
        return first, result, heard, future.cancel(), got, read(responses)


def requests_that_fail(world: World) -> Any:
    def requests() -> Iterator[bytes]:
        yield b"a"
        raise LookupError("the caller's own")

    with world.channel() as channel:
        return [
            blocked(channel.stream_unary(STREAM_UNARY), requests)[0][0][0],
            read(channel.stream_stream(STREAM_STREAM)(requests()))[1][0][0],
            blocked(channel.stream_unary(STREAM_UNARY), lambda: 5)[0][0][0],
        ]


def compression_and_waiting(world: World) -> Any:
    with world.channel(compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        large = b"x" * 50_000
        return [
            blocked(call, lambda: large, wait_for_ready=True),
            blocked(call, lambda: large, compression=grpc.Compression.NoCompression),
        ]


def states(world: World) -> Any:
    return [fault.split("(")[0] for fault in closed(world)]


def closed(world: World) -> list[str]:
    with world.channel() as channel:
        grpc.channel_ready_future(channel).result(SOON)
        channel.close()
        return [
            fault_of(lambda: channel.unary_unary(UNARY_UNARY)(b"a")),
            fault_of(lambda: channel.unary_unary(UNARY_UNARY).future(b"a")),
            fault_of(lambda: channel.unary_stream(UNARY_STREAM)(b"a")),
            fault_of(lambda: channel.stream_stream(STREAM_STREAM)(iter([b"a"]))),
            fault_of(channel.close),
        ]


def states_before_ready(world: World) -> Any:
    with world.serving() as port, world.opened(port) as channel:
        heard: list[grpc.ChannelConnectivity] = []
        changed = threading.Condition()

        def hear(state: grpc.ChannelConnectivity) -> None:
            with changed:
                heard.append(state)
                changed.notify_all()

        channel.subscribe(hear)
        with changed:
            changed.wait_for(lambda: heard, SOON)
        channel.subscribe(hear, try_to_connect=True)
        with changed:
            changed.wait_for(lambda: grpc.ChannelConnectivity.READY in heard, SOON)
        channel.unsubscribe(hear)
        return heard[0], grpc.ChannelConnectivity.READY in heard


def tls_with_another_name(world: World) -> Any:
    named = [("grpc.ssl_target_name_override", NAME)]
    with world.channel(tls=True, options=named) as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"identity")


def tls_with_an_authority(world: World) -> Any:
    with world.channel(tls=True, options=[("grpc.default_authority", NAME)]) as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"identity")


def tls_of_both_sides(world: World) -> Any:
    named = [("grpc.ssl_target_name_override", NAME)]
    with world.channel(tls=True, mutual=True, options=named) as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"identity")


def tls_with_a_wrong_name(world: World) -> Any:
    with world.channel(tls=True) as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"a")[0][0][0]


class Interceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Note each call, and change it or what becomes of it."""

    def __init__(self, name: str, notes: list[Any], does: str = "") -> None:
        self.name, self.notes, self.does = name, notes, does

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self.notes.append(("unary_unary", self.name, details.method, request))
        if self.does == "raise":
            raise LookupError(self.name)
        call = continuation(details, request + self.name.encode())
        if self.does == "watch":
            self.notes.append((call.code(), isinstance(call.exception(), grpc.RpcError)))
        return call

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        self.notes.append(("unary_stream", self.name, details.method, request))
        return continuation(details, request + self.name.encode())

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        self.notes.append(("stream_unary", self.name, details.method))
        return continuation(details, self.changed(requests))

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        self.notes.append(("stream_stream", self.name, details.method))
        return continuation(details, self.changed(requests))

    def changed(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            yield request + self.name.encode()


def interceptors_of_all_kinds(world: World) -> Any:
    notes: list[Any] = []
    with world.channel() as channel:
        chain = (Interceptor("1", notes), Interceptor("2", notes, "watch"))
        results = all_kinds(grpc.intercept_channel(channel, *chain))
        raising = grpc.intercept_channel(channel, Interceptor("3", notes, "raise"))
        call = raising.unary_unary(UNARY_UNARY)
        return results, fault_of(lambda: call(b"a")), ended_or_fault(call), notes


def ended_or_fault(call: Any) -> str:
    return fault_of(lambda: call.future(b"a").result(SOON))


def interceptors_without_a_backend(world: World) -> Any:
    notes: list[Any] = []
    with unused_port() as port, world.opened(port) as channel:
        chain = (Interceptor("1", notes), Interceptor("2", notes, "watch"))
        inside = grpc.intercept_channel(channel, *chain)
        requests = iter([b"a", b"b"])
        faults: list[Any] = []
        for use in (
            lambda: inside.unary_unary(UNARY_UNARY)(b"a"),
            lambda: inside.unary_unary(UNARY_UNARY).with_call(b"a"),
            lambda: inside.unary_unary(UNARY_UNARY).future(b"a").result(SOON),
            lambda: list(inside.unary_stream(UNARY_STREAM)(b"a")),
            lambda: inside.stream_unary(STREAM_UNARY)(requests),
            lambda: list(inside.stream_stream(STREAM_STREAM)(requests)),
        ):
            try:
                use()
            except grpc.RpcError as error:
                faults.append((error.code(), told(error)[2]))
        return faults, notes


class Guarding(grpc.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        given = own(details.invocation_metadata)
        if details.method.startswith(f"/{SERVICE}/"):
            self.notes.append((details.method, given))
        if ("x-deny", "1") in given:
            return grpc.unary_unary_rpc_method_handler(deny)
        return continuation(details)


def deny(request: bytes, context: Any) -> bytes:
    context.set_trailing_metadata(TRAILERS)
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
    return b""


def interceptors_of_the_server(world: World) -> Any:
    notes: list[Any] = []
    with world.channel(guards=[Guarding(notes)]) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            blocked(call, lambda: b"a", metadata=(("x-text", "v"),)),
            blocked(call, lambda: b"a", metadata=(("x-deny", "1"),)),
            read(channel.stream_stream(STREAM_STREAM)(iter([b"a", b"b"]))),
        ], notes


def waiting_for_a_backend(world: World) -> Any:
    with unused_port() as port, world.opened(port, options=QUICK) as channel:
        failed = threading.Event()

        def hear(state: grpc.ChannelConnectivity) -> None:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                failed.set()

        call = channel.unary_unary(UNARY_UNARY)
        future = call.future(b"a", wait_for_ready=True, timeout=SOON)
        channel.subscribe(hear, try_to_connect=True)
        failed.wait(SOON)
        channel.unsubscribe(hear)
        refused = ended(call.future(b"a"))[2][0][0]
        with world.serving(port=port):
            return failed.is_set(), refused, future.done(), ended(future)


def tried(use: Callable[[], Any]) -> Any:
    """Return what came of it; of what gRPC writes addresses of objects into, the kind."""
    try:
        return use()
    except grpc.RpcError as error:
        return error.code()
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is compared
        return type(error).__name__


METADATA: Sequence[Any] = (
    (("x-b", "1"), ("x-a", "2"), ("x-b", "3"), ("x-b-bin", b"\x00\xff"), ("x-b-bin", b"2")),
    [("x-list", "1")],
    (),
    None,
    (("X-Upper", "1"),),
    (("x space", "1"),),
    (("x-line", "a\nb"),),
    ((":path", "/x"),),
    (("te", "x"), ("content-type", "foo")),
    (("grpc-own", "1"),),
    (("x-bytes", b"ab"),),
    (("x-number", 1),),
    (("alone",),),
    5,
)


def metadata_of_all_sorts(world: World) -> Any:
    with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            tried(lambda: call(b"all metadata", metadata=entries, timeout=SOON))  # noqa: B023 -- called now
            for entries in METADATA
        ]


def aborts_with_a_status(world: World) -> Any:
    with world.channel() as channel:
        return blocked(channel.unary_unary(UNARY_UNARY), lambda: b"status")


def deadlines_that_are_seen(world: World) -> Any:
    with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [
            tried(lambda: call(b"deadline", timeout=SOON)),
            tried(lambda: call(b"deadline")),
            tried(lambda: call(b"deadline", timeout=-1)),
            tried(lambda: call(b"deadline", timeout="soon")),
        ]


def compression_of_calls(world: World) -> Any:
    with world.channel() as channel:
        call = channel.unary_unary(UNARY_UNARY)
        streams = channel.stream_stream(STREAM_STREAM)
        return [
            (
                tried(lambda: call(b"compressed", compression=how)),  # noqa: B023 -- called now
                read(streams(iter([b"x" * 50_000]), compression=how)),
            )
            for how in (None, *grpc.Compression)
        ]


def limits_of_messages(world: World) -> Any:
    limits = [("grpc.max_send_message_length", 100), ("grpc.max_receive_message_length", 60)]
    with world.channel(options=limits) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [blocked(call, lambda: b"x" * size) for size in (50, 80, 120)]  # noqa: B023 -- called now


def two_options_of_one_name(world: World) -> Any:
    limits = [("grpc.max_send_message_length", 100), ("grpc.max_send_message_length", 10)]
    with world.channel(options=limits) as channel:
        call = channel.unary_unary(UNARY_UNARY)
        return [tried(lambda: call(b"x" * size)) for size in (50, 120)]  # noqa: B023 -- called now


def options_that_are_none(world: World) -> Any:
    with world.serving() as port:
        return tried(lambda: type(world.opened(port, None, [("a", object())])).__name__)


def mistakes(world: World) -> Any:
    def fails(_: bytes) -> bytes:
        raise LookupError("the caller's own")

    with world.channel() as channel:
        return [
            tried(lambda: channel.unary_unary(UNARY_UNARY, fails)(b"a")),
            tried(lambda: channel.unary_unary(UNARY_UNARY, None, fails)(b"a")),
            tried(lambda: channel.unary_unary("no path")(b"a")),
            tried(
                lambda: channel.unary_unary(UNARY_UNARY)(
                    b"a", credentials=grpc.access_token_call_credentials("x")
                )
            ),
        ]


def requests_in_a_list(world: World) -> Any:
    with world.channel() as channel:
        return tried(lambda: channel.stream_unary(STREAM_UNARY)([b"a", b"b"], timeout=SOON))


def after_a_channel_was_closed(world: World) -> Any:
    def hear(_: grpc.ChannelConnectivity) -> None:
        """Hear nothing."""

    with world.channel() as channel:
        channel.close()
        return [
            tried(lambda: channel.__enter__() is channel),
            tried(lambda: channel.unsubscribe(hear)),
        ]


def futures_as_errors(world: World) -> Any:
    with world.channel() as channel:
        future = channel.unary_unary(UNARY_UNARY).future(b"a")
        future.result(SOON)
        return isinstance(future, grpc.RpcError)


def errors_as_streams(world: World) -> Any:
    with world.channel() as channel:
        call = channel.unary_stream(UNARY_STREAM)(b"abort")
        try:
            list(call)
        except grpc.RpcError as error:
            return error is call


def words_of_a_closed_channel(world: World) -> Any:
    return closed(world)


CASES: Sequence[Callable[[World], Any]] = (
    metadata_of_all_sorts,
    aborts_with_a_status,
    deadlines_that_are_seen,
    compression_of_calls,
    limits_of_messages,
    two_options_of_one_name,
    options_that_are_none,
    mistakes,
    requests_in_a_list,
    after_a_channel_was_closed,
    four_kinds,
    metadata,
    aborts_and_codes,
    deadline,
    words_of_a_deadline,
    cancellation,
    requests_that_fail,
    compression_and_waiting,
    states,
    states_before_ready,
    tls_with_another_name,
    tls_with_an_authority,
    tls_of_both_sides,
    tls_with_a_wrong_name,
    interceptors_of_all_kinds,
    interceptors_without_a_backend,
    interceptors_of_the_server,
    waiting_for_a_backend,
    futures_as_errors,
    errors_as_streams,
    words_of_a_closed_channel,
)

# docs/conformance.md says the same of each, and of nothing else.
DIFFERENCES = (
    words_of_a_deadline,
    words_of_a_closed_channel,
    states_before_ready,
    futures_as_errors,
    errors_as_streams,
    options_that_are_none,
    requests_in_a_list,
)
TRUTHS: dict[Any, Any] = {}


@pytest.mark.parametrize(
    ("client", "server"), [("evenly", "plain"), ("plain", "evenly"), ("evenly", "evenly")]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_same_is_observed(case: Callable[[World], Any], client: str, server: str) -> None:
    if case not in TRUTHS:
        TRUTHS[case] = case(World("plain", "plain"))

    observed = case(World(client, server))
    if case in DIFFERENCES and client == "evenly":
        assert observed != TRUTHS[case]
    else:
        assert observed == TRUTHS[case]
