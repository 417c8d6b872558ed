"""Watch a discovery step by step: its sleep ends when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from evenly.core.balancing.backend import Backend
from evenly.discovery.target import Discovery

# Only so that a broken test ends: nothing here takes a second.
PATIENCE_SECONDS = 20.0


class Watching:
    """Collect the lists that a discovery yields, and how long it sleeps after each look."""

    def __init__(self) -> None:
        self.lists: list[Sequence[Backend]] = []
        self.delays: list[float] = []
        self._asleep: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self._sleeper: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        sleeper = asyncio.get_running_loop().create_future()
        self._asleep.put_nowait(sleeper)
        await sleeper

    async def step(self) -> None:
        """Let it wake, look and fall asleep again; the first step is its first look."""
        if self._sleeper is not None:
            self._sleeper.set_result(None)
        self._sleeper = await asyncio.wait_for(self._asleep.get(), PATIENCE_SECONDS)

    async def step_until(self, count: int) -> None:
        """Step until there were `count` lists: on a busy machine a short time-out may strike."""
        for _ in range(100):
            if len(self.lists) >= count:
                return
            await self.step()
        raise AssertionError(f"{len(self.lists)} lists after 100 steps, not {count}")

    async def collect(self, discovery: Discovery) -> None:
        async for backends in discovery.watch():
            self.lists.append(backends)

    @property
    def addresses(self) -> list[list[str]]:
        return [[backend.address for backend in backends] for backends in self.lists]

    @property
    def indexed(self) -> list[list[tuple[int | None, str]]]:
        return [[(backend.index, backend.address) for backend in one] for one in self.lists]


@contextlib.asynccontextmanager
async def watching(make: Callable[[Watching], Discovery]) -> AsyncIterator[Watching]:
    """Watch what `make` returns; leave nothing running."""
    before = asyncio.all_tasks()
    steps = Watching()
    task = asyncio.create_task(steps.collect(make(steps)))
    try:
        yield steps
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before
