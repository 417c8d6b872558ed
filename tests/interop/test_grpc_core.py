"""gRPC's own C-core as the foreign client: it knows nothing of evenly, only of the conventions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.utilization_config import Ramp, SignalConfig, UtilizationConfig
from evenly.core.report import LoadReport
from evenly.core.request import Reason, Request
from evenly.grpc.server.server import Server, server
from evenly.runtime.backend_config import BackendConfig

_SERVICE = "test.Echo"
_METHOD = f"/{_SERVICE}/Do"
# A signal of the test's own, which nobody reads: at 4 everything is refused.
_SIGNAL = "test"
_RAMPS = (Ramp(0.0, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0))
_BY_HAND = BackendConfig(
    task=BackendTaskConfig(
        utilization=UtilizationConfig(
            signals={_SIGNAL: SignalConfig(ramps=_RAMPS, expiry_seconds=3600.0)}
        )
    )
)


class Backend:
    """Be a server that counts what it served."""

    def __init__(
        self, config: BackendConfig | None = None, observer: Observer = NO_OBSERVER
    ) -> None:
        self.served = 0
        self.server: Server = server(config=config, observer=observer)
        method = grpc.unary_unary_rpc_method_handler(self._do)
        handlers = grpc.method_handlers_generic_handler(_SERVICE, {"Do": method})
        self.server.add_generic_rpc_handlers((handlers,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def _do(self, request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        self.served += 1
        return request


@asynccontextmanager
async def running(*backends: Backend) -> AsyncIterator[None]:
    for backend in backends:
        await backend.server.start()
    try:
        yield
    finally:
        for backend in backends:
            await backend.server.stop(None)


@asynccontextmanager
async def foreign(
    config: Mapping[str, object], *backends: Backend
) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable]:
    """Give a multi-callable of gRPC's own, with a service config."""
    target = "ipv4:" + ",".join(f"127.0.0.1:{backend.port}" for backend in backends)
    options = [("grpc.service_config", json.dumps(config))]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        await channel.channel_ready()
        yield channel.unary_unary(_METHOD)


async def test_weighted_round_robin_follows_our_reports() -> None:
    utilizations = (0.9, 0.3, 0.3)
    backends = [Backend() for _ in utilizations]
    for backend, utilization in zip(backends, utilizations, strict=True):
        report = LoadReport(boot=1, utilization=utilization, qps=100.0)
        # What is tested is what C-core makes of a report, so the report is fixed: real ones follow
        # the load, and the load them.
        backend.server.runtime.report = lambda report=report: report  # type: ignore[method-assign, misc]
    config = {
        "loadBalancingConfig": [
            {"weighted_round_robin": {"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"}}
        ]
    }
    async with running(*backends), foreign(config, *backends) as do:
        for _ in range(60):  # Let it hear of all, and weigh them.
            await do(b"x")
            await asyncio.sleep(0.01)
        before = [backend.served for backend in backends]
        for _ in range(2000):
            await do(b"x")
        served = [b.served - seen for b, seen in zip(backends, before, strict=True)]

    # 1/0.9 : 1/0.3 : 1/0.3 is 1 : 3 : 3.
    for count, part in zip(served, (1 / 7, 3 / 7, 3 / 7), strict=True):
        assert count / 2000 == pytest.approx(part, rel=0.03)


async def test_health_checking_clients_leave_a_lame_duck() -> None:
    staying, leaving = Backend(), Backend()
    config = {
        "healthCheckConfig": {"serviceName": _SERVICE},
        "loadBalancingConfig": [{"round_robin": {}}],
    }
    async with running(staying, leaving), foreign(config, staying, leaving) as do:
        for _ in range(20):
            await do(b"x")
        assert leaving.served > 0
        leaving.server.runtime.enter_lame_duck()
        async with asyncio.timeout(30.0):
            while await _is_served(leaving, do):
                await asyncio.sleep(0.01)
        before = staying.served
        for _ in range(50):
            await do(b"x")  # Not one fails, on the way or afterwards.

    assert staying.served - before == 50


async def _is_served(backend: Backend, do: grpc.aio.UnaryUnaryMultiCallable) -> bool:
    before = backend.served
    for _ in range(4):
        await do(b"x")
    return backend.served > before


class _Refusals(Observer):
    def __init__(self) -> None:
        self.reasons: Counter[Reason] = Counter()

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.reasons[reason] += 1


_RETRYING = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                # With 0.001 s, grpcio 1.85.1 never makes the second attempt, of any server.
                "initialBackoff": "0.01s",
                "maxBackoff": "0.02s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ]
}


async def test_retry_policies_go_on_when_one_is_overloaded_and_stop_at_dont_retry() -> None:
    refusals = _Refusals()
    backend = Backend(_BY_HAND, refusals)
    async with running(backend), foreign(_RETRYING, backend) as do:
        backend.server.runtime.task.record_signal(_SIGNAL, 100.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await do(b"x")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refusals.reasons == {Reason.OVERLOADED: 3}
        # Two in three arrivals are retries; with 100 of them that is overload all over.
        for _ in range(40):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await do(b"x")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        refusals.reasons.clear()
        with pytest.raises(grpc.aio.AioRpcError):
            await do(b"x")

    assert refusals.reasons == {Reason.DONT_RETRY: 1}


async def test_retry_policies_stop_where_a_customer_is_out_of_quota() -> None:
    refusals = _Refusals()
    quota = QuotaConfig(limits={}, default_limit=0.0)
    backend = Backend(BackendConfig(task=BackendTaskConfig(quota=quota)), refusals)
    async with running(backend), foreign(_RETRYING, backend) as do:
        codes = set()
        for _ in range(20):
            try:
                await do(b"x")
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
                break

    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert refusals.reasons == {Reason.OUT_OF_QUOTA: 1}
