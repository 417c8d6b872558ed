"""Connections of a threaded channel: health, idle mode, replacement, TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import _channel
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import evenly
import evenly.grpc.sync
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.grpc import ClientConfig
from evenly.grpc.sync.client import connection as connection_module
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    WITHOUT_UDP,
    Behavior,
    active,
    channel_to,
    code_of,
    descriptors,
    evenly_server,
    generic_handler,
    method,
    plain_backend,
    threads,
    wait_until,
)
from tests.grpc_sync.told import Told

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def with_health(config: ClientConfig, **options: float) -> ClientConfig:
    membership = MembershipConfig(health=HealthConfig(**options))  # type: ignore[arg-type]
    return dataclasses.replace(config, task=ClientTaskConfig(membership=membership))


def watchers() -> int:
    return sum(number for name, number in threads().items() if name.endswith("(_run)"))


def states(channel: evenly.grpc.sync.Channel) -> list[str]:
    return [backend.state.value for backend in channel.snapshot().backends]


@contextlib.contextmanager
def backend_with_health(behavior: Behavior) -> Iterator[tuple[health.HealthServicer, str]]:
    """Serve with gRPC's own server and its own health service."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    own = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(own, server)
    server.add_generic_rpc_handlers((generic_handler(behavior),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield own, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class LateToWatch:
    """Be a channel for gRPC's thread that polls it, which the machine does not let run at once."""

    def __init__(self, inner: Any) -> None:
        self.check_connectivity_state = inner.check_connectivity_state
        self._watch = inner.watch_connectivity_state

    def watch_connectivity_state(self, *args: object) -> object:
        time.sleep(0.05)
        return self._watch(*args)


def test_a_connection_is_closed_when_grpc_no_longer_polls_it(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = _channel._poll_connectivity

    def poll_late(state: Any, inner: Any, *rest: Any) -> None:
        poll(state, LateToWatch(inner), *rest)

    monkeypatch.setattr(_channel, "_poll_connectivity", poll_late)
    before = watchers()
    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP):
        pass
    # What a thread raises is an error here, though nobody would have heard of it.
    wait_until(lambda: watchers() == before)


def test_closing_a_channel_that_nobody_calls_does_not_wait_for_grpc(
    behavior: Behavior, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_close = threading.Event()
    waited: list[bool] = []

    def sleep(_: float) -> None:
        waited.append(may_close.wait(LONG_SECONDS))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(connection_module, "time", clock)
    before = watchers()
    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        channel.unary_unary(method("Echo"))(b"a")
        channel.close()
        assert waited == []  # It returned, and the connection is still to be closed.
        may_close.set()
        wait_until(lambda: waited == [True] and watchers() == before, "the connection to close")


def test_closing_a_channel_ends_the_call_that_a_thread_waits_for(behavior: Behavior) -> None:
    with plain_backend(behavior) as address, channel_to(address, config=WITHOUT_UDP) as channel:
        with futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(channel.unary_unary(method("Hold")), b"a")
            assert behavior.held.acquire(timeout=LONG_SECONDS)
            channel.close()
            error = held.exception(LONG_SECONDS)
        assert error is not None
        assert code_of(error) is grpc.StatusCode.CANCELLED


def test_a_backend_without_udp_is_checked_and_then_watched_over_its_connection(
    behavior: Behavior,
) -> None:
    config = with_health(WITHOUT_UDP, check_seconds=0.05)
    with (
        backend_with_health(behavior) as (own, address),
        channel_to(address, config=config) as channel,
    ):
        wait_until(lambda: threads()["evenly-watch"] == 1, "the watch")
        own.set("", NOT_SERVING)
        wait_until(lambda: states(channel) == ["lame duck"], "the lame duck")
        own.set("", SERVING)
        wait_until(lambda: states(channel) == ["healthy"], "its return")
    wait_until(lambda: threads()["evenly-watch"] == 0, "the end of the watch")


def test_a_backend_that_knows_nothing_of_health_stays_healthy(behavior: Behavior) -> None:
    config = with_health(WITHOUT_UDP, check_seconds=0.02)
    with plain_backend(behavior) as address, channel_to(address, config=config) as channel:
        connection = next(iter(channel.start().connections.values()))
        wait_until(lambda: connection.checks >= 10, "ten checks")
        assert states(channel) == ["healthy"]
        assert channel.start().connections[address] is connection


def test_a_backend_that_answers_by_udp_is_not_watched(behavior: Behavior) -> None:
    config = with_health(ClientConfig(), check_seconds=0.02)
    with evenly_server(behavior) as (server, address), channel_to(address, config=config):
        wait_until(lambda: server.runtime.snapshot().probe.answered >= 10, "ten probes")
        assert threads()["evenly-watch"] == 0


def test_an_idle_connection_is_closed_and_opened_again_on_demand(behavior: Behavior) -> None:
    config = with_health(ClientConfig(), check_seconds=0.02, idle_seconds=0.1)
    with evenly_server(behavior) as (_, address), channel_to(address, config=config) as channel:
        echo = channel.unary_unary(method("Echo"))
        for _ in range(2):
            assert echo(b"a") == b"a"
            wait_until(lambda: channel.start().connections == {}, "idle mode")
            assert states(channel) == ["healthy"]
        assert echo.future(b"b").result(LONG_SECONDS) == b"b"
        assert active(channel) == 0


def test_a_connection_that_is_given_up_lets_its_last_call_end(behavior: Behavior) -> None:
    discovery = Told()
    with (
        plain_backend(behavior) as old,
        plain_backend(behavior) as new,
        evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP) as channel,
    ):
        discovery.tell(old)
        held = channel.unary_unary(method("Hold")).future(b"a")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        assert held.backend == old
        discovery.tell(new)
        echo = channel.unary_unary(method("Echo"))
        wait_until(lambda: new in channel.start().connections, "the new connection")
        assert echo.with_call(b"b")[1].backend == new
        assert held.is_active()
        behavior.release.set()
        assert held.result(LONG_SECONDS) == b"a"
        # gRPC has one thread for each channel that is watched.
        wait_until(lambda: watchers() == 1, "the old one to be closed")
        assert active(channel) == 0


def test_a_connection_that_nobody_uses_is_closed_with_its_backend(behavior: Behavior) -> None:
    discovery = Told()
    with (
        plain_backend(behavior) as old,
        plain_backend(behavior) as new,
        evenly.grpc.sync.channel(discovery, config=WITHOUT_UDP) as channel,
    ):
        discovery.tell(old, new)
        wait_until(lambda: states(channel) == ["healthy"] * 2, "both connections")
        with_both = descriptors()
        discovery.tell(new)
        # Both ends of it are in this process.
        wait_until(lambda: descriptors() <= with_both - 2, "the old one to be closed")
        wait_until(lambda: watchers() == 1, "its watcher to end")
        assert channel.unary_unary(method("Echo"))(b"a") == b"a"


def test_a_backend_that_restarts_is_found_again(behavior: Behavior) -> None:
    config = with_health(WITHOUT_UDP, backoff_first_seconds=0.05, connect_jitter_seconds=0.01)
    with plain_backend(behavior) as address:
        channel = evenly.grpc.sync.channel(f"static:{address}", config=config)
        assert channel.unary_unary(method("Echo"))(b"a") == b"a"
    with channel:
        wait_until(lambda: states(channel) == ["refusing"], "the lost connection")
        again = Behavior()
        with plain_backend(again, port=int(address.rpartition(":")[2])):
            patient = channel.unary_unary(method("Echo"))
            assert patient(b"b", wait_for_ready=True, timeout=LONG_SECONDS) == b"b"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_both_ends_speak_tls(behavior: Behavior, tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=search.test -addext subjectAltName=DNS:search.test -keyout {key} -out {chain}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    server = evenly.grpc.sync.server(max_workers=4, handlers=(generic_handler(behavior),))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    with evenly.grpc.sync.channel(
        f"static:127.0.0.1:{port}",
        credentials=grpc.ssl_channel_credentials(chain.read_bytes()),
        options=(("grpc.ssl_target_name_override", "search.test"),),
    ) as channel:
        assert channel.unary_unary(method("Echo"))(b"a", timeout=LONG_SECONDS) == b"a"
    server.stop(None)
