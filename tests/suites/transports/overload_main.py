"""Offer a service more than it can do: `python -m tests.suites.transports.overload_main JSON`.

A process of its own, so that the backends have one core to themselves and the client the other.  It
prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from evenly.core.criticality import Criticality
from tests.suites.transports.load import Answer, Load
from tests.suites.transports.transport import TRANSPORTS, Client

# One in ten is CRITICAL_PLUS: at 3 × the capacity, those are 0.3 of it and fit.
MIX = (
    Criticality.CRITICAL_PLUS,
    *[Criticality.CRITICAL] * 2,
    *[Criticality.SHEDDABLE_PLUS] * 3,
    *[Criticality.SHEDDABLE] * 4,
)


async def capacity(client: Client, *, seconds: float, at_a_time: int) -> float:
    """Return how many requests a second are served if some are always waiting."""
    ends: list[float] = []
    until = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < until:
            end, _, details = await client.send(Criticality.CRITICAL_PLUS, 10.0)
            assert end == "OK", details
            ends.append(time.monotonic())

    await asyncio.gather(*(ask() for _ in range(at_a_time)))
    # The first second is for connections and warm caches.
    begun_at = until - seconds + 1.0
    counted = [at for at in ends if begun_at <= at < until]
    return len(counted) / (until - begun_at)


async def offer(client: Client, per_second: float, seconds: float) -> list[Answer]:
    """Offer requests of all criticalities at a rate."""
    async with Load(client, per_second, mix=MIX, timeout_seconds=1.0) as load:
        await asyncio.sleep(seconds)
    return load.answers


async def run(options: dict[str, Any]) -> dict[str, Any]:
    os.sched_setaffinity(0, {options["core"]})
    transport, addresses = TRANSPORTS[options["transport"]], options["addresses"]
    made = (
        transport.plain_client(addresses)
        if options["is_plain"]
        else transport.client(addresses, None)
    )
    async with made as client:
        rate = await capacity(client, seconds=options["calm_seconds"], at_a_time=4)
        reference = max(rate, options.get("capacity", 0.0))
        await offer(client, 0.5 * reference, options["calm_seconds"])
        overload = asyncio.create_task(
            offer(client, options["times"] * reference, options["overload_seconds"])
        )
        await asyncio.sleep(options["overload_seconds"])
        ended_at = time.monotonic()
        after = await offer(client, 0.5 * reference, options["calm_seconds"])
        answers = await overload
    begun_at = ended_at - options["overload_seconds"]
    in_time = [a for a in answers if a.is_ok and begun_at <= a.ended_at < ended_at]
    served = {
        c.name: [a.is_ok for a in answers if a.criticality is c] for c in reversed(Criticality)
    }
    failed_at = [a.sent_at - ended_at for a in after if not a.is_ok]
    return {
        "capacity": rate,
        "goodput": len(in_time) / options["overload_seconds"] / reference,
        "served": {name: sum(oks) / max(1, len(oks)) for name, oks in served.items()},
        "requests": len(answers),
        "recovered_seconds": max(failed_at, default=0.0),
        "failed_after": len(failed_at),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))) + "\n")
