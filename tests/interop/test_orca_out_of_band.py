"""Stock gRPC backends that offer ORCA out of band are asked for it, and balanced by it."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import replace
from typing import Any

import grpc
import pytest

from evenly.core.balancing import out_of_band
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.policies.probing import ProbingConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.grpc.client import connection as aio_connection
from evenly.grpc.common.orca_client import OrcaFollower
from evenly.grpc.sync.client import connection as sync_connection
from evenly.grpc.sync.client import orca_stream
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig
from tests.grpc.plain import Trailers, plain_backends, until
from tests.interop.stock_backend import Client, StockBackend, client_of, said, stock_backends

WEIGHTS = WeightConfig(blackout_seconds=0.1, slow_start_seconds=0.0, smoothing_seconds=0.1)
PROBING = ProbingConfig(newcomer_seconds=0.0)
"""Nobody is new for long."""
OURS: Trailers = (("evenly-load", "1;b=1;n=1;s=h;u=0.5;q=100"),)
REQUESTS = 300

pytestmark = pytest.mark.parametrize("api", ["aio", "sync"])


def config(policy: str = "weighted_round_robin", **others: Any) -> ClientConfig:
    task = ClientTaskConfig(policy=PolicyConfig(name=policy, weights=WEIGHTS, probing=PROBING))
    others.setdefault("probe", ProbeConfig(is_on=False))
    return ClientConfig(task=task, orca_seconds=0.02, **others)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what takes about a second take a twentieth."""
    for name in ("_FIRST_SECONDS", "_BACKOFF_FIRST_SECONDS"):
        monkeypatch.setattr(out_of_band, name, 0.05)
    monkeypatch.setattr(orca_stream, "_REFUSAL_SECONDS", 0.05)


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> list[OrcaFollower]:
    """Have those that the connections of this test make."""
    made: list[OrcaFollower] = []

    class Noted(OrcaFollower):  # type: ignore[misc]  # It is final.
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(aio_connection, "OrcaFollower", Noted)
    monkeypatch.setattr(sync_connection, "OrcaFollower", Noted)
    return made


def is_done(follower: OrcaFollower) -> bool:
    """Return whether it has nothing to wait for any more."""
    plan, timer = follower._plan, follower._timer
    is_due = timer is None or timer.cancelled() or timer.when() < follower._runtime.loop.time()
    return follower._cancel is None and is_due and (plan is None or plan.is_over)


async def shares(client: Client, backends: list[StockBackend]) -> list[float]:
    """Return what each gets, of which 1 is a fair share."""
    before = [backend.requests for backend in backends]
    for _ in range(REQUESTS):
        await client.send()
    gained = [backend.requests - old for backend, old in zip(backends, before, strict=True)]
    return [count * len(backends) / REQUESTS for count in gained]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(config(), id="weighted round robin"),
        pytest.param(config(policy=PolicyConfig().name, probe=ProbeConfig()), id="default"),
    ],
)
async def test_a_backend_that_uses_three_times_as_much_gets_a_third(
    api: str, given: ClientConfig
) -> None:
    async with stock_backends(3) as backends, client_of(api, backends, given) as client:
        for backend, used in zip(backends, (0.9, 0.3, 0.3), strict=True):
            backend.report = said(used)
        await client.send()
        busy = backends[0].address
        async with asyncio.timeout(60.0):
            while len(client.weights()) < 3 or client.weights()[busy] > 0.5:
                await asyncio.sleep(0.02)
        hers, *others = await shares(client, backends)

    # Rates are equal, so weights are as 1/0.9 to 1/0.3; a little of it is not believed, which makes
    # 0.34 of it (`Weights.trust`).  A round of weights is 1 / 0.147 = 7 requests, of 300.
    assert 0.3 < hers / others[0] < 0.4
    assert 0.3 < hers / others[1] < 0.4


@pytest.mark.parametrize("given", [config(), config(PolicyConfig().name, probe=ProbeConfig())])
async def test_equal_reports_make_equal_shares(api: str, given: ClientConfig) -> None:
    async with stock_backends(3) as backends, client_of(api, backends, given) as client:
        await client.send()
        await until(lambda: len(client.weights()) == 3)
        told = [backend.told for backend in backends]
        await until(lambda: all(b.told > t + 5 for b, t in zip(backends, told, strict=True)))

        assert await shares(client, backends) == pytest.approx([1.0] * 3, abs=0.1)


async def test_what_cannot_be_is_passed_over(api: str) -> None:
    wrong = [said(-0.9), said(math.nan), said(1e300), said(0.9, qps=math.inf), said(0.9, qps=0.0)]
    async with stock_backends(1) as backends, client_of(api, backends, config()) as client:
        [one] = backends
        await client.send()
        for report in wrong:
            one.report = report
            told = one.told
            await until(lambda: one.told > told + 2)  # noqa: B023 -- called now
        assert client.weights() == {}
        one.report = said(0.25)
        await until(client.weights)

        assert client.snapshot().backends[0].utilization == 0.25
        assert one.asked == one.streams == 1


async def test_a_backend_of_ours_is_not_asked(api: str, followers: list[OrcaFollower]) -> None:
    async with stock_backends(1) as backends, client_of(api, backends, config()) as client:
        backends[0].trailers = OURS
        while not followers:
            await client.send()
        await until(lambda: is_done(followers[0]))

        assert backends[0].asked == 0
        assert client.weights().keys() == {backends[0].address}


async def test_a_backend_that_turns_out_to_be_ours_is_asked_no_more(api: str) -> None:
    async with stock_backends(1) as backends, client_of(api, backends, config()) as client:
        [one] = backends
        await client.send()
        await until(lambda: one.streams)
        one.trailers = OURS
        await client.send()
        await until(lambda: not one.streams)

        assert one.asked == 1
        assert client.snapshot().backends[0].utilization == 0.5


async def test_who_does_not_offer_it_is_asked_once(api: str, followers: list[OrcaFollower]) -> None:
    async with plain_backends(1) as plain, client_of(api, plain, config()) as client:
        await client.send()
        await until(lambda: followers and is_done(followers[0]))
        plan = followers[0]._plan

        assert plan is not None
        assert plan.is_over
        assert threads() == 0


async def test_a_stream_that_fails_is_asked_for_again(api: str) -> None:
    async with stock_backends(1) as backends, client_of(api, backends, config()) as client:
        [one] = backends
        # CANCELLED is what gRPC raises in another way.
        for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED):
            one.code = code
            await client.send()
            asked = one.asked
            await until(lambda: one.asked > asked + 2)  # noqa: B023 -- called now
        one.code = None
        await until(lambda: one.streams == 1 and client.weights())


async def test_nothing_is_left_after_close(api: str) -> None:
    before = len(asyncio.all_tasks())
    async with stock_backends(2) as backends:
        async with client_of(api, backends, config()) as client:
            await client.send()
            await until(lambda: all(backend.streams for backend in backends))
            if api == "sync":
                await until(lambda: threads() == 2)
        await until(lambda: not any(backend.streams for backend in backends))
        await until(lambda: not threads())
        assert [backend.asked for backend in backends] == [1, 1]
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_new_connection_is_asked_anew(api: str, followers: list[OrcaFollower]) -> None:
    async with stock_backends(1) as backends, client_of(api, backends, config()) as client:
        [one] = backends
        await client.send()
        await until(client.weights)
        await one.stop()
        await until(lambda: not one.streams and is_done(followers[0]))
        await until(lambda: not threads())
        await one.start()
        await until(lambda: one.streams == 1)

        assert one.asked == 2
        assert len(followers) == 2


async def test_it_can_be_switched_off(api: str, followers: list[OrcaFollower]) -> None:
    off = replace(config(), orca_seconds=0.0)
    async with stock_backends(1) as backends, client_of(api, backends, off) as client:
        await client.send()
        await until(lambda: followers)

        assert is_done(followers[0])
        assert followers[0]._timer is None


def threads() -> int:
    return sum(thread.name == "evenly-orca" for thread in threading.enumerate())
