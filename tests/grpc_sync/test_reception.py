"""Requests between arrival and beginning: admitted, refused, or left by their clients."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc
import pytest
from grpc import _server

import evenly.grpc.sync
from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason, Request
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    SERVICE,
    Anything,
    Behavior,
    code_of,
    evenly_server,
    method,
    wait_until,
)

# Otherwise gRPC removes the number of previous attempts.
KEEPING_ATTEMPTS = (("grpc.enable_retries", 0),)
PRIVILEGED = [
    pytest.param((("evenly-criticality", "CRITICAL_PLUS"),), id="CRITICAL_PLUS"),
    pytest.param((("evenly-customer", "indexer"),), id="a customer"),
    pytest.param((("grpc-previous-rpc-attempts", "1"),), id="a retry"),
]


class Seen(Observer):
    def __init__(self) -> None:
        self.admitted: list[tuple[Request, str]] = []
        self.rejected: list[Reason] = []
        self.outcomes: list[Outcome] = []

    def request_admitted(self, request: Request) -> None:
        self.admitted.append((request, threading.current_thread().name))

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.rejected.append(reason)

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.outcomes.append(outcome)


def is_idle(server: evenly.grpc.sync.Server) -> bool:
    return server.runtime.snapshot().task.active == 0 and server.runtime.active == 0


def test_who_claims_nothing_is_admitted_on_arrival_and_others_where_their_peer_is_known(
    behavior: Behavior,
) -> None:
    seen = Seen()
    with (
        evenly_server(behavior, observer=seen) as (_, address),
        grpc.insecure_channel(address, options=KEEPING_ATTEMPTS) as channel,
    ):
        echo = channel.unary_unary(method("Echo"))
        echo(b"")
        echo(b"", metadata=(("evenly-criticality", "SHEDDABLE"),))
        for parameters in PRIVILEGED:
            echo(b"", metadata=parameters.values[0])

    is_of_pool = [name.startswith("evenly-handler") for _, name in seen.admitted]
    assert is_of_pool == [False, False, True, True, True]
    assert [request.criticality.name for request, _ in seen.admitted] == [
        "CRITICAL",
        "SHEDDABLE",
        "CRITICAL_PLUS",
        "CRITICAL",
        "CRITICAL",
    ]
    assert seen.admitted[3][0].customer == "indexer"


def submitted(
    server: evenly.grpc.sync.Server, monkeypatch: pytest.MonkeyPatch
) -> list[_server._RPCState]:
    """Return a list of what gRPC knows of each request, from when it waits for a thread."""
    states: list[_server._RPCState] = []
    submit = server.guard.reception.submit

    def noting(*args: Anything) -> Anything:
        states.extend(arg for arg in args if isinstance(arg, _server._RPCState))
        return submit(*args)

    monkeypatch.setattr(server.guard.reception, "submit", noting)
    return states


@pytest.mark.parametrize("metadata", [(), *PRIVILEGED])
def test_a_client_that_leaves_while_its_request_waits_leaves_nothing_active(
    behavior: Behavior, metadata: Anything, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    with (
        evenly_server(behavior, max_workers=1, observer=seen) as (server, address),
        grpc.insecure_channel(address, options=KEEPING_ATTEMPTS) as channel,
    ):
        states = submitted(server, monkeypatch)
        held = channel.unary_unary(method("Hold")).future(b"")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        waiting = [
            channel.unary_unary(method("Echo")).future(b"", metadata=metadata) for _ in range(3)
        ]
        wait_until(lambda: server.runtime.active == 1 + 3, "three that wait")
        for call in waiting:
            call.cancel()
        # gRPC's server hears of it a moment later.
        wait_until(lambda: [state.client for state in states[1:]] == ["cancelled"] * 3)
        behavior.release.set()
        assert held.result(LONG_SECONDS) == b""
        wait_until(lambda: is_idle(server), "nothing active")
        assert behavior.seen == []

    # Those that were admitted on arrival ended; the others were never admitted.
    assert seen.outcomes[1:] == ([] if metadata else [Outcome.CANCELLED] * 3)


def test_a_request_whose_deadline_passes_while_it_waits_is_not_run(behavior: Behavior) -> None:
    """gRPC's client would have left; one without a clock of its own is made by hand."""
    seen = Seen()
    context = Late()
    with evenly_server(behavior, observer=seen) as (server, _):
        guard = server.guard
        details: Anything = Details(method("Echo"))
        handler: Anything = guard.intercept_service(lambda _: EchoOnce(behavior).handler, details)
        pool = guard.reception
        with pytest.raises(Late.Aborted):
            pool.submit(handler.unary_unary, b"", context).result(LONG_SECONDS)
        wait_until(lambda: is_idle(server))

    assert context.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert behavior.seen == []
    assert seen.outcomes == [Outcome.TIMEOUT]


class Late:
    """As much of a context as is needed to be too late."""

    class Aborted(Exception):
        pass

    code: grpc.StatusCode | None = None

    def time_remaining(self) -> float:
        return 0.0

    def set_trailing_metadata(self, trailers: object) -> None:
        pass

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.code = code
        raise Late.Aborted


class Details:
    invocation_metadata = ()

    def __init__(self, name: str) -> None:
        self.method = name


class EchoOnce:
    def __init__(self, behavior: Behavior) -> None:
        self.handler = grpc.unary_unary_rpc_method_handler(behavior.echo)


def test_what_is_beyond_the_limit_is_refused_and_leaves_nothing_active(behavior: Behavior) -> None:
    with (
        evenly_server(behavior, maximum_concurrent_rpcs=1) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        held = channel.unary_unary(method("Hold")).future(b"")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        for metadata in ((), (("evenly-customer", "indexer"),)):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method("Echo"))(b"", metadata=metadata)
            # Not gRPC's RESOURCE_EXHAUSTED: another backend may have room.
            assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
        behavior.release.set()
        held.result(LONG_SECONDS)
        wait_until(lambda: server.runtime.snapshot().task.active == 0)
        assert channel.unary_unary(method("Echo"))(b"a") == b"a"
        wait_until(lambda: is_idle(server))


def test_handlers_with_a_pool_or_an_end_of_their_own_are_served_as_grpc_does() -> None:
    pool = futures.ThreadPoolExecutor(1, thread_name_prefix="own")
    names: list[str] = []

    def own_pool(request: bytes, context: grpc.ServicerContext) -> bytes:
        names.append(threading.current_thread().name)
        return request

    def at_will(request: bytes, context: grpc.ServicerContext, send: Anything) -> None:
        def later() -> None:
            send(b"a")
            send(None)

        threading.Thread(target=later).start()

    own_pool.experimental_thread_pool = pool  # type: ignore[attr-defined]
    at_will.experimental_non_blocking = True  # type: ignore[attr-defined]
    handlers = {
        "Own": grpc.unary_unary_rpc_method_handler(own_pool),
        "AtWill": grpc.unary_stream_rpc_method_handler(at_will),
    }
    seen = Seen()
    server = evenly.grpc.sync.server(
        max_workers=2,
        observer=seen,
        handlers=(grpc.method_handlers_generic_handler(SERVICE, handlers),),
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary(method("Own"))(b"a") == b"a"
        assert list(channel.unary_stream(method("AtWill"))(b"")) == [b"a"]
        wait_until(lambda: is_idle(server))
    server.stop(None)
    pool.shutdown()

    assert names[0].startswith("own")
    assert [name for _, name in seen.admitted] == names  # Admitted where it is served.


def test_a_refusal_does_not_wait_for_a_thread(behavior: Behavior) -> None:
    with (
        evenly_server(behavior, max_workers=1) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        held = channel.unary_unary(method("Hold")).future(b"")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        with server.runtime.lock:
            server.runtime.task.record_signal("cpu", 100.0)
        for name, kind in (("Echo", "unary_unary"), ("Chat", "stream_stream")):
            call = getattr(channel, kind)(method(name))
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([b"a"]) if kind == "stream_stream" else b"a"))
            assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
        assert not held.done()
