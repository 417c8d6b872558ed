"""Requests that cannot be sent at once: no backends yet, no connection yet, probes under way."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable

import grpc
import pytest

import evenly
import evenly.grpc.sync
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.observer import Observer
from evenly.grpc import ClientConfig
from evenly.grpc.sync.background import Background
from evenly.grpc.sync.client.turn import Turn
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    WITHOUT_UDP,
    Anything,
    Behavior,
    active,
    channel_to,
    code_of,
    evenly_server,
    method,
    plain_backend,
    wait_until,
)
from tests.grpc_sync.told import Told

Channel = evenly.grpc.sync.Channel


def blocking(channel: Channel, **options: Anything) -> bytes:
    response: bytes = channel.unary_unary(method("Echo"))(b"a", **options)
    return response


def as_future(channel: Channel, **options: Anything) -> bytes:
    response: bytes = channel.unary_unary(method("Echo")).future(b"a", **options).result()
    return response


def as_stream(channel: Channel, **options: Anything) -> bytes:
    return b"".join(channel.stream_stream(method("Chat"))(iter([b"a"]), **options)).lower()


STYLES = pytest.mark.parametrize("style", [blocking, as_future, as_stream])
Style = Callable[..., bytes]


def silent_address() -> tuple[socket.socket, str]:
    """Listen, and accept nobody: a connect stands, and gRPC's greeting is never answered."""
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, f"127.0.0.1:{listening.getsockname()[1]}"


@STYLES
def test_the_deadline_holds_while_the_connection_is_being_made(style: Style) -> None:
    listening, address = silent_address()
    with listening, evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            style(channel, timeout=0.1)
        assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "local" in str(caught.value)
        wait_until(lambda: active(channel) == 0)


def test_a_waiting_call_can_be_cancelled_dropped_interrupted_and_closed() -> None:
    listening, address = silent_address()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            blocking(channel)
        except grpc.RpcError as error:
            ended.append(error)

    def interrupt() -> None:
        wait_until(lambda: service.under_way, "one to interrupt")
        time.sleep(0.1)  # It is about to wait, and then waits for long.
        signal.raise_signal(signal.SIGINT)  # Python runs the handler in the main thread.

    with listening:
        with evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP) as channel:
            service = channel.start()
            future = channel.unary_unary(method("Echo")).future(b"")
            wait_until(lambda: active(channel) == 1, "an attempt that waits for its connection")
            assert future.cancel()
            assert active(channel) == 0
            stream = channel.unary_stream(method("Count"))(b"")
            wait_until(lambda: active(channel) == 1)
            del stream
            wait_until(lambda: active(channel) == 0, "the dropped one")
            interrupter = threading.Thread(target=interrupt)
            interrupter.start()
            with pytest.raises(KeyboardInterrupt):
                blocking(channel)
            interrupter.join()
            assert active(channel) == 0
            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: active(channel) == 1)
        waiter.join(LONG_SECONDS)
        assert [code_of(error) for error in ended] == [grpc.StatusCode.CANCELLED]
        assert service.under_way == {}
        assert service.snapshot().active == 0


def test_a_call_that_is_interrupted_when_it_begins_to_wait_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon = Background.soon

    def interrupted(self: Background, function: Callable[..., object], *arguments: object) -> bool:
        if getattr(function, "__func__", None) is Turn._start:
            raise KeyboardInterrupt
        return soon(self, function, *arguments)

    monkeypatch.setattr(Background, "soon", interrupted)
    listening, address = silent_address()
    with listening, evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP) as channel:
        service = channel.start()
        with pytest.raises(KeyboardInterrupt):
            blocking(channel)
        assert active(channel) == 0
        assert service.under_way == {}


def test_a_callback_may_wait_for_another_call(behavior: Behavior) -> None:
    """Also where its own call was refused by the thread that brings the other one about."""
    discovery = Told()
    names: list[str] = []
    with evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP) as channel:
        refused = channel.unary_unary(method("Echo")).future(b"")
        refused.add_callback(lambda: names.append(threading.current_thread().name))
        assert discovery.is_watched.wait(LONG_SECONDS)
        discovery.tell()
        assert isinstance(refused.exception(LONG_SECONDS), evenly.NoBackend)
        wait_until(lambda: names, "the callback")

    assert names != ["evenly"]


class Asked(Observer):
    def __init__(self) -> None:
        self.questions = 0

    def asked(self, count: int) -> None:
        self.questions += 1


@STYLES
def test_a_request_that_asks_first_is_sent_when_probes_are_answered(
    behavior: Behavior, style: Style
) -> None:
    asked = Asked()
    with (
        evenly_server(behavior) as (one, address),
        evenly_server(behavior) as (two, other_address),
        channel_to(address, other_address, config=ClientConfig(), observer=asked) as channel,
    ):
        wait_until(lambda: len(channel.start().connections) == 2)
        for _ in range(20):
            assert style(channel, timeout=LONG_SECONDS) == b"a"
        assert asked.questions > 0
        answered = sum(server.runtime.snapshot().probe.answered for server in (one, two))
        assert answered > 0
        assert active(channel) == 0
        assert channel.start().under_way == {}


def test_channel_ready_future_and_subscribe_tell_the_state(behavior: Behavior) -> None:
    states: list[grpc.ChannelConnectivity] = []
    channel = evenly.grpc.sync.channel("static:127.0.0.1:1", config=WITHOUT_UDP)
    channel.subscribe(states.append, try_to_connect=True)
    wait_until(lambda: states)
    assert grpc.ChannelConnectivity.READY not in states
    with pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=0.1)
    channel.unsubscribe(states.append)
    channel.close()
    with plain_backend(behavior) as address:
        channel = evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP)
        channel.subscribe(states.append, try_to_connect=True)
        wait_until(lambda: states[-1] is grpc.ChannelConnectivity.READY)
        channel.unsubscribe(states.append)
        channel.close()
    seen = len(states)
    time.sleep(0.05)
    assert len(states) == seen


def test_a_channel_whose_connections_rest_becomes_ready_when_somebody_wants_it(
    behavior: Behavior,
) -> None:
    health = HealthConfig(check_seconds=0.05, idle_seconds=0.3)
    task = ClientTaskConfig(membership=MembershipConfig(health=health))
    with (
        evenly_server(behavior) as (_, address),
        channel_to(address, config=ClientConfig(task=task)) as channel,
    ):
        wait_until(lambda: not channel.start().connections, "idle mode")
        assert channel.start().connectivity() is grpc.ChannelConnectivity.IDLE
        grpc.channel_ready_future(channel).result(LONG_SECONDS)
        assert blocking(channel) == b"a"
