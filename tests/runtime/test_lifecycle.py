"""The order of a backend's life, with steps that the test ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from evenly.runtime.lifecycle import Echoes, Interruptions, is_first, live, signals_to
from evenly.testing import ManualClock

SECOND_SIGNAL = "second signal: stopping at once, 3 requests are cut off"
SOON = 20.0  # Nothing here takes so long, unless it hangs.


class Scripted:
    """A backend that notes its steps, and ends each of them when it is told to."""

    def __init__(self) -> None:
        self.active = 3
        self.steps: list[str] = []
        self.may_end = {name: asyncio.Event() for name in ("warm_up", "stopped", "drained", "stop")}

    async def start(self) -> None:
        self.steps.append("start")

    async def warm_up(self) -> None:
        await self._step("warm_up")

    def announce_healthy(self) -> None:
        self.steps.append("healthy")

    async def stopped(self) -> None:
        await self._step("stopped")

    def enter_lame_duck(self) -> None:
        if "lame duck" not in self.steps:
            self.steps.append("lame duck")

    async def drained(self) -> None:
        await self._step("drained")

    async def stop(self, grace: float | None) -> None:
        self.steps.append(f"stop {grace}")
        if grace is None:
            self.may_end["stop"].set()
        await self.may_end["stop"].wait()

    def close(self) -> None:
        self.steps.append("close")

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        await self.may_end[name].wait()

    async def begins(self, name: str) -> None:
        async with asyncio.timeout(SOON):
            while name not in self.steps:
                await asyncio.sleep(0)


def in_this_order(life: Scripted, interruptions: Interruptions) -> None:
    life.may_end["warm_up"].set()
    interruptions.put_nowait(None)


def in_the_other(life: Scripted, interruptions: Interruptions) -> None:
    interruptions.put_nowait(None)
    life.may_end["warm_up"].set()


@pytest.mark.parametrize("happen", [in_this_order, in_the_other])
async def test_a_signal_in_the_turn_in_which_the_warm_up_ends_is_not_lost(
    happen: Callable[[Scripted, Interruptions], None],
) -> None:
    life, interruptions = Scripted(), Interruptions()
    living = asyncio.ensure_future(live(life, interruptions, grace_seconds=3.0))
    await life.begins("warm_up")
    await asyncio.sleep(0)
    happen(life, interruptions)
    life.may_end["drained"].set()
    life.may_end["stop"].set()

    await asyncio.wait_for(living, SOON)
    assert life.steps[-4:] == ["lame duck", "drained", "stop 3.0", "close"]


async def signalled_once(life: Scripted, interruptions: Interruptions) -> asyncio.Future[None]:
    """Live until the drain has begun."""
    life.may_end["warm_up"].set()
    living = asyncio.ensure_future(live(life, interruptions, grace_seconds=3.0))
    await life.begins("stopped")
    interruptions.put_nowait(None)
    await life.begins("drained")
    return living


async def test_a_second_signal_as_the_drain_ends_cuts_the_grace_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    life, interruptions = Scripted(), Interruptions()
    living = await signalled_once(life, interruptions)
    await asyncio.sleep(0)
    interruptions.put_nowait(None)
    life.may_end["drained"].set()

    await asyncio.wait_for(living, SOON)
    assert life.steps[-4:] == ["drained", "stop 3.0", "stop None", "close"]
    assert SECOND_SIGNAL in caplog.messages


async def test_a_second_signal_says_how_many_requests_it_cuts_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    life, interruptions = Scripted(), Interruptions()
    living = await signalled_once(life, interruptions)
    interruptions.put_nowait(None)

    await asyncio.wait_for(living, SOON)
    assert life.steps[-3:] == ["drained", "stop None", "close"]
    assert caplog.messages.count(SECOND_SIGNAL) == 1


def test_a_signal_within_a_second_of_the_first_is_an_echo() -> None:
    clock = ManualClock()
    echoes = Echoes(clock=clock)

    assert not echoes.is_echo()
    assert echoes.is_echo()
    clock.advance(0.999)
    assert echoes.is_echo()
    clock.advance(0.001)  # Of the first, and not of the last.
    assert not echoes.is_echo()
    assert not echoes.is_echo()


async def test_echoes_of_a_signal_do_not_interrupt() -> None:
    clock, interruptions = ManualClock(), Interruptions()
    with signals_to(interruptions, clock=clock):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)  # Else the system makes one of two.
        assert interruptions.qsize() == 1
        clock.advance(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SOON):
            while interruptions.qsize() < 2:
                await asyncio.sleep(0.01)


async def test_of_two_signals_one_ends_a_step() -> None:
    interruptions = Interruptions()
    interruptions.put_nowait(None)
    interruptions.put_nowait(None)

    assert not await is_first(asyncio.Event().wait(), interruptions)
    assert interruptions.qsize() == 1


async def test_what_a_step_raises_is_raised_and_the_signal_stays() -> None:
    async def fails() -> None:
        raise ValueError("as asked")

    interruptions = Interruptions()
    interruptions.put_nowait(None)
    with pytest.raises(ValueError, match="as asked"):
        await is_first(fails(), interruptions)
    assert interruptions.qsize() == 1
