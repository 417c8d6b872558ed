"""Refusals, and what is tried again: only what may be, elsewhere, and before a response."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import evenly
import evenly.grpc.sync
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.grpc import ClientConfig, ProbeConfig
from evenly.grpc.sync.client import connection as connection_module
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    SERVICE,
    WITHOUT_UDP,
    Behavior,
    active,
    channel_to,
    code_of,
    method,
    plain_backend,
    wait_until,
)
from tests.grpc_sync.told import Told

OVERLOADED = (grpc.StatusCode.UNAVAILABLE, (("evenly-reject", "overloaded"),))
DONT_RETRY = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "dont-retry"),))
QUOTA = (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "quota"),))
Refusal = tuple[grpc.StatusCode, tuple[tuple[str, str], ...]]


class Refuser:
    """A backend that refuses all it is sent, and remembers which attempt each was."""

    def __init__(self, refusal: Refusal) -> None:
        self._code, self._trailers = refusal
        self.previous: list[object] = []
        self.may_refuse = threading.Event()
        self.may_refuse.set()
        self._lock = threading.Lock()

    def refuse(self, request: object, context: grpc.ServicerContext) -> None:
        with self._lock:
            metadata = dict(context.invocation_metadata())
            self.previous.append(metadata.get("grpc-previous-rpc-attempts"))
        assert self.may_refuse.wait(LONG_SECONDS)
        context.set_trailing_metadata(self._trailers)
        context.abort(self._code, "no")

    def refuse_stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        next(requests)  # It has taken a message, which must not be lost.
        self.refuse(None, context)

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.refuse),
            "Count": grpc.unary_stream_rpc_method_handler(self.refuse),
            "Concat": grpc.stream_unary_rpc_method_handler(self.refuse_stream),
            "Chat": grpc.stream_stream_rpc_method_handler(self.refuse),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)


@contextlib.contextmanager
def refusing_and_willing(
    behavior: Behavior, refusal: Refusal, config: ClientConfig = WITHOUT_UDP
) -> Iterator[tuple[evenly.grpc.sync.Channel, list[Refuser]]]:
    """Two backends that refuse, and one that serves."""
    refusers = [Refuser(refusal), Refuser(refusal)]
    with contextlib.ExitStack() as stack:
        addresses = [
            stack.enter_context(plain_backend(behavior, refuser.handler())) for refuser in refusers
        ]
        addresses.append(stack.enter_context(plain_backend(behavior)))
        channel = stack.enter_context(channel_to(*addresses, config=config))
        wait_until(lambda: all_connected(channel), "all connections")
        yield channel, refusers


def all_connected(channel: evenly.grpc.sync.Channel) -> bool:
    return all(backend.state.value == "healthy" for backend in channel.snapshot().backends)


GENEROUS = ClientConfig(
    probe=ProbeConfig(is_on=False),
    task=ClientTaskConfig(retry=RetryConfig(initial_balance=1000.0, max_balance=1000.0)),
)


def calls_of_every_kind(channel: evenly.grpc.sync.Channel) -> Iterator[Any]:
    """Make one call of each kind and style, and yield what tells its attempts."""
    yield channel.unary_unary(method("Echo")).with_call(b"a")[1]
    future = channel.unary_unary(method("Echo")).future(b"a")
    assert future.result(LONG_SECONDS) == b"a"
    yield future
    stream = channel.unary_stream(method("Count"))(b"3")
    assert list(stream) == [b"0", b"1", b"2"]
    yield stream
    response, call = channel.stream_unary(method("Concat")).with_call(iter([b"a", b"b", b"c"]))
    assert response == b"abc"
    yield call
    upload = channel.stream_unary(method("Concat")).future(iter([b"a", b"b", b"c"]))
    assert upload.result(LONG_SECONDS) == b"abc"
    yield upload
    chat = channel.stream_stream(method("Chat"))(iter([b"a", b"b"]))
    assert list(chat) == [b"A", b"B"]
    yield chat


def test_what_one_backend_refuses_for_overload_another_one_serves(behavior: Behavior) -> None:
    with refusing_and_willing(behavior, OVERLOADED, GENEROUS) as (channel, refusers):
        attempts = [call.attempts for _ in range(10) for call in calls_of_every_kind(channel)]
        assert active(channel) == 0

    refused = [previous for refuser in refusers for previous in refuser.previous]
    # Every refusal was followed by another attempt, and every call ended well.
    assert sum(attempts) == len(attempts) + len(refused)
    assert len(refused) > 0
    assert max(attempts) <= 3
    # gRPC's own count of previous attempts: absent on the first, then 1, and 2 reaches who serves.
    assert set(refused) <= {None, "1"}


Style = Callable[[evenly.grpc.sync.Channel], object]


def blocking(channel: evenly.grpc.sync.Channel) -> object:
    return channel.unary_unary(method("Echo"))(b"")


def as_future(channel: evenly.grpc.sync.Channel) -> object:
    return channel.unary_unary(method("Echo")).future(b"").result(LONG_SECONDS)


def as_stream(channel: evenly.grpc.sync.Channel) -> object:
    return list(channel.unary_stream(method("Count"))(b"1"))


@pytest.mark.parametrize("style", [blocking, as_future, as_stream])
@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        pytest.param(DONT_RETRY, evenly.Overloaded, id="don't retry"),
        pytest.param(QUOTA, evenly.QuotaExceeded, id="out of quota"),
    ],
)
def test_what_must_not_be_tried_again_is_not(
    behavior: Behavior, refusal: Refusal, error: type[evenly.RejectedError], style: Style
) -> None:
    refuser = Refuser(refusal)
    with (
        plain_backend(behavior, refuser.handler()) as address,
        channel_to(address, config=GENEROUS) as channel,
    ):
        with pytest.raises(error) as caught:
            style(channel)
        seen: Any = caught.value
        assert code_of(seen) is refusal[0]
        assert (seen.where, seen.retryable, seen.attempts) == ("remote", False, 1)
        assert seen.details() == "no"
        assert seen.backend == address
        assert refusal[1][0] in [tuple(entry) for entry in seen.trailing_metadata()]
        assert active(channel) == 0

    assert refuser.previous == [None]


@pytest.mark.parametrize("style", [blocking, as_future, as_stream])
def test_three_attempts_are_all_there_are(behavior: Behavior, style: Style) -> None:
    refusers = [Refuser(OVERLOADED) for _ in range(4)]
    with contextlib.ExitStack() as stack:
        addresses = [
            stack.enter_context(plain_backend(behavior, refuser.handler())) for refuser in refusers
        ]
        channel = stack.enter_context(channel_to(*addresses, config=GENEROUS))
        wait_until(lambda: all_connected(channel), "all connections")
        with pytest.raises(evenly.Overloaded) as caught:
            style(channel)
        error: Any = caught.value
        assert (error.attempts, error.retryable) == (3, True)
        assert active(channel) == 0

    # Elsewhere each time, and each says which one it is.
    assert sorted(seen for refuser in refusers for seen in map(str, refuser.previous)) == [
        "1",
        "2",
        "None",
    ]
    assert max(len(refuser.previous) for refuser in refusers) == 1


def test_an_error_pickles(behavior: Behavior) -> None:
    refuser = Refuser(QUOTA)
    with (
        plain_backend(behavior, refuser.handler()) as address,
        channel_to(address, config=WITHOUT_UDP) as channel,
        pytest.raises(evenly.QuotaExceeded) as caught,
    ):
        channel.unary_unary(method("Echo"))(b"")

    copy: Any = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 -- our own
    assert (copy.code(), copy.details(), copy.backend) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "no",
        address,
    )
    assert "RESOURCE_EXHAUSTED" in str(copy)


def test_after_a_response_nothing_is_tried_again(behavior: Behavior) -> None:
    """A stream that breaks after its first message fails, however idempotent its method is.

    Thirty times, because the end comes right behind the message, in another thread.
    """
    calls = []

    def count_and_go(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        calls.append(request)
        yield b"0"
        context.abort(grpc.StatusCode.UNAVAILABLE, "as a lost connection ends")

    handler = grpc.method_handlers_generic_handler(
        SERVICE, {"Count": grpc.unary_stream_rpc_method_handler(count_and_go)}
    )
    config = dataclasses.replace(GENEROUS, idempotent_methods=(method("Count"),))
    with (
        plain_backend(behavior, handler) as one,
        plain_backend(behavior, handler) as two,
        channel_to(one, two, config=config) as channel,
    ):
        wait_until(lambda: all_connected(channel), "all connections")
        for _ in range(30):
            call = channel.unary_stream(method("Count"))(b"")
            assert next(call) == b"0"
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
            assert call.attempts == 1
        assert active(channel) == 0

    assert len(calls) == 30


@pytest.mark.parametrize("style", [blocking, as_future, as_stream])
def test_a_refusal_stands_if_there_is_nobody_left_to_try(behavior: Behavior, style: Style) -> None:
    """While the backend is about to refuse, it leaves the list, and nobody else is on it."""
    discovery, refuser = Told(), Refuser(OVERLOADED)
    refuser.may_refuse.clear()
    errors: list[Any] = []

    def call() -> None:
        try:
            style(channel)
        except grpc.RpcError as error:
            errors.append(error)

    with (
        plain_backend(behavior, refuser.handler()) as address,
        evenly.grpc.sync.channel(discovery, config=GENEROUS) as channel,
    ):
        discovery.tell(address)
        caller = threading.Thread(target=call)
        caller.start()
        wait_until(lambda: refuser.previous, "the request")
        discovery.tell()
        wait_until(lambda: channel.snapshot().known == 0, "an empty list")
        refuser.may_refuse.set()
        caller.join(LONG_SECONDS)
        assert active(channel) == 0

    assert [type(error) for error in errors] == [evenly.grpc.sync.OverloadedRpcError]
    assert (errors[0].backend, errors[0].attempts) == (address, 1)


def test_all_backends_gone_fails_at_once_and_says_so(behavior: Behavior) -> None:
    with plain_backend(behavior) as address:
        channel = evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP)
        assert channel.unary_unary(method("Echo"))(b"a") == b"a"
    with channel:
        wait_until(
            lambda: channel.snapshot().backends[0].state.value == "refusing", "the lost connection"
        )
        with pytest.raises(evenly.NoBackend) as caught:
            channel.unary_unary(method("Echo"))(b"a")
        error: Any = caught.value
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
        assert (error.where, error.attempts, error.backend) == ("local", 0, None)
        assert "local" in error.details()
        future = channel.unary_unary(method("Echo")).future(b"a")
        assert isinstance(future.exception(LONG_SECONDS), evenly.NoBackend)
        with pytest.raises(evenly.NoBackend):
            next(channel.unary_stream(method("Count"))(b"a"))
        assert active(channel) == 0


@pytest.mark.parametrize("is_future", [False, True], ids=["waited for", "future"])
def test_a_call_that_met_a_goaway_waits_for_its_connection_to_show_it(
    monkeypatch: pytest.MonkeyPatch, is_future: bool
) -> None:
    """gRPC ends such a call before its channel leaves READY; no backend has processed it."""
    backends = [Behavior(), Behavior()]
    requests: list[bytes] = []

    def go_away(request: bytes, context: grpc.ServicerContext) -> bytes:
        requests.append(request)
        if len(requests) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed (GOAWAY received)")
        return request

    for backend in backends:
        monkeypatch.setattr(backend, "echo", go_away)
    with (
        plain_backend(backends[0]) as one,
        plain_backend(backends[1]) as two,
        channel_to(one, two, config=WITHOUT_UDP) as channel,
    ):
        service = channel.start()
        wait_until(lambda: sum(c.is_ready for c in list(service.connections.values())) == 2)
        looks: list[float] = []

        def sleep(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 2:
                for connection in list(service.connections.values()):
                    if connection.active:
                        connection._moved(grpc.ChannelConnectivity.IDLE)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        with monkeypatch.context() as patched:
            patched.setattr(connection_module, "time", clock)
            echo = channel.unary_unary(method("Echo"))
            if is_future:
                answer = echo.future(b"a", timeout=LONG_SECONDS).result(LONG_SECONDS)
            else:
                answer = echo(b"a", timeout=LONG_SECONDS)
        assert answer == b"a"
        assert len(requests) == 2
        assert len(looks) >= 2


def passing_on(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed (GOAWAY received)")
    return request


def test_what_a_backend_passes_on_of_a_goaway_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Behavior()
    monkeypatch.setattr(backend, "echo", passing_on)
    with plain_backend(backend) as one, channel_to(one, config=WITHOUT_UDP) as channel:
        wait_until(lambda: channel.start().is_ready())
        looks: list[float] = []
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=looks.append)
        with monkeypatch.context() as patched:
            patched.setattr(connection_module, "time", clock)
            for _ in range(3):
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(method("Echo"))(b"a", timeout=LONG_SECONDS)
        assert len(looks) == 30


def test_a_call_interrupted_while_it_waits_for_a_goaway_gives_its_attempt_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Behavior()
    monkeypatch.setattr(backend, "echo", passing_on)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with plain_backend(backend) as one, channel_to(one, config=WITHOUT_UDP) as channel:
        wait_until(lambda: channel.start().is_ready())
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=interrupt)
        with monkeypatch.context() as patched:
            patched.setattr(connection_module, "time", clock)
            with pytest.raises(KeyboardInterrupt):
                channel.unary_unary(method("Echo"))(b"a", timeout=LONG_SECONDS)
        assert active(channel) == 0
