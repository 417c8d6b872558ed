"""A threaded server from its start to its end: health, reports, probes, lame duck, stop."""

from __future__ import annotations

import logging
import threading
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from xds.data.orca.v3 import orca_load_report_pb2
from xds.service.orca.v3 import orca_pb2

import evenly.grpc.sync
from evenly.errors import ConfigError
from evenly.grpc import BackendConfig, ProbeConfig
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    SERVICE,
    Anything,
    Behavior,
    channel_to,
    descriptors,
    evenly_server,
    generic_handler,
    method,
    threads,
    wait_for_threads,
    wait_until,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def check(channel: grpc.Channel, service: str = "") -> Anything:
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=LONG_SECONDS).status


def test_health_follows_the_lame_duck_state_and_watchers_hear_of_it(behavior: Behavior) -> None:
    with (
        evenly_server(behavior) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        assert check(channel) == SERVING
        assert check(channel, SERVICE) == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(channel, "no.such.Service")
        error: Anything = caught.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=name))
            for name in ("", SERVICE, "no.such.Service")
        ]
        assert [next(watch).status for watch in watches] == [SERVING, SERVING, UNKNOWN]
        left = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(left).status == SERVING
        left.cancel()  # Who leaves takes nobody with it.
        server.enter_lame_duck()
        assert [next(watch).status for watch in watches[:2]] == [NOT_SERVING, NOT_SERVING]
        assert check(channel) == NOT_SERVING
        server.enter_lame_duck()  # For good, and a second time does nothing.
        assert not server.announce_healthy()


def test_health_answers_while_all_threads_are_busy(behavior: Behavior) -> None:
    with (
        evenly_server(behavior, max_workers=1) as (_, address),
        grpc.insecure_channel(address) as channel,
    ):
        held = [channel.unary_unary(method("Hold")).future(b"") for _ in range(3)]
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        assert check(channel) == SERVING
        assert not any(call.done() for call in held)


def test_a_health_service_of_ones_own_replaces_evenlys(
    behavior: Behavior, caplog: pytest.LogCaptureFixture
) -> None:
    server = evenly.grpc.sync.server(max_workers=2)
    own = health.HealthServicer()
    own.set("", UNKNOWN)
    health_pb2_grpc.add_HealthServicer_to_server(own, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert check(channel) == UNKNOWN
    server.stop(None)

    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_orca_reports_are_streamed_until_the_server_stops(behavior: Behavior) -> None:
    config = BackendConfig(orca_least_seconds=0.01)
    with (
        evenly_server(behavior, config=config) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        for _ in range(5):
            channel.unary_unary(method("Echo"))(b"")
        stream = channel.unary_stream(
            "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
            orca_pb2.OrcaLoadReportRequest.SerializeToString,
            orca_load_report_pb2.OrcaLoadReport.FromString,
        )
        first, other = (stream(orca_pb2.OrcaLoadReportRequest()) for _ in range(2))
        assert next(first).rps_fractional > 0.0
        next(other)
        other.cancel()
        for _ in range(3):
            next(first)
        stopped = server.stop(LONG_SECONDS)
        assert all(report is not None for report in first)  # It ends.
        assert first.code() is grpc.StatusCode.OK
        assert stopped.wait(LONG_SECONDS)


def test_probes_are_answered_at_the_services_own_port_and_an_idle_client_hears_the_notice(
    behavior: Behavior,
) -> None:
    with evenly_server(behavior) as (server, address), channel_to(address) as channel:
        prober = channel.start().runtime.prober
        background = channel.start().background
        backend = next(iter(channel.start().connections.values())).backend
        answered = threading.Event()
        background.run(prober.probe, backend, answered.set)
        assert answered.wait(LONG_SECONDS)
        before = background.run(prober.snapshot).notices
        server.enter_lame_duck()
        wait_until(lambda: background.run(prober.snapshot).notices > before, "the notice")
        assert [view.state.value for view in channel.snapshot().backends] == ["lame duck"]


def test_without_probes_there_is_no_udp(behavior: Behavior) -> None:
    config = BackendConfig(probe=ProbeConfig(is_on=False))
    with evenly_server(behavior, config=config) as (server, _):
        assert server.runtime.snapshot().probe.answered == 0
        assert server.runtime.report().probe_port is None


def test_stop_lets_requests_finish_and_then_leaves_nothing(behavior: Behavior) -> None:
    server = evenly.grpc.sync.server(max_workers=4)
    server.add_generic_rpc_handlers((generic_handler(behavior),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(ValueError, match="already"):
        server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        held = channel.unary_unary(method("Hold")).future(b"a")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        assert server.wait_for_termination(0.01)
        stopped = server.stop(LONG_SECONDS)
        assert server.runtime.is_lame_duck
        assert not stopped.wait(0.05)
        behavior.release.set()
        assert held.result(LONG_SECONDS) == b"a"
        assert stopped.wait(LONG_SECONDS)
        assert not server.wait_for_termination()
    assert server.stop(None).is_set()
    wait_until(lambda: not [name for name in threads() if name.startswith("evenly")], "threads")


def test_a_second_stop_shortens_the_first(behavior: Behavior) -> None:
    with evenly_server(behavior) as (server, address), grpc.insecure_channel(address) as channel:
        held = channel.unary_unary(method("Hold")).future(b"a")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        stopped = server.stop(3600.0)
        server.stop(None)
        assert stopped.wait(LONG_SECONDS)
        assert held.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


def test_servers_come_and_go_without_leaving_threads_or_descriptors(behavior: Behavior) -> None:
    def use() -> None:
        with evenly_server(Behavior()) as (_, address), grpc.insecure_channel(address) as channel:
            channel.unary_unary(method("Echo"))(b"")
            stub = health_pb2_grpc.HealthStub(channel)
            next(stub.Watch(health_pb2.HealthCheckRequest()))

    use()
    before_threads, before_descriptors = threads(), descriptors()
    for _ in range(3):
        use()

    wait_for_threads(before_threads)
    wait_until(lambda: descriptors() <= before_descriptors, "descriptors")


def test_a_server_that_was_never_started_stops() -> None:
    server = evenly.grpc.sync.server()
    assert server.stop(None).is_set()
    assert not server.wait_for_termination(0.0)


def test_a_pool_and_its_size_contradict_one_another() -> None:
    with pytest.raises(ConfigError, match="max_workers"):
        evenly.grpc.sync.server(futures.ThreadPoolExecutor(1), max_workers=1)


def test_a_service_registered_after_the_start_is_not_in_the_health_service(
    behavior: Behavior, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC warns of it, and does not serve it."""
    with (
        evenly_server(behavior) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        server.add_registered_method_handlers("late.Service", {})
        assert "Cannot register method handlers once server has started" in caplog.text
        with pytest.raises(grpc.RpcError) as caught:
            check(channel, "late.Service")
        error: Anything = caught.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
