"""One live backend of ten that says of itself what is a thousand times too much, or too little."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.http.client.session import Session
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig
from evenly.wire.load_header import format_load
from tests.http.raw_backend import Arrival, Handler, RawBackend, reply

pytestmark = pytest.mark.faults

BACKENDS = 10
REQUESTS = 400
AT_ONCE = 10
# 3 × its fair share; 400 lots of one in ten vary by 6, which is 4 standard deviations below 25.
SHARE_MAX = 0.3
HONEST = {"qps": 10.0, "eps": 0.01, "utilization": 0.5, "runnable": 0.5, "latency_seconds": 0.02}
# As a wrong unit has it.  What makes it look worse only takes requests from it.
LIES = {
    "qps × 1000": {"qps": 1e4},
    "utilization ÷ 1000": {"utilization": 5e-4},
    "all of them": {
        "qps": 1e4,
        "eps": 0.0,
        "utilization": 5e-4,
        "runnable": 0.0,
        "latency_seconds": 2e-5,
    },
}


def saying(**said: float) -> Handler:
    load = format_load(LoadReport(boot=1, sequence=1, **{**HONEST, **said}))  # type: ignore[arg-type]

    async def handler(arrival: Arrival) -> bytes:
        await asyncio.sleep(0.005)
        return reply(200, b"", ("evenly-load", load))

    return handler


def choosing(policy: str) -> ClientConfig:
    weights = WeightConfig(blackout_seconds=0.2, slow_start_seconds=0.0)
    task = ClientTaskConfig(policy=PolicyConfig(name=policy, weights=weights))
    return ClientConfig(task=task, probe=ProbeConfig(is_on=policy in ("probing", "prequal")))


async def share(policy: str, lie: dict[str, float]) -> float:
    """Return what part of the later requests the liar gets."""
    backends = [
        RawBackend(saying(**lie) if number == 0 else saying()) for number in range(BACKENDS)
    ]
    for backend in backends:
        await backend.start()
    target = "static:" + ",".join(backend.address for backend in backends)
    got: Counter[str | None] = Counter()
    try:
        async with Session(target, config=choosing(policy)) as session:

            async def ask(count: int) -> None:
                for _ in range(count):
                    response = await session.get("/", timeout_seconds=10.0)
                    assert response.status == 200
                    got[response.backend] += 1

            # Until everybody has reported, and weights have been made of it.
            until = asyncio.get_running_loop().time() + 2.5
            while asyncio.get_running_loop().time() < until:
                await asyncio.gather(*(ask(1) for _ in range(AT_ONCE)))
                await asyncio.sleep(0.01)
            got.clear()
            await asyncio.gather(*(ask(REQUESTS // AT_ONCE) for _ in range(AT_ONCE)))
    finally:
        for backend in backends:
            await backend.stop()
    return got[backends[0].address] / got.total()


@pytest.mark.parametrize("policy", POLICIES)
async def test_whoever_misreports_gets_at_most_three_times_its_share(policy: str) -> None:
    shares = {name: await share(policy, lie) for name, lie in LIES.items()}
    print(f"{policy}:", ", ".join(f"{name} {part:.1%}" for name, part in shares.items()))
    assert max(shares.values()) <= SHARE_MAX
