"""What the demo and its page cost: less than one core, and less than a twentieth of one."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable

import pytest

from tests.lab.browser.running import (
    Demo,
    browser_processes,
    browsing,
    marked_processes,
    processor_seconds,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="package")]

_WINDOW_SECONDS = 30.0
_SETTLE_SECONDS = 5.0
_ROUNDS = 3


async def cores_used(processes: Callable[[], Iterable[int]]) -> float:
    """CPU time of these, per second of the window."""
    began_at, began = time.monotonic(), processor_seconds(processes())
    await asyncio.sleep(_WINDOW_SECONDS)
    return (processor_seconds(processes()) - began) / (time.monotonic() - began_at)


async def browser_cores(address: str) -> float:
    others = browser_processes()
    async with browsing() as browser:
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(address)
        await asyncio.sleep(_SETTLE_SECONDS)
        # The browser, its zygotes and helpers, and at least one that draws the page.
        assert len(browser_processes() - others) >= 4
        return await cores_used(lambda: browser_processes() - others)


async def test_the_page_costs_less_than_a_twentieth_of_a_core(demo: Demo) -> None:
    # Each round beside one with an empty page: a browser costs something by itself.
    empty, page = [], []
    for _ in range(_ROUNDS):
        empty.append(await browser_cores("about:blank"))
        page.append(await browser_cores(demo.url))
    cost = statistics.median(page) - statistics.median(empty)
    report = f"the page {page}, an empty one {empty}, in cores"
    print(f"\npage: {cost:.3f} cores ({report})")  # noqa: T201 -- the figure is the point

    assert cost < 0.05, report


async def test_the_demo_costs_less_than_a_core_at_five_times_its_capacity(calm: Demo) -> None:
    await calm.control("load", load=5.0)
    await asyncio.sleep(_SETTLE_SECONDS)

    cores = [await cores_used(lambda: marked_processes(calm.mark)) for _ in range(_ROUNDS)]

    print(f"\ndemo at 5 ×: {cores} cores")  # noqa: T201 -- the figure is the point
    assert statistics.median(cores) < 1.0
