"""The page in a real browser: it loads, it moves, and it shows what the fleet says."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.lab.browser.conftest import Complaints, Open
from tests.lab.browser.running import PATIENCE_SECONDS, Demo, Frame

pytestmark = pytest.mark.asyncio(loop_scope="package")

# High enough for everything to be in sight: what is not in sight is not drawn.
ALL_IN_SIGHT = 3200
# Chromium looks for a canvas' pixels in its compressed form, so this is what is painted.
PAINTED = "() => [...document.querySelectorAll('.chart canvas')].map((one) => one.toDataURL())"
CHARTS = 8


async def test_the_page_loads_without_a_complaint_and_without_another_host(
    open_page: Open, demo: Demo
) -> None:
    page = await open_page(height=ALL_IN_SIGHT)

    await expect(page.locator("#backends tbody tr")).to_have_count(8)
    await expect(page.locator("#clients tbody tr")).to_have_count(4)
    await expect(page.locator("#customers tbody tr:not([hidden])")).not_to_have_count(0)
    await expect(page.locator("#stories li")).to_have_count(6)
    await expect(page.locator(".chart canvas")).to_have_count(CHARTS)
    # `open_page` looks at what it asked for, and what it complained of.


async def test_every_panel_says_what_a_good_picture_looks_like(page: Page) -> None:
    panels = page.locator("#panels > .panel:not(#words)")

    names = await panels.evaluate_all("(all) => all.map((one) => one.id)")
    good = await panels.locator(".good").all_inner_texts()

    assert len(good) == len(names) == CHARTS + 3
    assert all(re.fullmatch(r"Good: .{20,}\.", text) for text in good)


async def test_all_charts_move(open_page: Open, calm: Demo) -> None:
    page = await open_page(height=ALL_IN_SIGHT)
    await expect(page.locator(".chart canvas")).to_have_count(CHARTS)
    await calm.next()
    before = await page.evaluate(PAINTED)

    # In calm the charts of refused requests have nothing to show.
    await page.get_by_role("button", name="load 5 times the capacity").click()

    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(one == other for one, other in zip(before, await page.evaluate(PAINTED))):  # noqa: B905
            await calm.next()
    refused = page.locator("#requests .legend li", has_text="refused").locator(".value")
    await expect(refused).to_have_text(re.compile(r"^[1-9]\d*/s$"), timeout=PATIENCE_SECONDS * 1000)


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def whole(value: float | None) -> str:
    return "–" if value is None else str(math.floor(value + 0.5))


def figures_of(frames: Sequence[Frame]) -> dict[str, str]:
    """What the page must show after these: averages over two seconds, which are four frames."""
    last = frames[-4:]
    wasted = mean([one["wasted"] for one in last])
    p99 = mean([one["latency_ms"] and one["latency_ms"]["p99"] for one in last])
    return {
        "Goodput": whole(mean([one["rates"]["ok"] for one in last])),
        "Wasted capacity": "–" if wasted is None else f"{whole(wasted * 100)} %",
        "Latency, p99": "–" if p99 is None else f"{whole(p99)} ms",
    }


READ_FIGURES = """() => Object.fromEntries([...document.querySelectorAll('.figure')].map((one) =>
    [one.querySelector('dt').textContent, one.querySelector('.value span').textContent]))"""


async def test_the_big_figures_are_those_of_the_frames(page: Page, demo: Demo) -> None:
    async def is_shown() -> bool:
        shown: dict[str, str] = await page.evaluate(READ_FIGURES)
        now = len(demo.frames)
        # The page may be a frame or two behind, or ahead of us.
        recent = [figures_of(demo.frames[:end]) for end in range(now - 3, now + 1)]
        return any(shown.items() >= wanted.items() for wanted in recent)

    await agreed(demo, is_shown)


READ_BACKENDS = """() => [...document.querySelectorAll('#backends tbody tr')].map((row) => ({
    name: row.querySelector('th').childNodes[1].textContent,
    pid: row.querySelector('.sub').textContent.match(/pid (\\d+)/)?.[1] ?? null,
    state: row.querySelector('.state').textContent.replace(/^\\S+ /, ''),
    utilization: row.querySelector('.bar-value').textContent,
    active: row.querySelector('[data-label=active]').textContent,
    metrics: row.querySelector('a').href,
}))"""


def backends_of(frame: Frame) -> list[dict[str, Any]]:
    return [
        {
            "name": one["name"],
            "pid": str(one["pid"]),
            "state": one["state"],
            "utilization": f"{whole(one['utilization'] * 100)} %",
            "active": whole(one["active"]),
            "metrics": one["metrics"],
        }
        for one in frame["backends"]
    ]


async def test_the_table_of_backends_is_that_of_the_frames(open_page: Open, demo: Demo) -> None:
    page = await open_page(height=ALL_IN_SIGHT)

    async def is_shown() -> bool:
        shown = await page.evaluate(READ_BACKENDS)
        return any(shown == backends_of(frame) for frame in demo.frames[-3:])

    await agreed(demo, is_shown)


async def agreed(demo: Demo, is_shown: Any) -> None:
    """Wait until the page shows one of the last frames: it is drawn a moment after it came."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_shown():
            await asyncio.sleep(0.1)


async def test_a_new_page_begins_with_what_happened_before_it_was_opened(
    page: Page, calm: Demo, open_page: Open
) -> None:
    await calm.control("load", load=0.55)
    said = page.locator("#events li", has_text="load × 0.55")
    await expect(said).to_have_count(1)

    other = await open_page()

    await expect(other.locator("#events li", has_text="load × 0.55")).to_have_count(1)


@pytest.mark.parametrize(
    ("fragment", "title"),
    [
        pytest.param("", "This page needs its token", id="none"),
        pytest.param("#token=", "This page needs its token", id="an empty one"),
        pytest.param("#token=guessed", "This token is not the right one", id="a wrong one"),
    ],
)
async def test_without_the_right_token_the_page_says_where_to_find_it(
    fragment: str, title: str, browser: Browser, demo: Demo
) -> None:
    page = await browser.new_page()
    complaints = Complaints(page)

    await page.goto(f"{demo.origin}/{fragment}")

    await expect(page.get_by_role("heading", name=title)).to_be_visible()
    await expect(page.locator("#no-token")).to_contain_text("Look at the terminal")
    await expect(page.locator("#page")).to_be_hidden()
    assert not any("/api/frames" in url for url in complaints.requests)
    assert [text for text in complaints.texts if "401" not in text] == []
    await page.close()


async def test_the_theme_is_the_system_s_until_the_button_says_otherwise(open_page: Open) -> None:
    page = await open_page(theme="dark")
    theme = page.locator("html")
    await expect(theme).to_have_attribute("data-theme", "dark")

    await page.get_by_role("button", name="Light theme").click()
    await expect(theme).to_have_attribute("data-theme", "light")
    await page.reload()

    await expect(theme).to_have_attribute("data-theme", "light")
    await expect(page.get_by_role("button", name="Dark theme")).to_be_visible()


async def test_a_demo_that_ends_is_said_to_have_ended(browser: Browser) -> None:
    demo = await Demo.start("--backends", "3", "--clients", "1")
    page = await browser.new_page()
    try:
        await page.goto(demo.url)
        await page.get_by_text("live", exact=True).wait_for()
        await expect(page.locator("#banner")).to_be_hidden()
    finally:
        code, left = await demo.interrupt()

    assert (code, left) == (0, [])
    await expect(page.locator("#banner")).to_contain_text("The demo does not answer")
    await expect(page.locator("#banner")).to_contain_text("What you see is old")
    await expect(page.locator("#connection")).to_have_text("not connected")
    await expect(page.get_by_role("button", name="Try now")).to_be_visible()
    await page.close()
