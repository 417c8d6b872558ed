"""A flood of datagrams at the probe's port: requests go on, and so do probes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter

import pytest

from evenly.wire.datagram import SIZE, question
from tests.suites.transports import stories
from tests.suites.transports.load import Load
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

FLOOD_SECONDS = 5.0
# Sends as fast as one core can; what the kernel drops is its business.
FLOODER = """
import socket, sys, time
port, seconds, data = int(sys.argv[1]), float(sys.argv[2]), bytes.fromhex(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect(("127.0.0.1", port))
until, sent = time.monotonic() + seconds, 0
while time.monotonic() < until:
    for _ in range(100):
        try:
            sent += bool(sock.send(data))
        except OSError:
            pass
print(sent)
"""
DATA = {
    "noise": bytes(SIZE),
    "long noise": bytes(1_400),
    "questions": question(0x1234, None),
}


def slowest_seconds(load: Load, since: float, until: float) -> float:
    """Return what 99 of 100 requests stayed below."""
    waits = sorted(a.ended_at - a.sent_at for a in load.answers if since <= a.sent_at < until)
    return waits[int(0.99 * len(waits))]


@every_transport
@pytest.mark.parametrize("kind", DATA)
async def test_a_flood_fails_no_request(transport: Transport, kind: str) -> None:
    async with (
        transport.backends(3, wait_seconds=0.005) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        await stories.all_healthy(client, backends)
        async with Load(client, 100.0) as load:
            await asyncio.sleep(2.0)
            begun_at = time.monotonic()
            flooder = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                FLOODER,
                str(backends.all[0].port),
                str(FLOOD_SECONDS),
                DATA[kind].hex(),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await flooder.communicate()
            ended_at = time.monotonic()
            await asyncio.sleep(2.0)

    sent = int(out) / FLOOD_SECONDS
    before = slowest_seconds(load, 0.0, begun_at)
    during = slowest_seconds(load, begun_at, ended_at)
    print(f"{kind}: {sent:.0f} datagrams/s; p99 {before * 1e3:.0f} ms, then {during * 1e3:.0f} ms")
    assert sent > 1_000.0
    assert load.failures() == Counter()
    assert during < 1.0
