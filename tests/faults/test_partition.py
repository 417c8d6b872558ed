"""A network that lets nothing through, without a word: three backends in namespaces of their own.

Each is a port of a bridge.  A port that is taken off it keeps its carrier: nothing is refused and
nothing arrives, as behind a switch that has lost its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evenly.core.balancing.health import State
from tests.suites.transports import stories
from tests.suites.transports.load import Load, eventually
from tests.suites.transports.processes import BackendProcess
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

COUNT = 3
RATE = 100.0
NOTICED_SECONDS = 6.0  # Three checks a second apart, and the two that they fall between.
RECOVERED_SECONDS = 15.0  # What was sent into the void is sent again by TCP after up to 6.4 s.

_numbers = itertools.count()


def ip(*arguments: str) -> None:
    found = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found is not None, "ip is in Debian's iproute2"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Network:
    """Be a bridge with a host of its own at each port."""

    def __init__(self) -> None:
        # No other run's, nor the last test's, which the kernel may still take down; and no longer
        # than the 15 characters that a name may have.
        self._name = f"ev{os.getpid() % 10**7}n{next(_numbers)}"
        self._net = f"10.213.{os.getpid() % 256}"
        self.hosts = [f"{self._net}.{number + 2}" for number in range(COUNT)]

    def prefix(self, number: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self._name}-{number}")

    def make(self) -> None:
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self._net}.1/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        for number, host in enumerate(self.hosts):
            space, port = f"{self._name}-{number}", f"{self._name}p{number}"
            ip("netns", "add", space)
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("link", "set", port, "up")
            self.join(number)

    def cut(self, number: int) -> None:
        ip("link", "set", f"{self._name}p{number}", "nomaster")

    def join(self, number: int) -> None:
        ip("link", "set", f"{self._name}p{number}", "master", self._name)

    def remove(self) -> None:
        """Leave nothing behind, of a half-made one either."""
        made = [("netns", "del", f"{self._name}-{number}") for number in range(COUNT)]
        for arguments in (*made, ("link", "del", self._name)):
            with contextlib.suppress(AssertionError):
                ip(*arguments)


@contextmanager
def network() -> Iterator[Network]:
    made = Network()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@contextmanager
def hosted(net: Network, transport: Transport) -> Iterator[list[BackendProcess]]:
    yield [
        BackendProcess(
            host=host, prefix=net.prefix(number), transport=transport.name, wait_seconds=0.005
        )
        for number, host in enumerate(net.hosts)
    ]


@every_transport
async def test_a_partition_costs_what_was_sent_before_it_was_noticed(transport: Transport) -> None:
    with network() as net, hosted(net, transport) as backends:
        try:
            await asyncio.gather(*(backend.start() for backend in backends))
            await one_is_cut_off_and_then_all(net, transport, backends)
        finally:
            await asyncio.gather(*(backend.kill() for backend in backends))


async def one_is_cut_off_and_then_all(
    net: Network, transport: Transport, backends: list[BackendProcess]
) -> None:
    addresses = [backend.address for backend in backends]
    async with transport.client(addresses, NO_RETRIES) as client:
        for backend in backends:
            await stories.becomes(client, backend, State.HEALTHY)
        async with Load(client, RATE, timeout_seconds=1.0) as load:
            await asyncio.sleep(1.0)
            net.cut(0)
            cut_at = time.monotonic()
            noticed = await stories.becomes(client, backends[0], State.REFUSING)
            known_at = time.monotonic()
            await asyncio.sleep(2.0)
            net.join(0)
            recovered = await stories.becomes(client, backends[0], State.HEALTHY)
            recovered_at = time.monotonic()
            await asyncio.sleep(1.0)
            for number in range(COUNT):
                net.cut(number)
            await asyncio.sleep(3.0)
            for number in range(COUNT):
                net.join(number)
            joined_at = time.monotonic()
            all_recovered = await eventually(
                lambda: all(
                    any(
                        a.is_ok and a.backend == address and a.sent_at > joined_at
                        for a in load.answers
                    )
                    for address in addresses
                )
            )
            settled_at = time.monotonic()
            await asyncio.sleep(1.0)
    lost = load.failures(cut_at, known_at).total()
    late = load.failures(known_at, recovered_at)
    slowest = max(a.ended_at - a.sent_at for a in load.answers)
    print(
        f"one cut off: out after {noticed:.2f} s, {lost} failed until then, {late.total()}"
        f" after; back {recovered:.2f} s after it was joined. All cut off: all back after"
        f" {all_recovered:.2f} s. The slowest request took {slowest:.2f} s of its one"
    )
    assert noticed <= NOTICED_SECONDS
    assert late == Counter()
    assert recovered <= RECOVERED_SECONDS
    assert all_recovered <= RECOVERED_SECONDS
    assert load.failures(since=settled_at) == Counter()
    assert slowest < 2.0
