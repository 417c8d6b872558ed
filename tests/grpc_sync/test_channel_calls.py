"""All four kinds of call, as gRPC's users know them, against backends of every make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import evenly
import evenly.grpc.sync
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    WITHOUT_UDP,
    Anything,
    Behavior,
    active,
    channel_to,
    code_of,
    method,
    plain_backend,
    wait_until,
)


def test_a_unary_call_returns_the_response(channel: evenly.grpc.sync.Channel) -> None:
    assert channel.unary_unary(method("Echo"))(b"hello", timeout=LONG_SECONDS) == b"hello"


def test_serializers_are_used(channel: evenly.grpc.sync.Channel) -> None:
    echo = channel.unary_unary(method("Echo"), str.encode, bytes.decode)

    assert echo("hello") == "hello"
    assert echo.future("hello").result(LONG_SECONDS) == "hello"


def test_with_call_tells_status_trailers_backend_and_attempts(
    channel: evenly.grpc.sync.Channel,
) -> None:
    response, call = channel.unary_unary(method("Echo")).with_call(b"hello")

    addresses = {backend.address for backend in channel.snapshot().backends}
    assert response == b"hello"
    assert call.code() is grpc.StatusCode.OK
    assert ("x-mine", "kept") in [tuple(entry) for entry in call.trailing_metadata()]
    assert call.backend in addresses
    assert call.attempts == 1


def test_a_future_has_the_result_and_tells_its_callback(
    channel: evenly.grpc.sync.Channel,
) -> None:
    told: list[Any] = []
    call = channel.unary_unary(method("Echo")).future(b"hello")
    call.add_done_callback(told.append)

    assert call.result(LONG_SECONDS) == b"hello"
    assert call.exception() is None
    assert call.traceback() is None
    assert call.code() is grpc.StatusCode.OK
    assert call.details() == ""
    assert (call.done(), call.running(), call.cancelled(), call.is_active()) == (
        True,
        False,
        False,
        False,
    )
    assert ("x-mine", "kept") in [tuple(entry) for entry in call.trailing_metadata()]
    assert call.attempts == 1
    assert call.backend is not None
    wait_until(lambda: told == [call], "the callback")
    call.add_done_callback(told.append)
    assert told == [call, call]
    assert not call.add_callback(lambda: None)


def test_a_stream_of_responses_is_an_iterator_and_a_call(
    channel: evenly.grpc.sync.Channel,
) -> None:
    call = channel.unary_stream(method("Count"))(b"3", timeout=LONG_SECONDS)
    remaining = call.time_remaining()

    assert remaining is not None
    assert 0.0 < remaining <= LONG_SECONDS
    assert next(call) == b"0"
    assert call.next() == b"1"
    assert list(call) == [b"2"]
    assert list(call) == []
    assert call.code() is grpc.StatusCode.OK
    assert call.initial_metadata() is not None
    assert call.attempts == 1


def test_a_stream_of_requests_has_one_response(channel: evenly.grpc.sync.Channel) -> None:
    concat = channel.stream_unary(method("Concat"), str.encode, bytes.decode)

    assert concat(iter(["a", "b", "c"])) == "abc"
    response, call = concat.with_call(iter(["d", "e"]))
    assert (response, call.code(), call.attempts) == ("de", grpc.StatusCode.OK, 1)
    assert concat.future(iter(["f", "g"])).result(LONG_SECONDS) == "fg"


def test_a_conversation_goes_back_and_forth(channel: evenly.grpc.sync.Channel) -> None:
    heard = threading.Semaphore(1)

    def speak() -> Iterator[bytes]:
        for word in (b"one", b"two", b"three"):
            assert heard.acquire(timeout=LONG_SECONDS)
            yield word

    answers: list[bytes] = []
    for answer in channel.stream_stream(method("Chat"))(speak()):
        answers.append(answer)
        heard.release()  # Only now the next word is said.

    assert answers == [b"ONE", b"TWO", b"THREE"]


@pytest.mark.parametrize("name", ["NOT_FOUND", "INTERNAL", "UNAVAILABLE"])
def test_an_error_is_grpcs_own_and_names_the_backend(
    channel: evenly.grpc.sync.Channel, name: str
) -> None:
    fail = channel.unary_unary(method("Fail"))

    with pytest.raises(grpc.RpcError) as caught:
        fail(name.encode())

    error: Any = caught.value
    assert code_of(error) is grpc.StatusCode[name]
    assert error.details() == "as you asked"
    assert not isinstance(error, evenly.RejectedError)
    assert error.attempts == 1
    assert error.backend in {backend.address for backend in channel.snapshot().backends}
    failed = fail.future(name.encode())
    with pytest.raises(grpc.RpcError) as caught:
        failed.result(LONG_SECONDS)
    assert code_of(caught.value) is grpc.StatusCode[name]
    assert failed.exception() is not None
    assert failed.traceback() is not None
    assert failed.code() is grpc.StatusCode[name]
    assert failed.debug_error_string()


def test_an_error_after_some_responses_comes_after_them(
    channel: evenly.grpc.sync.Channel,
) -> None:
    call = channel.unary_stream(method("CountAndFail"))(b"2", timeout=LONG_SECONDS)

    assert [next(call), next(call)] == [b"0", b"1"]
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert code_of(caught.value) is grpc.StatusCode.DATA_LOSS
    assert call.code() is grpc.StatusCode.DATA_LOSS


def test_criticality_customer_and_metadata_travel(behavior: Behavior) -> None:
    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        echo = channel.unary_unary(method("Echo"))
        with evenly.request_context(criticality=evenly.Criticality.SHEDDABLE, customer="indexer"):
            echo(b"", metadata=(("x-own", "1"),))
            echo.future(b"", metadata=iter([("x-own", "2")])).result(LONG_SECONDS)
        echo(b"")

    assert [
        (seen.get("evenly-criticality"), seen.get("evenly-customer"), seen.get("x-own"))
        for seen in behavior.seen
    ] == [("SHEDDABLE", "indexer", "1"), ("SHEDDABLE", "indexer", "2"), (None, None, None)]
    assert "evenly/" in behavior.seen[0]["user-agent"]


def test_an_inherited_deadline_ends_the_call(behavior: Behavior) -> None:
    with (
        plain_backend(behavior) as address,
        channel_to(address, config=WITHOUT_UDP) as channel,
        evenly.request_context(deadline_seconds=0.1),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(method("Hold"))(b"", timeout=LONG_SECONDS)
        assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert active(channel) == 0


def test_a_request_that_cannot_be_serialized_is_nobodys_fault_but_its_callers(
    behavior: Behavior, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot(_: object) -> bytes:
        raise ValueError("no")

    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(method("Echo"), cannot)(b"")
        assert code_of(caught.value) is grpc.StatusCode.INTERNAL
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(method("Concat"), cannot)(iter([b""]))
        assert code_of(caught.value) is grpc.StatusCode.UNKNOWN
        assert [backend.errors for backend in channel.snapshot().backends] == [0]
        assert active(channel) == 0


def test_metadata_that_grpc_refuses_fails_the_call_as_in_grpc_and_leaves_nothing_active(
    behavior: Behavior,
) -> None:
    bad = (("UPPER CASE", "no"),)
    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        calls: list[Callable[[], object]] = [
            lambda: channel.unary_unary(method("Echo"))(b"", metadata=bad),
            lambda: channel.unary_unary(method("Echo")).future(b"", metadata=bad).result(),
            lambda: next(channel.unary_stream(method("Count"))(b"1", metadata=bad)),
        ]
        for call in calls:
            with pytest.raises((grpc.RpcError, ValueError)):
                call()
        assert active(channel) == 0
        assert channel.unary_unary(method("Echo"))(b"still works") == b"still works"


def test_grpcs_own_client_interceptors_go_around_the_channel(behavior: Behavior) -> None:
    seen: list[str] = []

    class Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(
            self, continuation: Anything, details: Anything, request: bytes
        ) -> Anything:
            seen.append(details.method)
            return continuation(details, request)

        intercept_unary_stream = intercept_unary_unary

    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        around = grpc.intercept_channel(channel, Interceptor())
        assert around.unary_unary(method("Echo"))(b"a") == b"a"
        assert around.unary_unary(method("Echo")).future(b"b").result(LONG_SECONDS) == b"b"
        assert list(around.unary_stream(method("Count"))(b"2")) == [b"0", b"1"]
        assert active(channel) == 0

    assert seen == [method("Echo"), method("Echo"), method("Count")]
