"""However a call ends, its attempt ends once: nothing stays active on either side."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import evenly.grpc.sync
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Request
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    WITHOUT_UDP,
    Behavior,
    active,
    channel_to,
    code_of,
    evenly_server,
    method,
    wait_until,
)

SHORT_SECONDS = 0.5
"""A deadline that passes, but not before the request is sent, also on a machine that pauses."""


class Endings(Observer):
    """Counts attempts that begin, and how they end."""

    def __init__(self) -> None:
        self.begun = 0
        self.outcomes: list[Outcome] = []

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun += 1

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append(outcome)


Channel = evenly.grpc.sync.Channel


def ok(channel: Channel, behavior: Behavior) -> None:
    channel.unary_unary(method("Echo"))(b"")


def ok_future(channel: Channel, behavior: Behavior) -> None:
    channel.unary_unary(method("Echo")).future(b"").result(LONG_SECONDS)


def ok_stream(channel: Channel, behavior: Behavior) -> None:
    assert len(list(channel.unary_stream(method("Count"))(b"3"))) == 3


def ok_upload(channel: Channel, behavior: Behavior) -> None:
    channel.stream_unary(method("Concat"))(iter([b"a"]))


def ok_chat(channel: Channel, behavior: Behavior) -> None:
    assert list(channel.stream_stream(method("Chat"))(iter([b"a"]))) == [b"A"]


def failed(channel: Channel, behavior: Behavior) -> None:
    with pytest.raises(grpc.RpcError):
        channel.unary_unary(method("Fail"))(b"INTERNAL")


def failed_future(channel: Channel, behavior: Behavior) -> None:
    assert channel.unary_unary(method("Fail")).future(b"INTERNAL").exception() is not None


def failed_stream(channel: Channel, behavior: Behavior) -> None:
    with pytest.raises(grpc.RpcError):
        list(channel.unary_stream(method("CountAndFail"))(b"1"))


def timed_out(channel: Channel, behavior: Behavior) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method("Hold"))(b"", timeout=SHORT_SECONDS)
    assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED


def timed_out_future(channel: Channel, behavior: Behavior) -> None:
    call = channel.unary_unary(method("Hold")).future(b"", timeout=SHORT_SECONDS)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def timed_out_stream(channel: Channel, behavior: Behavior) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(channel.unary_stream(method("CountAndHold"))(b"1", timeout=SHORT_SECONDS))
    assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED


def expired(channel: Channel, behavior: Behavior) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method("Echo"))(b"", timeout=-1.0)
    assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED


def cancelled_at_once(channel: Channel, behavior: Behavior) -> None:
    call = channel.unary_unary(method("Hold")).future(b"")
    assert call.cancel()
    assert not call.cancel()
    assert call.cancelled()
    with pytest.raises(grpc.FutureCancelledError):
        call.result(LONG_SECONDS)
    with pytest.raises(grpc.FutureCancelledError):
        call.exception(LONG_SECONDS)
    assert call.code() is grpc.StatusCode.CANCELLED


def cancelled_meanwhile(channel: Channel, behavior: Behavior) -> None:
    told = threading.Event()
    call = channel.unary_unary(method("Hold")).future(b"")
    call.add_callback(told.set)
    with pytest.raises(grpc.FutureTimeoutError):
        call.result(timeout=0.01)
    assert behavior.held.acquire(timeout=LONG_SECONDS)
    assert call.cancel()
    assert told.wait(LONG_SECONDS)


def cancelled_stream(channel: Channel, behavior: Behavior) -> None:
    call = channel.unary_stream(method("CountAndHold"))(b"1")
    assert next(call) == b"0"
    assert call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert code_of(caught.value) is grpc.StatusCode.CANCELLED
    assert call.code() is grpc.StatusCode.CANCELLED


def cancelled_by_another_thread(channel: Channel, behavior: Behavior) -> None:
    call = channel.unary_stream(method("CountAndHold"))(b"0")

    def cancel() -> None:
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        call.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    canceller.join()
    assert code_of(caught.value) is grpc.StatusCode.CANCELLED


def cancelled_upload(channel: Channel, behavior: Behavior) -> None:
    go_on = threading.Event()

    def words() -> Iterator[bytes]:
        yield b"one"
        go_on.wait(LONG_SECONDS)

    call = channel.stream_unary(method("Concat")).future(words())
    call.cancel()
    go_on.set()


def dropped_stream(channel: Channel, behavior: Behavior) -> None:
    call = channel.unary_stream(method("CountAndHold"))(b"1")
    assert next(call) == b"0"
    del call


def dropped_unread(channel: Channel, behavior: Behavior) -> None:
    channel.unary_stream(method("CountAndHold"))(b"1")


def dropped_in_a_cycle(channel: Channel, behavior: Behavior) -> None:
    call: Any = channel.unary_stream(method("CountAndHold"))(b"1")
    call.myself = call
    gone = weakref.ref(call)
    del call
    # Another thread may have it for a moment still, and one collection is not enough then.
    wait_until(lambda: gc.collect() >= 0 and gone() is None, "the collector")


def a_request_iterator_that_raises(channel: Channel, behavior: Behavior) -> None:
    def words() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(grpc.RpcError):
        channel.stream_unary(method("Concat"))(words())


def a_chat_whose_iterator_raises(channel: Channel, behavior: Behavior) -> None:
    def words() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(grpc.RpcError):
        list(channel.stream_stream(method("Chat"))(words()))


def interrupted(channel: Channel, behavior: Behavior) -> None:
    def interrupt() -> None:
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        signal.raise_signal(signal.SIGINT)  # Python runs the handler in the main thread.

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        channel.unary_unary(method("Hold"))(b"")
    interrupter.join()


ENDINGS: dict[Callable[[Channel, Behavior], None], Outcome | None] = {
    ok: Outcome.OK,
    ok_future: Outcome.OK,
    ok_stream: Outcome.OK,
    ok_upload: Outcome.OK,
    ok_chat: Outcome.OK,
    failed: Outcome.ERROR,
    failed_future: Outcome.ERROR,
    failed_stream: Outcome.ERROR,
    timed_out: Outcome.TIMEOUT,
    timed_out_future: Outcome.TIMEOUT,
    timed_out_stream: Outcome.TIMEOUT,
    expired: None,  # No attempt is made.
    cancelled_at_once: Outcome.CANCELLED,
    cancelled_meanwhile: Outcome.CANCELLED,
    cancelled_stream: Outcome.CANCELLED,
    cancelled_by_another_thread: Outcome.CANCELLED,
    cancelled_upload: Outcome.CANCELLED,
    dropped_stream: Outcome.CANCELLED,
    dropped_unread: Outcome.CANCELLED,
    dropped_in_a_cycle: Outcome.CANCELLED,
    a_request_iterator_that_raises: Outcome.CANCELLED,
    a_chat_whose_iterator_raises: Outcome.CANCELLED,
    interrupted: Outcome.CANCELLED,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_leaves_nothing_active_on_either_side(
    behavior: Behavior, ending: Callable[[Channel, Behavior], None]
) -> None:
    endings = Endings()
    with (
        evenly_server(behavior) as (server, address),
        channel_to(address, config=WITHOUT_UDP, observer=endings) as channel,
    ):
        ending(channel, behavior)
        wait_until(lambda: active(channel) == 0, "the client's count")
        behavior.release.set()
        wait_until(lambda: server.runtime.snapshot().task.active == 0, "the backend's count")

    wanted = ENDINGS[ending]
    assert endings.outcomes == ([] if wanted is None else [wanted])
    assert endings.begun == len(endings.outcomes)


def test_calls_under_way_end_when_the_channel_is_closed(behavior: Behavior) -> None:
    endings = Endings()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            hold(b"", timeout=LONG_SECONDS)
        except grpc.RpcError as error:
            ended.append(error)

    with evenly_server(behavior) as (server, address):
        with channel_to(address, config=WITHOUT_UDP, observer=endings) as channel:
            hold = channel.unary_unary(method("Hold"))
            waiter = threading.Thread(target=wait)
            waiter.start()
            future = hold.future(b"")
            stream = channel.unary_stream(method("CountAndHold"))(b"0")
            for _ in range(3):
                assert behavior.held.acquire(timeout=LONG_SECONDS)
        waiter.join(LONG_SECONDS)
        assert [code_of(error) for error in ended] == [grpc.StatusCode.CANCELLED]
        assert future.cancelled()
        assert stream.code() is grpc.StatusCode.CANCELLED
        behavior.release.set()
        wait_until(lambda: server.runtime.snapshot().task.active == 0, "the backend's count")

    assert endings.outcomes == [Outcome.CANCELLED] * 3
    with pytest.raises(ValueError, match="closed channel"):
        hold(b"")


def test_a_request_stream_that_is_no_iterable_is_an_error_of_the_call(
    channel: evenly.grpc.sync.Channel,
) -> None:
    """As in gRPC, whose thread finds out: the status is UNKNOWN, and no backend is blamed."""
    concat = channel.stream_unary(method("Concat"))
    with pytest.raises(grpc.RpcError) as raised:
        concat(5, timeout=LONG_SECONDS)  # type: ignore[arg-type]
    assert code_of(raised.value) is grpc.StatusCode.UNKNOWN
    error = concat.future(5, timeout=LONG_SECONDS).exception(LONG_SECONDS)  # type: ignore[arg-type]
    assert error is not None
    assert code_of(error) is grpc.StatusCode.UNKNOWN
    with pytest.raises(grpc.RpcError):
        next(channel.stream_stream(method("Chat"))(5, timeout=LONG_SECONDS))  # type: ignore[arg-type]
    assert active(channel) == 0
