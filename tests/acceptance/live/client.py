"""Be one client: `python -m tests.acceptance.live.client SETTINGS`.

It writes `ready`, reads when to begin, and asks at random moments whatever comes of it.  At the end
it writes one line with every request: when, how critical, how late it was begun, how long it took,
and whether it succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

import evenly
from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER
from evenly.lab.demo.talk import caller
from evenly.runtime.client_config import ClientConfig
from tests.acceptance.live.settings import (
    ATTEMPTS,
    CALM,
    CALM_SECONDS,
    CAPACITY,
    CLIENTS,
    DEADLINE_SECONDS,
    MIX,
    OVERLOAD_SECONDS,
)

_Ask = Callable[[Criticality], Awaitable[bool]]


@asynccontextmanager
async def _evenly(transport: str, addresses: list[str]) -> AsyncIterator[_Ask]:
    """Ask through evenly, with the settings that everybody begins with."""
    made = caller(transport, addresses, ClientConfig(), NO_OBSERVER)

    async def ask(level: Criticality) -> bool:
        try:
            with evenly.request_context(criticality=level):
                await made.ask(DEADLINE_SECONDS)
        except Exception:  # noqa: BLE001 -- every kind of failure is one
            return False
        return True

    await made.start()
    yield ask
    await made.close()


@asynccontextmanager
async def _plain(address: str) -> AsyncIterator[_Ask]:
    """Ask one address, HAProxy's, as often as evenly would."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(level: Criticality) -> bool:
            headers = {"x-criticality": level.name}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE_SECONDS):
                    for _ in range(ATTEMPTS):
                        with contextlib.suppress(aiohttp.ClientError):
                            async with session.get(f"http://{address}/", headers=headers) as got:
                                if got.status == 200:
                                    return True
            return False

        yield ask


def _arrivals(rng: random.Random, times: float) -> Iterator[tuple[float, Criticality]]:
    ends_at = at = 0.0
    phases = (CALM, CALM_SECONDS), (times, OVERLOAD_SECONDS), (CALM, CALM_SECONDS)
    for load, seconds in phases:
        # What is left of one gap is not kept for the next rate: gaps have no memory.
        at, ends_at = ends_at, ends_at + seconds
        rate = load * CAPACITY / CLIENTS
        while (at := at + rng.expovariate(rate)) < ends_at:
            yield at, rng.choices(list(MIX), list(MIX.values()))[0]


async def _main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    rng = random.Random(given["seed"])
    system, addresses = given["system"], given["addresses"]
    records: list[tuple[float, int, float, float, bool]] = []
    asking = _plain(addresses[0]) if system == "haproxy" else _evenly(system, addresses)
    async with asking as ask, asyncio.TaskGroup() as requests:
        print("ready", flush=True)
        begins_at = float(await asyncio.to_thread(sys.stdin.readline))

        async def request(at: float, level: Criticality) -> None:
            begun_at = time.monotonic()
            is_ok = await ask(level)
            seconds = time.monotonic() - begun_at
            records.append((at, level.value, begun_at - begins_at - at, seconds, is_ok))

        for at, level in _arrivals(rng, given["times"]):
            wait_seconds = begins_at + at - time.monotonic()
            if wait_seconds > 0.0:
                await asyncio.sleep(wait_seconds)
            requests.create_task(request(at, level))
    print(json.dumps(records), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
