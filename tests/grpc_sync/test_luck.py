"""A request's luck and its client's line, over two hops of gRPC with threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest

import evenly
import evenly.grpc
import evenly.grpc.sync
from evenly.core.observer import Observer
from evenly.core.request import Reason, Rejection, Request
from evenly.grpc import BackendConfig
from evenly.grpc.sync import Server
from tests.grpc_sync.backends import SERVICE, WITHOUT_UDP, Anything, channel_to, method

STERN = BackendConfig(trust_near=False)
Metadata = tuple[tuple[str, str], ...]


class Seen(Observer):
    """Notes in which thread requests are admitted."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def request_admitted(self, request: Request) -> None:
        self.threads.append(threading.current_thread().name)


@contextlib.contextmanager
def serving(handler: Anything, **options: Anything) -> Iterator[tuple[Server, str]]:
    handlers = {"Do": grpc.unary_unary_rpc_method_handler(handler)}
    server = evenly.grpc.sync.server(
        handlers=(grpc.method_handlers_generic_handler(SERVICE, handlers),),
        max_workers=8,
        **options,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def stack(config: BackendConfig) -> Iterator[tuple[Anything, list[float | None], Seen]]:
    """Serve a backend that calls another one three times for each request."""
    seen: list[float | None] = []
    top_seen = Seen()

    def leaf(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(evenly.current_request().luck)
        return request

    with (
        serving(leaf) as (_, address),
        channel_to(address, config=WITHOUT_UDP) as channel,
        evenly.ContextThreadPoolExecutor(2) as threads,
    ):
        call = channel.unary_unary(method("Do"))

        def top(request: bytes, context: grpc.ServicerContext) -> bytes:
            for future in [threads.submit(call, b"") for _ in range(2)]:
                future.result()
            with evenly.request_context(deadline_seconds=10.0):
                answer: bytes = call(b"")
            return answer

        with (
            serving(top, config=config, observer=top_seen) as (_, above),
            grpc.insecure_channel(above) as plain,
        ):
            yield plain.unary_unary(method("Do")), seen, top_seen


@pytest.mark.parametrize(
    "metadata", [(("evenly-level", "u=37;l=3"),), (("baggage", "a=b,evenly-luck=37"),)]
)
def test_all_calls_below_have_the_luck_that_the_request_came_with(metadata: Metadata) -> None:
    with stack(BackendConfig()) as (call, seen, top):
        for _ in range(3):
            call(b"", metadata=metadata)

    assert seen == [37 / 64] * 9
    # Refused are those that come with a level as cheaply as those that come without.
    assert not any(name.startswith("evenly-handler") for name in top.threads)


def test_who_has_no_luck_gets_one_for_all_calls_below() -> None:
    with stack(BackendConfig()) as (call, seen, _):
        call(b"")

    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert None not in seen


def test_a_strangers_luck_is_not_believed_and_then_waits_for_who_knows_its_peer() -> None:
    shared: list[float | None] = []
    with stack(STERN) as (call, seen, top):
        for _ in range(20):
            call(b"", metadata=(("evenly-level", "u=63;l=255"),))
            assert len(seen) == 3
            shared += [*set(seen)]
            seen.clear()

    assert len(shared) == 20  # One for each.
    assert None not in shared
    assert len(set(shared)) > 1  # A stranger's would always be the same.
    # Of the first nobody knew from whom it came.
    assert [name.startswith("evenly-handler") for name in top.threads] == [False] + [True] * 19


def test_a_stranger_that_is_refused_is_noticed_too() -> None:
    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    seen = Seen()
    level = (("evenly-level", "u=0;l=255"),)
    with (
        serving(echo, config=STERN, observer=seen) as (server, address),
        grpc.insecure_channel(address) as plain,
    ):
        call = plain.unary_unary(method("Do"))
        runtime: Any = server.runtime
        admit = runtime.admit
        runtime.admit = lambda *_, **__: Rejection(Reason.OVERLOADED, retryable=True)
        with pytest.raises(grpc.RpcError):
            call(b"", metadata=level)
        runtime.admit = admit
        call(b"", metadata=level)

    assert [name.startswith("evenly-handler") for name in seen.threads] == [True]


def test_the_line_arrives_where_it_is_decided() -> None:
    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    told: list[tuple[float | None, float]] = []
    with (
        serving(echo) as (server, address),
        channel_to(address, config=WITHOUT_UDP) as channel,
    ):
        server.runtime.combine = partial(replace, cut=1.5)  # It says that it cuts there.
        task = server.runtime.task
        admit: Any = task.admit

        def noting(request: Request, attempt: int, **said: Any) -> Any:
            told.append((said["luck"], said["line"]))
            return admit(request, attempt, **said)

        task.admit = noting  # type: ignore[assignment,method-assign]
        call = channel.unary_unary(method("Do"))
        call(b"")
        assert told[-1] == (None, 0.0)

        with evenly.request_context(criticality=evenly.Criticality.CRITICAL_PLUS, user="ann"):
            call(b"")
            luck = evenly.current_request().luck

    # The line is 0.03 below what is reported: 1.47 · 64 = 94.08, rounded down.
    assert told[-1] == (luck, 94 / 64)
