"""What is done to a service while it is under load, and what its clients saw of it."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from evenly.core.balancing.health import State
from tests.suites.transports.load import Load, eventually
from tests.suites.transports.processes import BackendProcess, Backends
from tests.suites.transports.transport import Client

REQUESTS_PER_SECOND = 300.0
_PART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Deploy:
    """Say what a deploy cost."""

    requests: int
    failures: Counter[str]
    backends: frozenset[str | None]
    """Who served."""


async def rolling_restarts(backends: Backends, client: Client, restarts: int) -> Deploy:
    """Restart one backend after the other by SIGTERM, under load."""
    async with Load(client, REQUESTS_PER_SECOND) as load:
        await asyncio.sleep(1.0)
        for number in range(restarts):
            await backends.all[number % len(backends.all)].restart()
        await asyncio.sleep(1.0)
    served = frozenset(answer.backend for answer in load.answers)
    return Deploy(len(load.answers), load.failures(), served)


@dataclass(frozen=True, slots=True)
class Fault:
    """Say what a fault cost, and how long it was felt."""

    requests: int
    failures: Counter[str]
    """All of them, by what they say."""
    late_failures: Counter[str]
    """Those of requests sent after the fault had become known."""
    noticed_seconds: float = 0.0
    """From the fault to the state that it should lead to."""
    recovered_seconds: float = 0.0
    """From the end of the fault to its being forgotten."""
    share: float = 0.0
    """Which part of the later requests the hurt backend still got ..."""
    usual_share: float = 0.0
    """... and in the median half-second: after a pause of the machine it gets a few at once."""


def state(client: Client, backend: BackendProcess) -> State | None:
    """Return what the client's task thinks of a backend."""
    for seen in client.snapshot().backends:
        if seen.address == backend.address:
            return seen.state
    return None


def becomes(client: Client, backend: BackendProcess, wanted: State) -> asyncio.Task[float]:
    """Time how long it takes until a backend is seen in a state."""
    return asyncio.create_task(eventually(lambda: state(client, backend) is wanted))


async def all_healthy(client: Client, backends: Backends) -> None:
    """Wait until the client has met every backend."""
    for backend in backends.all:
        await becomes(client, backend, State.HEALTHY)


async def killed(backends: Backends, client: Client) -> Fault:
    """End a backend with SIGKILL."""
    await all_healthy(client, backends)
    victim = backends.all[0]
    async with Load(client, REQUESTS_PER_SECOND) as load:
        await asyncio.sleep(1.0)
        await victim.kill()
        gone_at = time.monotonic()
        noticed = await becomes(client, victim, State.REFUSING)
        await asyncio.sleep(2.0)
    return Fault(
        len(load.answers), load.failures(), load.failures(since=gone_at), noticed_seconds=noticed
    )


async def stopped(backends: Backends, client: Client) -> Fault:
    """Stop a backend with SIGSTOP: its kernel still accepts, it never answers."""
    await all_healthy(client, backends)
    victim = backends.all[0]
    async with Load(client, REQUESTS_PER_SECOND, timeout_seconds=1.0) as load:
        await asyncio.sleep(1.0)
        victim.signal(signal.SIGSTOP)
        noticed = await becomes(client, victim, State.REFUSING)
        known_at = time.monotonic()
        await asyncio.sleep(2.0)
        share = load.share(victim.address, since=known_at)
        victim.signal(signal.SIGCONT)
        continued_at = time.monotonic()
        recovered = await becomes(client, victim, State.HEALTHY)
        await asyncio.sleep(1.0)
        late = load.failures(since=known_at, until=continued_at)
    return Fault(
        len(load.answers),
        load.failures(),
        late,
        noticed_seconds=noticed,
        recovered_seconds=recovered,
        share=share,
    )


async def port_closed(backends: Backends, client: Client) -> Fault:
    """Have a backend close its port and its connections, without a word, and live on."""
    await all_healthy(client, backends)
    victim = backends.all[0]
    async with Load(client, REQUESTS_PER_SECOND) as load:
        await asyncio.sleep(1.0)
        victim.signal(signal.SIGUSR2)
        noticed = await becomes(client, victim, State.REFUSING)
        known_at = time.monotonic()
        await asyncio.sleep(2.0)
    return Fault(
        len(load.answers),
        load.failures(),
        load.failures(since=known_at),
        noticed_seconds=noticed,
        share=load.share(victim.address, since=known_at),
    )


async def failing_fast(backends: Backends, client: Client, *, grace_seconds: float = 2.0) -> Fault:
    """Have a backend fail every request at once: the sinkhole."""
    await all_healthy(client, backends)
    victim = backends.all[0]
    async with Load(client, REQUESTS_PER_SECOND) as load:
        await asyncio.sleep(2.0)
        victim.signal(signal.SIGUSR1)
        failing_at = time.monotonic()
        await asyncio.sleep(grace_seconds + 5.0)
    settled_at = failing_at + grace_seconds
    parts = [settled_at + _PART_SECONDS * number for number in range(10)]
    return Fault(
        len(load.answers),
        load.failures(),
        load.failures(since=settled_at),
        share=load.share(victim.address, since=settled_at),
        usual_share=statistics.median(
            load.share(victim.address, since=at, until=at + _PART_SECONDS) for at in parts
        ),
    )


async def all_gone_and_back(backends: Backends, client: Client) -> Fault:
    """Kill all, wait, and start them again."""
    await all_healthy(client, backends)
    async with Load(client, REQUESTS_PER_SECOND) as load:
        await asyncio.sleep(1.0)
        await asyncio.gather(*(backend.kill() for backend in backends.all))
        begun_at = time.monotonic()
        await eventually(
            lambda: all(state(client, backend) is State.REFUSING for backend in backends.all)
        )
        noticed = time.monotonic() - begun_at
        known_at = time.monotonic()
        await asyncio.sleep(3.0)
        await asyncio.gather(*(backend.start() for backend in backends.all))
        back_at = time.monotonic()
        await eventually(
            lambda: any(answer.is_ok and answer.sent_at > back_at for answer in load.answers)
        )
        recovered = time.monotonic() - back_at
        await asyncio.sleep(1.0)
    waits = [a.ended_at - a.sent_at for a in load.answers if known_at < a.sent_at < back_at - 1.0]
    return Fault(
        len(load.answers),
        load.failures(),
        load.failures(since=known_at, until=back_at),
        noticed_seconds=max(noticed, max(waits, default=0.0)),
        recovered_seconds=recovered,
    )


async def resting(backends: Backends, client: Client) -> None:
    """Wait until an unused client has closed its connections: probes alone reach it."""
    await all_healthy(client, backends)
    await eventually(
        lambda: client.rests and not any(connections_to(backend) for backend in backends.all)
    )


def connections_to(backend: BackendProcess) -> int:
    """Return how many TCP connections to a backend stand, whoever has them."""
    port, established = f":{backend.port:04X}", "01"
    found = 0
    for table in ("tcp", "tcp6"):  # gRPC speaks IPv4 through sockets of IPv6.
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, _, remote, status = line.split()[:4]
            found += remote.endswith(port) and status == established
    return found


async def lame_duck_told_to_idle_client(backends: Backends, client: Client) -> float:
    """Send SIGTERM to a backend of a client that is `IDLE`; return until it knew.

    It has no connection that could tell it, and asks again in some minutes: only a notice is left.
    """
    await resting(backends, client)
    victim = backends.all[0]
    victim.signal(signal.SIGTERM)
    return await becomes(client, victim, State.LAME_DUCK)
