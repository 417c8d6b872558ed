"""Run the stack, overload its bottom, and count: `python -m examples.grpc.stack.run`.

Users send through a channel of gRPC's own: they need not know of evenly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

import grpc
import grpc.aio

from examples.grpc.stack.processes import Stack
from examples.grpc.stack.stack_pb2 import Item
from examples.grpc.stack.stack_pb2_grpc import ShopStub

# Few, so that a laptop that does other things too does not shed for that: five processes share it.
PER_SECOND: Final = 20
# Where the DB frontend refuses SHEDDABLE requests, and where it refuses everything: see layer.py.
BUSY: Final = 0.85
TOO_BUSY: Final = 1.2
_DISK_SECONDS: Final = 1.0  # until the DB frontends have noticed
_TIMEOUT_SECONDS: Final = 20.0
_RECOVERY_SECONDS: Final = 60.0
_TEA: Final = Item(name="tea")

Send = Callable[[ShopStub], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Say what became of the requests of one part of the story."""

    story: str
    fresh: int
    """Shows answered from the database ..."""
    old: int
    """... by something degraded ..."""
    not_shown: int
    """... and not at all."""
    bought: int
    not_bought: int
    at_a: int
    """Requests that arrived there, refused ones included."""
    at_b: int
    at_db_frontend: int
    log: tuple[str, ...]
    """What the layers logged of the first show and the first buy."""

    @property
    def sent(self) -> int:
        """How many requests users sent."""
        return self.fresh + self.old + self.not_shown + self.bought + self.not_bought


async def show(shop: ShopStub) -> str:
    """Ask for a price; return how that went."""
    call = shop.Show(_TEA, timeout=_TIMEOUT_SECONDS)
    try:
        await call
    except grpc.aio.AioRpcError:
        return "not_shown"
    return "old" if (await call.trailing_metadata()).get("evenly-degraded") else "fresh"


async def buy(shop: ShopStub) -> str:
    """Buy something; return how that went."""
    try:
        await shop.Buy(_TEA, timeout=_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError:
        return "not_bought"
    return "bought"


async def watch(stack: Stack, story: str, seconds: float, *sends: Send) -> Row:
    """Have users send for a while, and count what becomes of it."""
    arrived_before = stack.arrivals.copy()
    logged_before = len(stack.lines)
    ends: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(stack.frontend) as channel:
        shop = ShopStub(channel)
        for send in sends:  # one by one, for a log that can be read
            ends[await send(shop)] += 1
        await stack.logged()
        log = tuple(stack.lines[logged_before:])
        users = []
        for number in range(round(seconds * PER_SECOND)):
            users.append(asyncio.ensure_future(sends[number % len(sends)](shop)))
            await asyncio.sleep(1 / PER_SECOND)
        ends.update(await asyncio.gather(*users))
    await stack.logged()
    arrived = stack.arrivals - arrived_before
    return Row(
        story=story,
        fresh=ends["fresh"],
        old=ends["old"],
        not_shown=ends["not_shown"],
        bought=ends["bought"],
        not_bought=ends["not_bought"],
        at_a=arrived["a"],
        at_b=arrived["b"],
        at_db_frontend=arrived["db-frontend"],
        log=log,
    )


async def recover(stack: Stack) -> None:
    """Have users send until ten in a row get what they want."""
    async with grpc.aio.insecure_channel(stack.frontend) as channel:
        shop = ShopStub(channel)
        in_a_row = 0
        async with asyncio.timeout(_RECOVERY_SECONDS):
            while in_a_row < 10:
                is_good = await show(shop) == "fresh" and await buy(shop) == "bought"
                in_a_row = in_a_row + 1 if is_good else 0
                await asyncio.sleep(2 / PER_SECOND)


async def tell(seconds: float) -> tuple[list[Row], dict[str, int]]:
    """Return the story row by row, and with which status each layer exited."""
    rows = []
    async with Stack() as stack:
        rows.append(await watch(stack, "serves", seconds, show, buy))
        for story, disk in (("refuses SHEDDABLE", BUSY), ("refuses everything", TOO_BUSY)):
            stack.set_disks(disk, disk)
            await asyncio.sleep(_DISK_SECONDS)
            rows.append(await watch(stack, story, seconds, show, buy))
        stack.set_disks(0.0, 0.0)
        await recover(stack)
        rows.append(await watch(stack, "serves again", seconds, show, buy))
    async with Stack(throttle="off") as unthrottled:
        unthrottled.set_disks(TOO_BUSY, TOO_BUSY)
        await asyncio.sleep(_DISK_SECONDS)
        story = "refuses everything; throttles off"
        rows.append(await watch(unthrottled, story, seconds, show, buy))
    async with Stack(is_plain=True) as plain:
        rows.append(await watch(plain, "refuses everything; gRPC's retries", seconds, buy))
    return rows, stack.exit_statuses


def table(rows: list[Row]) -> str:
    """Return the rows for the terminal."""
    heads = ("fresh", "old", "failed", "done", "failed", "A", "B")
    lines = [
        f"{'':35}{'shows':^24}{'buys':^16}{'arrivals per request at':>29}",
        f"{'the DB frontend …':35}{''.join(f'{head:>8}' for head in heads)}{'DB frontend':>13}",
    ]
    lines += [
        f"{row.story:35}{row.fresh:8}{row.old:8}{row.not_shown:8}{row.bought:8}{row.not_bought:8}"
        f"{row.at_a / row.sent:8.2f}{row.at_b / row.sent:8.2f}{row.at_db_frontend / row.sent:13.2f}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of traffic for each row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, exit_statuses = asyncio.run(tell(options.seconds))
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "exit_statuses": exit_statuses}))
        return
    for row in rows[:3]:
        print(f"One show and one buy; the DB frontend {row.story}:", *row.log, "", sep="\n")
    print(table(rows))


if __name__ == "__main__":
    main()
