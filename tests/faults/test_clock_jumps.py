"""Clocks that jump, the wall's and the monotonic one, under a client that runs: it serves on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from evenly.core.criticality import Criticality
from tests.suites.transports import stories
from tests.suites.transports.transport import HTTP, NO_RETRIES, Client, Transport, every_transport

pytestmark = pytest.mark.faults

REQUESTS = 100


class Clock:
    """Be a clock of the system's, but for jumps."""

    def __init__(self, real: object) -> None:
        self._real = real
        self.ahead = 0.0

    def __call__(self) -> float:
        now: float = self._real() + self.ahead  # type: ignore[operator]
        return now


async def ends(client: Client) -> Counter[str]:
    """Send one request after the other; count how they end."""
    ended: Counter[str] = Counter()
    for _ in range(REQUESTS):
        end, _, details = await client.send(Criticality.CRITICAL, 5.0)
        ended[f"{end}{details}"] += 1
        await asyncio.sleep(0.002)
    return ended


@every_transport
@pytest.mark.parametrize("jump", [-100.0, 400.0, 1e9], ids="{:+g} s".format)
async def test_requests_are_served_before_and_after_a_jump_and_back_again(
    transport: Transport, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = [Clock(time.monotonic)]
    monkeypatch.setattr(time, "monotonic", clocks[0])
    if transport is HTTP:  # gRPC's deadlines are by the wall's, which its C core reads elsewhere.
        clocks.append(Clock(time.time))
        monkeypatch.setattr(time, "time", clocks[1])
    async with (
        transport.backends(3, wait_seconds=0.002) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        await stories.all_healthy(client, backends)
        before = await ends(client)
        for clock in clocks:
            clock.ahead = jump
        ahead = await ends(client)
        for clock in clocks:
            clock.ahead = 0.0
        back = await ends(client)
        active = client.snapshot().active

    print(f"{jump:+g} s: {dict(before)}, {dict(ahead)}, and back {dict(back)}")
    assert before == ahead == back == {"OK": REQUESTS}
    assert active == 0
