"""What a threaded server does around each request: admission, context, cost, report, trailers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import evenly
import evenly.grpc
import evenly.grpc.sync
from evenly.context import current_request, should_degrade
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.quota import QuotaConfig
from evenly.core.request import Outcome, Request
from evenly.grpc import BackendConfig
from evenly.wire.load_header import parse_load
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    SERVICE,
    WITHOUT_UDP,
    Anything,
    Behavior,
    channel_to,
    code_of,
    evenly_server,
    method,
    wait_until,
)

Handler = Callable[[Any, grpc.ServicerContext], Any]


class Ended(Observer):
    """Remembers how requests ended."""

    def __init__(self) -> None:
        self.requests: list[tuple[Request, Outcome, float]] = []

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.requests.append((request, outcome, cost))


class Serving:
    """One server with one method, and gRPC's own channel to it."""

    def __init__(
        self, kind: str, handler: Handler, serializers: Anything = (), **options: Anything
    ) -> None:
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        methods = {"Do": make(handler, *serializers)}
        self.ended = Ended()
        self.server = evenly.grpc.sync.server(
            handlers=(grpc.method_handlers_generic_handler(SERVICE, methods),),
            observer=self.ended,
            max_workers=8,
            **options,
        )
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{self.port}", options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.do = getattr(self.channel, kind)(method("Do"))

    def __enter__(self) -> Serving:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.server.stop(None)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for _, outcome, _ in self.ended.requests]

    def refuse_everything(self) -> None:
        runtime = self.server.runtime
        with runtime.lock:
            # The CPU's ramps end at 2.0.
            runtime.task.record_signal("cpu", 100.0)


def trailers_of(call: Anything) -> dict[str, Any]:
    return dict(call.trailing_metadata())


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_trailing_metadata((("x-mine", "kept"),))
    return request


def test_a_response_carries_the_load_report_behind_the_handlers_own_trailers() -> None:
    with Serving("unary_unary", echo) as serving:
        response, call = serving.do.with_call(b"a")

    report = parse_load(trailers_of(call)["evenly-load"])
    assert response == b"a"
    assert report is not None
    assert not report.lame_duck
    assert report.active == 0  # Without the one that it comes with.
    assert next(key for key, _ in call.trailing_metadata()) == "x-mine"
    assert serving.outcomes == [Outcome.OK]


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_handlers_of_all_kinds_run_inside_the_requests_context(kind: str) -> None:
    seen: list[Request] = []

    def unary(request: Anything, context: grpc.ServicerContext) -> bytes:
        if not isinstance(request, bytes):
            list(request)
        seen.append(current_request())
        return b""

    def stream(request: Anything, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield unary(request, context)
        yield unary(b"", context)

    handler = stream if kind.endswith("stream") else unary
    with Serving(kind, handler) as serving:
        metadata = (("evenly-criticality", "SHEDDABLE"), ("evenly-customer", "indexer"))
        message = iter([b"a"]) if kind.startswith("stream") else b"a"
        answer = serving.do(message, metadata=metadata, timeout=LONG_SECONDS)
        if kind.endswith("stream"):
            assert len(list(answer)) == 2
            assert "evenly-load" in trailers_of(answer)
        assert seen[-1].criticality is evenly.Criticality.SHEDDABLE
        assert seen[-1].customer == "indexer"
        deadline_at = seen[-1].deadline_at
        assert deadline_at is not None
        assert 0.0 < deadline_at - time.monotonic() <= LONG_SECONDS + 1.0
        wait_until(lambda: serving.outcomes == [Outcome.OK])


def test_a_request_without_a_deadline_has_none() -> None:
    deadlines: list[float | None] = []

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        deadlines.append(current_request().deadline_at)
        return b""

    with Serving("unary_unary", handler) as serving:
        serving.do(b"")

    assert deadlines == [None]


def not_found(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing")
    raise AssertionError


def with_status(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_trailing_metadata((("x-mine", "kept"),))
    context.abort_with_status(_Status())
    raise AssertionError


class _Status:
    code = grpc.StatusCode.DATA_LOSS
    details = "gone"
    trailing_metadata = (("x-mine", "other"),)


def raises(request: bytes, context: grpc.ServicerContext) -> bytes:
    raise ZeroDivisionError


def sets_a_code(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_code(grpc.StatusCode.ALREADY_EXISTS)
    context.set_details("twice")
    return b""


@pytest.mark.parametrize(
    ("handler", "code", "outcome"),
    [
        (not_found, grpc.StatusCode.NOT_FOUND, Outcome.OK),  # An answer about the request.
        (with_status, grpc.StatusCode.DATA_LOSS, Outcome.ERROR),
        (raises, grpc.StatusCode.UNKNOWN, Outcome.ERROR),
        (sets_a_code, grpc.StatusCode.ALREADY_EXISTS, Outcome.OK),
    ],
)
def test_a_failure_is_grpcs_own_and_carries_the_load_report_too(
    handler: Handler, code: grpc.StatusCode, outcome: Outcome
) -> None:
    with Serving("unary_unary", handler) as serving, pytest.raises(grpc.RpcError) as caught:
        serving.do(b"")

    assert code_of(caught.value) is code
    assert parse_load(trailers_of(caught.value)["evenly-load"]) is not None
    if handler is with_status:
        assert trailers_of(caught.value)["x-mine"] == "other"
    assert serving.outcomes == [outcome]


def test_a_request_is_parsed_after_admission_and_a_bad_one_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parsed: list[bytes] = []

    def parse(data: bytes) -> str:
        parsed.append(data)
        return data.decode("ascii")

    def handler(request: str, context: grpc.ServicerContext) -> str:
        return request.upper()

    with Serving("unary_unary", handler, (parse, str.encode)) as serving:
        assert serving.do(b"a") == b"A"
        with pytest.raises(grpc.RpcError) as caught:
            serving.do(b"\xff")
        assert code_of(caught.value) is grpc.StatusCode.INTERNAL
        assert "evenly-load" in trailers_of(caught.value)
        serving.refuse_everything()
        with pytest.raises(grpc.RpcError):
            serving.do(b"b")

    assert parsed == [b"a", b"\xff"]
    assert serving.outcomes == [Outcome.OK, Outcome.ERROR]


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_a_refusal_says_so_in_everyones_words_before_anything_else(kind: str) -> None:
    ran: list[object] = []

    def handler(request: object, context: grpc.ServicerContext) -> Anything:
        ran.append(request)

    with Serving(kind, handler) as serving:
        serving.refuse_everything()
        message = iter([b"a"]) if kind.startswith("stream") else b"a"
        with pytest.raises(grpc.RpcError) as caught:
            list(serving.do(message))

    error: Any = caught.value
    assert code_of(error) is grpc.StatusCode.UNAVAILABLE
    assert trailers_of(error)["evenly-reject"] == "overloaded"
    report = parse_load(trailers_of(error)["evenly-load"])
    assert report is not None
    assert report.cut == 4.0
    # In Trailers-Only form there is no initial metadata; C-core's retries depend on it.
    assert not error.initial_metadata()
    assert ran == []
    assert serving.outcomes == []


def test_a_customer_out_of_quota_is_told_so() -> None:
    config = BackendConfig(
        task=BackendTaskConfig(quota=QuotaConfig(limits={"indexer": 0.0}, default_limit=1.0))
    )
    indexer = (("evenly-customer", "indexer"),)
    with (
        Serving("unary_unary", echo, config=config) as serving,
        pytest.raises(grpc.RpcError) as caught,
    ):
        serving.do(b"", metadata=indexer)

    error: Any = caught.value
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailers_of(error)["evenly-reject"] == "quota"
    assert "indexer" in error.details()


def test_a_rejection_from_below_leaves_as_dont_retry_with_the_handlers_trailers() -> None:
    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-mine", "kept"),))
        raise evenly.Overloaded("the database is busy", retryable=True)

    with Serving("unary_unary", handler) as serving, pytest.raises(grpc.RpcError) as caught:
        serving.do(b"")

    error: Any = caught.value
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the database is busy" in error.details()
    trailers = trailers_of(error)
    assert trailers["evenly-reject"] == "dont-retry"
    assert trailers["x-mine"] == "kept"
    assert "evenly-load" in trailers
    assert serving.outcomes == [Outcome.DONT_RETRY]


def test_a_degraded_answer_says_so() -> None:
    def cheaper(request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"cheaper"

    @evenly.degradable(cheaper)
    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert not should_degrade()
        raise evenly.Overloaded("no")

    with Serving("unary_unary", handler) as serving:
        response, call = serving.do.with_call(b"")

    assert response == b"cheaper"
    assert trailers_of(call)["evenly-degraded"] == "1"


def burn(seconds: float) -> None:
    give_up_at = time.thread_time() + seconds
    while time.thread_time() < give_up_at:
        pass


def test_the_cpu_of_a_handler_is_its_cost_and_waiting_is_not() -> None:
    def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"burn":
            burn(0.05)
        else:
            time.sleep(0.05)
        return b""

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in range(3):
            burn(0.02)
            yield b""

    with Serving("unary_unary", unary) as serving:
        serving.do(b"burn")
        serving.do(b"sleep")
    (_, _, burnt), (_, _, slept) = serving.ended.requests
    with Serving("unary_stream", stream) as serving:
        assert len(list(serving.do(b""))) == 3
    ((_, _, streamed),) = serving.ended.requests

    assert burnt >= 0.05
    assert slept < 0.05
    assert streamed >= 3 * 0.02


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
def test_a_client_that_leaves_ends_its_request_as_given_up(kind: str) -> None:
    begun, left, go_on = threading.Event(), threading.Event(), threading.Event()
    deadlines: list[float | None] = []

    def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
        deadlines.append(current_request().deadline_at)
        assert context.add_callback(left.set)  # gRPC's server hears of it a moment later.
        begun.set()
        assert go_on.wait(LONG_SECONDS)
        return b""

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b""
        yield unary(request, context)
        yield b"nobody hears this"

    with Serving(kind, stream if kind == "unary_stream" else unary) as serving:
        call = serving.do(b"") if kind == "unary_stream" else serving.do.future(b"")
        assert begun.wait(LONG_SECONDS)
        call.cancel()
        assert left.wait(LONG_SECONDS)
        go_on.set()
        wait_until(lambda: len(serving.outcomes) == 1)
        assert serving.outcomes == [Outcome.CANCELLED]
        for event in (begun, left, go_on):
            event.clear()
        # Long enough to begin on a machine that pauses.
        call = (
            serving.do(b"", timeout=1.0)
            if kind == "unary_stream"
            else serving.do.future(b"", timeout=1.0)
        )
        assert begun.wait(LONG_SECONDS)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert left.wait(LONG_SECONDS)
        # The backend's clock runs on by what the request was on its way.
        wait_until(lambda: time.monotonic() >= (deadlines[-1] or 0.0), "the deadline")
        go_on.set()
        wait_until(lambda: len(serving.outcomes) == 2)
        assert serving.outcomes[1] is Outcome.TIMEOUT
        wait_until(lambda: serving.server.runtime.snapshot().task.active == 0)


def test_a_plain_thread_pool_and_interceptors_work_as_in_grpc() -> None:
    seen: list[object] = []

    class Interceptor:
        def intercept_service(self, continuation: Anything, details: Anything) -> Anything:
            inner = continuation(details)

            def handler(request: object, context: grpc.ServicerContext) -> Anything:
                seen.append(request)
                return inner.unary_unary(request, context)

            return grpc.unary_unary_rpc_method_handler(
                handler, inner.request_deserializer, inner.response_serializer
            )

    def handler(request: str, context: grpc.ServicerContext) -> str:
        return request.upper()

    make = grpc.unary_unary_rpc_method_handler
    methods = {"Do": make(handler, bytes.decode, str.encode)}
    server = evenly.grpc.sync.server(
        futures.ThreadPoolExecutor(max_workers=2), interceptors=[Interceptor()]
    )
    server.add_registered_method_handlers(SERVICE, methods)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        response, call = channel.unary_unary(method("Do")).with_call(b"a")
        assert response == b"A"
        assert "evenly-load" in trailers_of(call)
        # Interceptors see messages, not bytes, and nothing of what was refused.
        with server.runtime.lock:
            server.runtime.task.record_signal("cpu", 100.0)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(method("Do"))(b"b")
    server.stop(None)

    assert seen == ["a"]


def test_registered_method_handlers_are_wrapped_too() -> None:
    server = evenly.grpc.sync.server(max_workers=2)
    server.add_registered_method_handlers(
        SERVICE, {"Do": grpc.unary_unary_rpc_method_handler(echo)}
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        _, call = channel.unary_unary(method("Do"), _registered_method=True).with_call(b"a")
        assert "evenly-load" in trailers_of(call)
    server.stop(None)


async def test_an_asyncio_channel_talks_to_a_threaded_server(behavior: Behavior) -> None:
    with evenly_server(behavior) as (server, address):
        async with evenly.grpc.channel(f"static:{address}") as channel:
            assert await channel.unary_unary(method("Echo"))(b"a") == b"a"
            stream = channel.unary_stream(method("Count"))(b"3")
            assert [message async for message in stream] == [b"0", b"1", b"2"]
            assert await channel.stream_unary(method("Concat"))([b"a", b"b"]) == b"ab"
            chat = channel.stream_stream(method("Chat"))([b"a", b"b"])
            assert [message async for message in chat] == [b"A", b"B"]
            assert channel.snapshot().active == 0
            assert server.runtime.snapshot().task.active == 0


def test_a_threaded_client_hears_in_a_response_that_a_threaded_server_is_a_lame_duck(
    behavior: Behavior,
) -> None:
    with (
        evenly_server(behavior) as (server, address),
        channel_to(address, config=WITHOUT_UDP) as channel,
    ):
        channel.unary_unary(method("Echo"))(b"a")
        assert [backend.state.value for backend in channel.snapshot().backends] == ["healthy"]
        server.enter_lame_duck()
        channel.unary_unary(method("Echo"))(b"a")
        assert [backend.state.value for backend in channel.snapshot().backends] == ["lame duck"]
