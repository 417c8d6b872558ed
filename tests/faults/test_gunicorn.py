"""What a client makes of workers that share an address and know nothing of one another.

.venv/bin/pytest -m faults -s tests/faults/test_gunicorn.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import evenly.http
from evenly.core.observer import Observer
from tests.http.gunicorn_process import WORKERS, Gunicorn, gunicorn
from tests.http.serve_process import until

pytestmark = pytest.mark.faults

CALLERS = 8
# A process that was taken for a former one is believed after five seconds.
LEARN_SECONDS = 5.5
MANY = 24
LOOK_SECONDS = 8.0


class Moves(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def backend_moved(self, address: str, state: str) -> None:
        self.seen.append((address, state))


class Traffic:
    def __init__(self, session: evenly.http.Session) -> None:
        self.sent: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._session = session
        self._tasks = [asyncio.ensure_future(self._call()) for _ in range(CALLERS)]

    async def _call(self) -> None:
        while True:
            try:
                response = await self._session.get("/?0.005")
                self.sent[response.backend] += 1
                if response.status != 200:
                    self.failures[str(response.status)] += 1
            except evenly.EvenlyError as error:
                self.failures[repr(error)] += 1
            await asyncio.sleep(0.02)

    async def shares(self, seconds: float) -> dict[str, float]:
        """Return which part each address gets, over so long."""
        self.sent.clear()
        await asyncio.sleep(seconds)
        return {address: sent / self.sent.total() for address, sent in self.sent.items()}

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def traffic_to(*backends: Gunicorn) -> AsyncIterator[tuple[Traffic, Moves]]:
    moves = Moves()
    target = "static:" + ",".join(backend.address for backend in backends)
    async with evenly.http.Session(target, observer=moves) as session:
        traffic = Traffic(session)
        try:
            # Connections keep to their workers: so many at a time reach all of them.
            for seconds in (0.0, LEARN_SECONDS, LEARN_SECONDS):
                await asyncio.sleep(seconds)
                await asyncio.gather(*(session.get("/?0.3") for _ in range(MANY)))
            moves.seen.clear()
            yield traffic, moves
        finally:
            await traffic.end()


PRELOAD = pytest.mark.parametrize("arguments", [(), ("--preload",)], ids=["each", "preload"])


@PRELOAD
async def test_a_worker_that_leaves_does_not_take_the_address_with_it(
    arguments: tuple[str, ...],
) -> None:
    async with (
        gunicorn(*arguments) as one,
        gunicorn(*arguments) as other,
        traffic_to(one, other) as (traffic, moves),
    ):
        calm = await traffic.shares(LOOK_SECONDS)
        await evenly_leaves(one)
        told = await traffic.shares(LOOK_SECONDS)
        pids = one.workers()
        os.kill(min(pids), signal.SIGTERM)
        await until(lambda: len(one.workers() - {min(pids)}) == WORKERS)
        killed = await traffic.shares(LOOK_SECONDS)

    print(f"share of the address: {calm[one.address]:.2f}; one worker a lame duck:", end=" ")
    print(f"{told[one.address]:.2f}; one replaced: {killed[one.address]:.2f}; {moves.seen}")
    assert moves.seen == []
    assert not traffic.failures
    # A fair half; of three workers one is new, and connections keep to theirs.
    assert min(calm[one.address], told[one.address], killed[one.address]) > 0.3


async def evenly_leaves(backend: Gunicorn) -> None:
    """Make one worker a lame duck, as its shutdown would if it served meanwhile."""
    async with evenly.http.Session(f"static:{backend.address}") as session:
        assert (await session.get("/?leave")).status == 200


async def test_workers_that_are_replaced_all_the_time_keep_their_address_its_share() -> None:
    recycled = ("--max-requests", "150", "--max-requests-jitter", "50")
    async with (
        gunicorn(*recycled) as one,
        gunicorn() as other,
        traffic_to(one, other) as (traffic, moves),
    ):
        before = one.workers()
        shares = await traffic.shares(3.0 * LOOK_SECONDS)
        replaced = len(before - one.workers())

    print(f"share of the address: {shares[one.address]:.2f}; {replaced} of {WORKERS} replaced")
    print(f"{moves.seen}, failures: {dict(traffic.failures)}")
    assert replaced
    assert not traffic.failures
    assert not [state for _, state in moves.seen if state == "lame duck"]
    # Often one of the three is starting; taken for a new process each time it would get a tenth.
    assert shares[one.address] > 0.2


async def test_an_address_whose_workers_all_leave_is_a_lame_duck() -> None:
    async with (
        gunicorn() as one,
        gunicorn() as other,
        traffic_to(one, other) as (traffic, moves),
    ):
        while not moves.seen:  # Each time some worker hears it.
            await evenly_leaves(one)
        shares = await traffic.shares(LOOK_SECONDS / 4)

    print(f"share of the address: {shares.get(one.address, 0.0):.2f}; {moves.seen}")
    assert moves.seen == [(one.address, "lame duck")]
    assert shares.get(one.address, 0.0) < 0.05
    assert not traffic.failures
