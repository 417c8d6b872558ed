"""A handler that blocks its event loop for seconds, and a SIGTERM in the midst of it."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections import Counter

import pytest

from evenly.core.balancing.health import State
from tests.suites.transports import stories
from tests.suites.transports.load import Load, eventually
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

RATE = 100.0
BLOCK_SECONDS = 3.0
SLOW_SECONDS = 0.5
# A third of what comes until the client has seen that nothing comes back, in one second.
SLOW_MAX = int(RATE / 3)


@every_transport
async def test_a_blocked_loop_delays_few_requests_and_fails_none(transport: Transport) -> None:
    async with (
        transport.backends(3, wait_seconds=0.005, block_seconds=BLOCK_SECONDS) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        await stories.all_healthy(client, backends)
        victim = backends.all[0]
        async with Load(client, RATE, timeout_seconds=20.0) as load:
            await asyncio.sleep(2.0)
            begun_at = time.monotonic()
            victim.signal(signal.SIGHUP)
            await asyncio.sleep(0.5)
            victim.signal(signal.SIGTERM)  # It hears of it when it goes on.
            told = await eventually(lambda: stories.state(client, victim) is not State.HEALTHY)
            status = await victim.wait()
            left = time.monotonic() - begun_at
            await asyncio.sleep(1.0)
    waits: dict[bool, list[float]] = {True: [], False: []}  # at the blocked one, and at the others
    for answer in load.answers:
        if answer.sent_at >= begun_at:
            waits[answer.backend == victim.address].append(answer.ended_at - answer.sent_at)
    slow = [seconds for seconds in waits[True] if seconds > SLOW_SECONDS]
    elsewhere = statistics.median(waits[False])
    print(
        f"blocked for {BLOCK_SECONDS:g} s: {load.failures().total()} of {len(load.answers)} failed;"
        f" {len(slow)} waited for it, elsewhere the median was {1e3 * elsewhere:.0f} ms;"
        f" not healthy {0.5 + told:.2f} s after it began, gone after {left:.2f} s"
    )
    assert load.failures() == Counter()
    assert elsewhere < SLOW_SECONDS
    assert len(slow) <= SLOW_MAX
    assert status == 0
    assert 0.5 + told <= BLOCK_SECONDS + 2.0
