from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from xds.data.orca.v3 import orca_load_report_pb2
from xds.service.orca.v3 import orca_pb2

from evenly.grpc.common.names import is_exempt
from evenly.grpc.server.server import server
from evenly.runtime.backend_config import BackendConfig
from tests.grpc.served import SERVICE, SOON, TASK, press, served

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def echo(request: bytes, context: Any) -> bytes:
    return request


HANDLERS = {"Do": grpc.unary_unary_rpc_method_handler(echo)}


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service))


async def next_status(call: Any) -> int:
    response = await asyncio.wait_for(call.read(), SOON)
    status: int = response.status
    return status


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_watch_follows_the_lame_duck_state(service: str) -> None:
    async with served(HANDLERS) as backend:
        call = watch(backend.channel, service)
        assert await next_status(call) == SERVING

        backend.runtime.enter_lame_duck()

        assert await next_status(call) == NOT_SERVING


async def test_a_backend_that_warms_up_does_not_serve_yet() -> None:
    made = server(config=BackendConfig(task=TASK))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start_as_lame_duck()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = watch(channel)
        assert await next_status(call) == NOT_SERVING
        made.announce_healthy()
        assert await next_status(call) == SERVING
    await made.stop(None)


async def test_every_watcher_hears_also_when_another_has_left() -> None:
    async with served(HANDLERS) as backend:
        calls = [watch(backend.channel) for _ in range(3)]
        assert [await next_status(call) for call in calls] == [SERVING] * 3
        calls[0].cancel()
        await asyncio.sleep(0.05)

        backend.runtime.enter_lame_duck()

        assert [await next_status(call) for call in calls[1:]] == [NOT_SERVING] * 2


async def test_a_service_that_is_not_there_is_unknown_and_may_come() -> None:
    async with served(HANDLERS) as backend:
        stub = health_pb2_grpc.HealthStub(backend.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="later"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        call = watch(backend.channel, "later")
        assert await next_status(call) == UNKNOWN

        backend.server.guard.add_names(("later",))

        assert await next_status(call) == SERVING
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="later"))
        assert answer.status == SERVING
        listed = await stub.List(health_pb2.HealthListRequest())
        assert {name: each.status for name, each in listed.statuses.items()} == {
            "": SERVING,
            SERVICE: SERVING,
            "later": SERVING,
        }


async def test_overload_never_changes_what_health_checks_hear() -> None:
    async with served(HANDLERS) as backend:
        await press(backend.runtime, 9.0)
        stub = health_pb2_grpc.HealthStub(backend.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())

        assert answer.status == SERVING
        assert not backend.ledger.admitted
        assert not backend.ledger.rejected


async def test_a_server_that_stops_does_not_wait_for_watchers() -> None:
    async with served(HANDLERS) as backend:
        call = watch(backend.channel)
        reports = stream_reports(backend.channel, seconds=3600)
        await next_status(call)
        await asyncio.wait_for(reports.read(), SOON)

        # Long enough to fail the test if the streams were waited for.
        await asyncio.wait_for(backend.server.stop(3600.0), SOON)

        assert await next_status(call) == NOT_SERVING
        assert await call.read() is grpc.aio.EOF


async def test_watchers_that_know_are_not_waited_for_either() -> None:
    async with served(HANDLERS) as backend:
        call = watch(backend.channel)
        await next_status(call)
        backend.runtime.enter_lame_duck()
        assert await next_status(call) == NOT_SERVING

        await asyncio.wait_for(backend.server.stop(3600.0), SOON)

        assert await call.read() is grpc.aio.EOF


async def test_health_can_be_left_to_another() -> None:
    async with served(HANDLERS, health=False) as backend:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch(backend.channel).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def stream_reports(channel: grpc.aio.Channel, seconds: float) -> Any:
    method = channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=orca_pb2.OrcaLoadReportRequest.SerializeToString,
        response_deserializer=orca_load_report_pb2.OrcaLoadReport.FromString,
    )
    interval = Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))
    return method(orca_pb2.OrcaLoadReportRequest(report_interval=interval))


async def test_load_is_reported_out_of_band_at_the_interval_asked_for() -> None:
    config = BackendConfig(task=TASK, orca_least_seconds=0.01)
    async with served(HANDLERS, config=config) as backend:
        for _ in range(20):
            await backend.channel.unary_unary(f"/{SERVICE}/Do")(b"")
        call = stream_reports(backend.channel, seconds=0.05)
        reports = [await asyncio.wait_for(call.read(), SOON) for _ in range(4)]
        call.cancel()

    assert all(report.rps_fractional > 0.0 for report in reports)


@pytest.mark.parametrize("seconds", [0.0, -5.0])
async def test_reports_come_no_more_often_than_the_least_interval(seconds: float) -> None:
    assert BackendConfig().orca_least_seconds == 1.0
    config = BackendConfig(task=TASK, orca_least_seconds=60.0)  # Longer than a machine pauses.
    async with served(HANDLERS, config=config) as backend:
        call = stream_reports(backend.channel, seconds=seconds)
        await asyncio.wait_for(call.read(), SOON)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.read(), 0.3)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("/grpc.health.v1.Health/Watch", True),
        ("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", True),
        ("/grpc.health.v1.Healthy/Watch", False),
        ("/test.Things/Do", False),
        ("", False),
    ],
)
def test_only_health_and_load_reports_bypass_admission(method: str, expected: bool) -> None:
    assert is_exempt(method) is expected
