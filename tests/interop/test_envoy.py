"""Envoy as the foreign client: it knows nothing of evenly, only of the conventions."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from evenly.core.report import LoadReport
from evenly.core.request import Reason
from tests.interop.envoy_process import BY_OUR_REPORTS, CHECKED, RETRYING, envoy_before
from tests.interop.http_backend import BY_HAND, Backend, running
from tests.suites.transports.stories import rolling_restarts
from tests.suites.transports.transport import HTTP


async def get(session: aiohttp.ClientSession, address: str) -> aiohttp.ClientResponse:
    async with session.get(f"http://{address}/") as response:
        await response.read()
    return response


async def test_weighted_round_robin_follows_our_reports(tmp_path: Path) -> None:
    utilizations = (0.9, 0.3, 0.3)
    backends = [Backend() for _ in utilizations]
    for backend, utilization in zip(backends, utilizations, strict=True):
        report = LoadReport(boot=1, utilization=utilization, qps=100.0)
        # What is tested is what Envoy makes of a report, so the report is fixed: real ones follow
        # the load, and the load them.
        backend.middleware.runtime.report = lambda report=report: report  # type: ignore[method-assign, misc]
    ports = [backend.port for backend in backends]
    async with (
        running(*backends),
        envoy_before(tmp_path, *ports, cluster=BY_OUR_REPORTS) as address,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(60):  # Let it hear of all, and weigh them.
            await get(session, address)
            await asyncio.sleep(0.01)
        before = [backend.served for backend in backends]
        for _ in range(700):
            assert (await get(session, address)).status == 200
        served = [b.served - seen for b, seen in zip(backends, before, strict=True)]

    # 1/0.9 : 1/0.3 : 1/0.3 is 1 : 3 : 3.
    assert served == [
        pytest.approx(100, rel=0.1),
        pytest.approx(300, rel=0.1),
        pytest.approx(300, rel=0.1),
    ]


async def test_retry_policies_go_on_when_one_is_overloaded_and_stop_at_dont_retry(
    tmp_path: Path,
) -> None:
    backend = Backend(BY_HAND)
    async with (
        running(backend),
        envoy_before(tmp_path, backend.port, retry_policy=RETRYING) as address,
        aiohttp.ClientSession() as session,
    ):
        backend.press(100.0)
        assert (await get(session, address)).status == 503
        assert backend.refused == {Reason.OVERLOADED: 3}
        # Two in three arrivals are retries; with 100 of them that is overload all over.
        for _ in range(40):
            await get(session, address)
        assert (await get(session, address)).headers["evenly-reject"] == "dont-retry"
        backend.refused.clear()
        assert (await get(session, address)).status == 503

    assert backend.refused == {Reason.DONT_RETRY: 1}
    assert backend.served == 0


async def test_retry_policies_serve_what_another_backend_can(tmp_path: Path) -> None:
    refusing, serving = Backend(BY_HAND), Backend(BY_HAND)
    elsewhere = {
        **RETRYING,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host."
                    "previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    }
    async with (
        running(refusing, serving),
        envoy_before(tmp_path, refusing.port, serving.port, retry_policy=elsewhere) as address,
        aiohttp.ClientSession() as session,
    ):
        refusing.press(100.0)
        statuses = {(await get(session, address)).status for _ in range(40)}

    assert statuses == {200}
    assert refusing.refused[Reason.OVERLOADED] > 0
    assert (refusing.served, serving.served) == (0, 40)


async def test_health_checks_leave_a_lame_duck_and_no_request_fails(tmp_path: Path) -> None:
    staying, leaving = Backend(), Backend()
    async with (
        running(staying, leaving),
        envoy_before(tmp_path, staying.port, leaving.port, cluster=CHECKED) as address,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(20):
            assert (await get(session, address)).status == 200
        assert leaving.served > 0
        leaving.middleware.runtime.enter_lame_duck()
        async with asyncio.timeout(30.0):
            while await is_served(leaving, session, address):
                await asyncio.sleep(0.01)
        before = staying.served
        for _ in range(50):
            assert (await get(session, address)).status == 200

    assert staying.served - before == 50


async def test_a_restart_behind_envoy_loses_no_request(tmp_path: Path) -> None:
    async with HTTP.backends(2, wait_seconds=0.005) as backends:
        ports = [backend.port for backend in backends.all]
        async with (
            envoy_before(tmp_path, *ports, cluster=CHECKED) as address,
            HTTP.plain_client([address]) as client,
        ):
            # One: how soon after a start the next may leave is for Envoy's checks to say.
            deploy = await rolling_restarts(backends, client, restarts=1)

    assert deploy.failures == Counter()


async def is_served(backend: Backend, session: aiohttp.ClientSession, address: str) -> bool:
    before = backend.served
    for _ in range(4):
        assert (await get(session, address)).status == 200
    return backend.served > before
