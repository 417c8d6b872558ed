"""A client at its limit of descriptors: what is connected serves on, and it recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evenly.core.balancing.health import State
from tests.suites.transports import stories
from tests.suites.transports.load import Load
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

RATE = 50.0
RECOVERED_SECONDS = 5.0


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave none to this process: the limit ends where the next one would begin."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_024), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(2))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@every_transport
async def test_a_client_without_descriptors(transport: Transport) -> None:
    async with (
        transport.backends(3, wait_seconds=0.005) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        await stories.all_healthy(client, backends)
        victim = backends.all[0]
        async with Load(client, RATE, timeout_seconds=2.0) as load:
            await asyncio.sleep(1.0)
            with no_descriptors():
                begun_at = time.monotonic()
                victim.signal(signal.SIGKILL)
                await stories.becomes(client, victim, State.REFUSING)
                known_at = time.monotonic()
                await asyncio.sleep(3.0)
            ended_at = time.monotonic()
            await victim.wait()
            await victim.start()
            back_at = time.monotonic()
            recovered = await stories.becomes(client, victim, State.HEALTHY)
            await asyncio.sleep(0.5)
    at_once, late = load.failures(begun_at, known_at), load.failures(known_at)
    print(
        f"no descriptor for {ended_at - begun_at:.1f} s, one of three killed: {at_once.total()}"
        f" failed until that was known, {late.total()} after; back after {recovered:.2f} s"
    )
    assert late == Counter()
    assert recovered <= RECOVERED_SECONDS
    assert time.monotonic() > back_at
