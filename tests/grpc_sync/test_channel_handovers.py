"""A request on its way between two threads: whoever gives it up there, it ends once."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import evenly
import evenly.grpc.sync
from evenly.core.attempt import Attempt
from evenly.core.client_task import ClientTaskConfig
from evenly.core.exchange import Exchange, Step
from evenly.core.observer import Observer
from evenly.core.overload.retry import RetryConfig
from evenly.core.request import Outcome
from evenly.grpc import ClientConfig, ProbeConfig
from evenly.grpc.sync.background import Background
from evenly.grpc.sync.client import ending
from evenly.grpc.sync.client.service import Service
from evenly.grpc.sync.client.turn import Turn
from evenly.runtime import client as client_module
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    SERVICE,
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
from tests.grpc_sync.told import Told

Channel = evenly.grpc.sync.Channel
GENEROUS = ClientConfig(
    probe=ProbeConfig(is_on=False),
    task=ClientTaskConfig(retry=RetryConfig(initial_balance=1000.0, max_balance=1000.0)),
)


def blocking(channel: Channel, **options: Anything) -> object:
    return channel.unary_unary(method("Echo"))(b"a", **options)


def uploading(channel: Channel, **options: Anything) -> object:
    return channel.stream_unary(method("Concat"))(iter([b"a"]), **options)


def as_future(channel: Channel, **options: Anything) -> object:
    return channel.unary_unary(method("Echo")).future(b"a", **options).result(LONG_SECONDS)


def as_stream(channel: Channel, **options: Anything) -> object:
    return list(channel.unary_stream(method("Count"))(b"1", **options))


Style = Callable[..., object]
STYLES = pytest.mark.parametrize("style", [blocking, uploading, as_future, as_stream])


class Endings(Observer):
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append(outcome)


def is_clean(channel: Channel) -> bool:
    service = channel.start()
    return (
        active(channel) == 0
        and service.under_way == {}
        and service.runtime.requests.parked == 0
        and all(known.active == 0 for known in list(service.connections.values()))
    )


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """Accept nobody: a connect stands, and gRPC's greeting is never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background is busy: what takes time never begins."""
    soon = Background.soon

    def busy(self: Background, function: Callable[..., object], *arguments: object) -> bool:
        if getattr(function, "__func__", None) is Turn._start:
            return True
        return soon(self, function, *arguments)

    monkeypatch.setattr(Background, "soon", busy)


@pytest.mark.usefixtures("no_start")
def test_a_deadline_that_passes_before_anything_is_sent_says_nothing_of_the_backend() -> None:
    endings = Endings()
    with (
        silent_address() as address,
        evenly.grpc.sync.channel(
            f"static:{address}", config=WITHOUT_UDP, observer=endings
        ) as channel,
    ):
        wait_until(lambda: channel.start().runtime.is_discovered)
        with pytest.raises(grpc.RpcError) as caught:
            blocking(channel, timeout=0.1)
        assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "local" in str(caught.value)
        assert endings.outcomes == [Outcome.NOT_SENT]
        assert is_clean(channel)


@pytest.mark.usefixtures("no_start")
def test_a_request_that_waits_in_line_is_found_there_at_once(behavior: Behavior) -> None:
    """Also by whoever looks before the background has heard of it."""
    discovery = Told()
    responses: list[object] = []
    with (
        plain_backend(behavior) as address,
        evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP) as channel,
    ):
        caller = threading.Thread(target=lambda: responses.append(blocking(channel)))
        caller.start()
        wait_until(lambda: channel.start().runtime.requests.parked == 1)
        discovery.tell(address)
        caller.join(LONG_SECONDS)
        assert responses == [b"a"]
        assert is_clean(channel)


@pytest.mark.parametrize("is_ready", [True, False], ids=["at once", "in turn"])
@STYLES
def test_an_interrupt_right_after_a_request_was_begun_gives_it_back(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, style: Style, is_ready: bool
) -> None:
    begin = Service.begin

    def interrupted(self: Service, *arguments: Any) -> Any:
        begin(self, *arguments)
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        if is_ready:
            address = stack.enter_context(plain_backend(behavior))
            channel = stack.enter_context(channel_to(address, config=WITHOUT_UDP))
        else:
            address = stack.enter_context(silent_address())
            channel = stack.enter_context(
                evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP)
            )
            wait_until(lambda: channel.start().runtime.is_discovered)
        with monkeypatch.context() as patched:
            patched.setattr(Service, "begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                style(channel)
        assert is_clean(channel)


def refusing(request: object, context: grpc.ServicerContext) -> bytes:
    attempts = dict(context.invocation_metadata()).get("grpc-previous-rpc-attempts", "0")
    context.set_trailing_metadata((("evenly-reject", "overloaded"),))
    context.abort(grpc.StatusCode.UNAVAILABLE, f"no, after {attempts!s}")
    raise AssertionError


def refuse_everything() -> grpc.GenericRpcHandler:
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(refusing),
        "Count": grpc.unary_stream_rpc_method_handler(refusing),
        "Concat": grpc.stream_unary_rpc_method_handler(refusing),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


@contextlib.contextmanager
def two_that_refuse(behavior: Behavior, **options: Anything) -> Iterator[Channel]:
    with (
        plain_backend(behavior, refuse_everything()) as one,
        plain_backend(behavior, refuse_everything()) as two,
        channel_to(one, two, config=GENEROUS, **options) as channel,
    ):
        service = channel.start()
        wait_until(lambda: sum(c.is_ready for c in list(service.connections.values())) == 2)
        yield channel


@pytest.mark.parametrize("style", [blocking, uploading])
def test_an_interrupt_between_two_attempts_gives_both_back(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    settle = Service.settle

    def interrupted(self: Service, *arguments: Any, **options: Any) -> Any:
        outcome, found = settle(self, *arguments, **options)
        assert outcome is Outcome.OVERLOADED
        assert isinstance(found, tuple)  # The next has been begun, and nobody has it.
        raise KeyboardInterrupt

    endings = Endings()
    with two_that_refuse(behavior, observer=endings) as channel:
        monkeypatch.setattr(Service, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            style(channel)
        assert endings.outcomes == [Outcome.OVERLOADED, Outcome.CANCELLED]
        assert is_clean(channel)


@pytest.mark.parametrize("style", [as_future, as_stream])
def test_a_call_cancelled_between_two_attempts_ends_once(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    settle = Service.settle
    begun: list[Any] = []
    call_begun = Channel.call_begun

    def remembered(self: Channel, call: Any) -> None:
        begun.append(call)
        call_begun(self, call)

    def cancelled(self: Service, *arguments: Any, **options: Any) -> Any:
        settled = settle(self, *arguments, **options)
        if settled[0] is Outcome.OVERLOADED:
            assert begun[0].cancel()
        return settled

    endings = Endings()
    monkeypatch.setattr(Channel, "call_begun", remembered)
    monkeypatch.setattr(Service, "settle", cancelled)
    with two_that_refuse(behavior, observer=endings) as channel:
        with pytest.raises((grpc.FutureCancelledError, grpc.RpcError)):
            style(channel)
        assert begun[0].code() is grpc.StatusCode.CANCELLED
        assert endings.outcomes == [Outcome.OVERLOADED, Outcome.CANCELLED]
        assert is_clean(channel)


@STYLES
def test_a_failure_stands_where_the_next_attempt_could_not_be_sent(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    """The second attempt meets a backend that goes away, and no other is left."""

    def lost(attempt: Any, *_: object, **__: object) -> Outcome:
        return Outcome.NOT_SENT

    outcomes = iter([Outcome.OVERLOADED])
    monkeypatch.setattr(ending, "outcome_of_lost", lost)
    monkeypatch.setattr(ending, "outcome_of", lambda *_, **__: next(outcomes, Outcome.LOST))
    with two_that_refuse(behavior) as channel:
        with pytest.raises(evenly.Overloaded) as caught:
            style(channel)
        error: Any = caught.value
        assert (error.attempts, error.details()) == (1, "no, after 0")
        assert error.backend in channel.start().connections
        assert is_clean(channel)


@STYLES
def test_a_request_of_which_nothing_could_be_sent_says_so(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, style: Style
) -> None:
    monkeypatch.setattr(ending, "outcome_of", lambda *_, **__: Outcome.LOST)
    monkeypatch.setattr(ending, "outcome_of_lost", lambda *_, **__: Outcome.NOT_SENT)
    with two_that_refuse(behavior) as channel:
        with pytest.raises(evenly.NoBackend) as caught:
            style(channel)
        error: Any = caught.value
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
        assert (error.attempts, error.backend) == (0, None)
        assert "nothing was sent" in error.details()
        assert is_clean(channel)


def test_a_channel_that_is_closed_between_two_attempts_begins_no_other(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would wait: its connection is being closed."""
    endings = Endings()
    with two_that_refuse(behavior, observer=endings) as channel:
        service = channel.start()

        def closed(*_: object, **__: object) -> Outcome:
            for connection in list(service.connections.values()):
                connection.is_ready = False
            service.closed_because = "closed"
            return Outcome.OVERLOADED

        with monkeypatch.context() as patched:
            patched.setattr(ending, "outcome_of", closed)
            with pytest.raises(grpc.RpcError) as caught:
                blocking(channel)
        assert code_of(caught.value) is grpc.StatusCode.CANCELLED
        assert endings.outcomes == [Outcome.OVERLOADED, Outcome.CANCELLED]
        assert is_clean(channel)
        service.closed_because = None  # For the end of the test.


@pytest.mark.parametrize("is_late", [False, True], ids=["given up", "out of time"])
def test_a_request_that_ends_just_when_it_goes_on_is_not_sent(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The core has begun it, and the background has not come to do anything about it."""
    discovery, endings = Told(), Endings()
    with (
        plain_backend(behavior) as address,
        evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP, observer=endings) as channel,
    ):
        call = channel.unary_unary(method("Echo")).future(b"a")
        service = channel.start()

        def go_on(exchange: Exchange, step: Step) -> None:
            assert isinstance(step, Attempt)
            if is_late:
                turn = service.under_way[exchange]
                assert isinstance(turn, Turn)
                turn._expire()
            else:
                call.cancel()
            inner_go_on(exchange, step)

        inner_go_on = client_module._go_on
        monkeypatch.setattr(client_module, "_go_on", go_on)
        discovery.tell(address)
        ended = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
        assert call.code() is ended
        assert endings.outcomes == [Outcome.NOT_SENT if is_late else Outcome.CANCELLED]
        assert is_clean(channel)
    assert behavior.seen == []


def test_a_deadline_that_passes_just_when_a_request_is_refused_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The core has ended it, and the background has not come to say so."""
    discovery = Told()
    with evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP) as channel:
        call = channel.unary_unary(method("Echo")).future(b"a")
        service = channel.start()

        def go_on(exchange: Exchange, step: Step) -> None:
            turn = service.under_way[exchange]
            assert isinstance(turn, Turn)
            turn._expire()
            inner_go_on(exchange, step)

        inner_go_on = client_module._go_on
        monkeypatch.setattr(client_module, "_go_on", go_on)
        discovery.tell()
        assert isinstance(call.exception(LONG_SECONDS), evenly.NoBackend)
        assert is_clean(channel)
