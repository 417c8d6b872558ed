"""The page is for everybody: by keyboard, by ear, on a phone, in the dark."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.lab.browser.conftest import Open
from tests.lab.browser.running import Demo
from tests.lab.browser.test_page import ALL_IN_SIGHT

pytestmark = pytest.mark.asyncio(loop_scope="package")

# Where the focus is, as a screen reader says it, and whether one can see that it is there.
FOCUSED = """() => {
    const one = document.activeElement;
    const label = one.getAttribute('aria-label') ?? one.labels?.[0]?.textContent
        ?? (one.getAttribute('aria-labelledby') ?? '').split(' ').filter(Boolean)
            .map((id) => document.getElementById(id).textContent).join(' ');
    const style = getComputedStyle(one);
    return {
        name: (label || one.textContent).replace(/\\s+/g, ' ').trim(),
        tag: one.tagName,
        isVisible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,
    };
}"""


async def tab_stops(page: Page) -> list[dict[str, Any]]:
    """Press Tab from the top of the page to its end."""
    stops: list[dict[str, Any]] = []
    for _ in range(200):
        await page.keyboard.press("Tab")
        stop = await page.evaluate(FOCUSED)
        # At the end Chromium leaves the page, or begins anew where it has no frame to go to.
        if stop["tag"] == "BODY" or stop in stops[:1]:
            return stops
        stops.append(stop)
    raise AssertionError(f"there is no end of {stops[-5:]}")


async def test_the_tab_key_reaches_every_control_in_the_order_of_reading(page: Page) -> None:
    stops = await tab_stops(page)
    names = [stop["name"] for stop in stops]

    assert [stop["name"] for stop in stops if not stop["isVisible"]] == []
    wanted = [
        "Skip to the charts",
        "Dark theme",
        "Start the story: Uneven machines",
        "Start the story: A noisy customer",
        "load 0.5 times the capacity",
        "load 10 times the capacity",
        "Protection on",
        "Wild customer off",
        "Policy",
        "Throttle",
        "Rolling restart",
        "Reset all",
        "What happened",
        *(
            f"{deed} {backend}"
            for backend in ("b1", "b8")
            for deed in (
                "kill −9: end at once",
                "SIGTERM: drain and restart",
                "STOP: freeze",
                "slow: four times slower,",
                "fast-fail: answer with errors at once,",
            )
        ),
    ]
    assert [name for name in names if name in wanted] == wanted
    controls = await page.locator("button:visible, select:visible").count()
    assert sum(stop["tag"] in {"BUTTON", "SELECT"} for stop in stops) == controls


async def test_enter_and_space_operate_what_has_the_focus(page: Page, calm: Demo) -> None:
    await page.get_by_role("button", name="load 0.5 times the capacity").focus()
    await page.keyboard.press("Enter")
    await calm.until(lambda one: one["settings"]["load"] == 0.5)

    await page.get_by_role("button", name="Protection").focus()
    await page.keyboard.press("Space")
    await calm.until(lambda one: not one["settings"]["is_protected"])
    # A button that loses the focus when it is redrawn throws people to the top of the page.
    await expect(page.get_by_role("button", name="Protection")).to_be_focused()

    policy = page.get_by_label("Policy", exact=True)
    before = await policy.input_value()
    await policy.focus()
    await page.keyboard.press("ArrowUp")
    await calm.until(lambda one: one["settings"]["policy"] != before)


async def test_the_skip_link_leads_to_the_charts_and_keeps_the_token(
    page: Page, demo: Demo
) -> None:
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")

    await expect(page.locator("#panels")).to_be_focused()
    assert page.url == demo.url


async def accessible(page: Page) -> list[tuple[str, str]]:
    """Role and name of everything, as the browser tells them to a screen reader."""
    session = await page.context.new_cdp_session(page)
    tree = await session.send("Accessibility.getFullAXTree")
    await session.detach()
    return [
        (str(node.get("role", {}).get("value")), str(node.get("name", {}).get("value", "")))
        for node in tree["nodes"]
        if not node["ignored"]
    ]


async def test_whatever_can_be_operated_or_seen_has_a_name(open_page: Open) -> None:
    page = await open_page(height=ALL_IN_SIGHT)
    await expect(page.locator(".chart canvas")).to_have_count(8)

    nodes = await accessible(page)

    named = {"button", "link", "combobox", "image", "img", "table", "region"}
    assert [node for node in nodes if node[0] in named and not node[1]] == []
    roles = [role for role, _ in nodes]
    assert roles.count("combobox") == 2
    assert roles.count("image") + roles.count("img") == 8  # The charts: a canvas says nothing.
    buttons = [name for role, name in nodes if role == "button"]
    assert sorted(set(buttons)) == sorted(buttons)  # Each can be asked for by its name.


async def test_a_chart_says_in_words_what_it_shows(open_page: Open) -> None:
    page = await open_page(height=ALL_IN_SIGHT)

    for chart in await page.locator(".chart").all():
        words = page.locator(f"#{await chart.get_attribute('aria-describedby')}")
        await expect(words).to_contain_text(
            re.compile(r"\d.* (and|to) .*\d|refuse .*; clients hold back ")
        )


async def test_headings_are_in_order_and_ids_are_unique(page: Page, calm: Demo) -> None:
    await calm.control("story", story="uneven")
    await expect(page.locator("#story")).to_be_visible()

    levels = await page.evaluate(
        """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]
            .filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"""
    )
    ids = await page.evaluate("() => [...document.querySelectorAll('[id]')].map((one) => one.id)")

    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper <= level + 1 for level, deeper in itertools.pairwise(levels))
    assert sorted(set(ids)) == sorted(ids)
    assert await page.locator("html").get_attribute("lang") == "en"


# What sticks out to the right, unless it is in a box that can be scrolled by itself; and words that
# are wider than their button.
STICKING_OUT = """() => {
    const isScroller = (one) => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX);
    const isScrolled = (one) =>
        one !== document.body && (isScroller(one) || isScrolled(one.parentElement));
    const right = document.documentElement.clientWidth + 0.5;
    return [...document.querySelectorAll('body *')]
        .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > right)
        .filter((one) => !one.closest('.unseen, caption, .skip') && !isScrolled(one.parentElement))
        .map((one) => one.outerHTML.slice(0, 80));
}"""
CUT_OFF = """() => [...document.querySelectorAll('button, dt, dd, h1, h2, h3')].filter((one) =>
    one.checkVisibility() && !one.closest('.unseen') && !one.classList.contains('unseen')
    && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')
    .map((one) => one.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("width", [360, 768, 1440])
async def test_nothing_is_wider_than_the_window(width: int, open_page: Open, calm: Demo) -> None:
    page = await open_page(width=width)
    await calm.control("wild", is_on=True)  # More to show in every panel.

    for has_story in (False, True):
        if has_story:
            await calm.control("story", story="noisy-customer")
            await expect(page.locator("#story")).to_be_visible()
        for panel in await page.locator(".panel").all():
            await panel.scroll_into_view_if_needed()
        width_of_all = await page.evaluate("() => document.scrollingElement.scrollWidth")
        assert width_of_all <= width
        assert await page.evaluate(STICKING_OUT) == []
        assert await page.evaluate(CUT_OFF) == []


# WCAG 2.2, 1.4.3: the contrast of each text with what is behind it.  A colour with alpha, and the
# opacity of a box, are mixed with what is behind.
CONTRASTS = """() => {
    const parse = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const over = (top, below) =>
        [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const luminance = (colour) => {
        const [r, g, b] = colour.map((one) => linear(one / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => (one === null ? [255, 255, 255, 1]
        : over(parse(getComputedStyle(one).backgroundColor), behind(one.parentElement)));
    const opacity = (one) => (one === null ? 1
        : Number(getComputedStyle(one).opacity) * opacity(one.parentElement));
    const hasText = (one) =>
        [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '');
    // A dot that says "not in the subset" says it by not being a sign; ears get words.
    const others = '.unseen, caption, option, .mark.is-out, .skip';
    return [...document.querySelectorAll('body *')]
        .filter((one) => one.checkVisibility() && hasText(one) && !one.closest(others))
        .map((one) => {
            const back = behind(one);
            const ink = parse(getComputedStyle(one).color);
            const front = over([ink[0], ink[1], ink[2], ink[3] * opacity(one)], back);
            const [more, less] = [luminance(front), luminance(back)].sort((x, y) => y - x);
            return { ratio: (more + 0.05) / (less + 0.05), html: one.outerHTML.slice(0, 100) };
        });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_text_can_be_read(theme: str, open_page: Open, calm: Demo) -> None:
    page = await open_page(theme=theme, height=ALL_IN_SIGHT)
    await calm.control("slow", backend="b2", is_on=True)
    await calm.control("story", story="uneven")
    await expect(page.locator("#story")).to_be_visible()
    await calm.control("slow", backend="b2", is_on=True)
    await expect(page.locator("#backends")).to_contain_text("slowed 4 ×")

    contrasts = await page.evaluate(CONTRASTS)

    assert len(contrasts) > 200  # It did find the texts.
    assert [one for one in contrasts if one["ratio"] < 4.5] == []
