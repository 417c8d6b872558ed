"""Each story's button changes the fleet, and the page tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.lab.browser.conftest import Open
from tests.lab.browser.running import PATIENCE_SECONDS, Demo, Frame, is_calm
from tests.lab.browser.test_controls_in_page import backend_of, has_been, remember_states
from tests.lab.browser.test_page import ALL_IN_SIGHT

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATIENCE_MS = PATIENCE_SECONDS * 1000

WATCHED = "() => [...document.querySelectorAll('.is-watched')].map((one) => one.id)"


# What the page tells, each time that it changes; the panels are marked together with the text.
REMEMBER_STEPS = """() => {
    const story = document.querySelector('#story');
    const text = (id) => document.getElementById(id).textContent;
    window.toldSteps = [];
    window.telling?.disconnect();
    window.telling = new MutationObserver(() => window.toldSteps.push([
        text('story-title'), text('story-text'), text('story-step'),
        [...document.querySelectorAll('.is-watched')].map((one) => one.id).sort().join(),
    ]));
    window.telling.observe(story, { childList: true, characterData: true, subtree: true });
}"""
HAS_TOLD = """(step) => window.toldSteps.some((told) =>
    told.every((one, at) => one === step[at]))"""


async def begin(page: Page, demo: Demo, name: str) -> Frame:
    """Press its button; the page must tell what the fleet says."""
    story = await story_of(demo, name)
    since = len(demo.frames)
    await page.evaluate(REMEMBER_STEPS)

    await page.get_by_role("button", name=f"Start the story: {story['title']}").click()

    first = story["steps"][0]
    frame = await demo.until(
        lambda one: one["story"] is not None and one["story"]["text"] == first["text"], since=since
    )
    assert frame["story"]["name"] == name
    await has_told(page, story, 1)
    return frame


async def story_of(demo: Demo, name: str) -> dict[str, Any]:
    described = await demo.describe()
    story: dict[str, Any] = next(one for one in described["stories"] if one["name"] == name)
    return story


async def has_told(page: Page, story: dict[str, Any], number: int) -> None:
    """Wait for the page to have told a step: it may be over already, the first takes 5 s."""
    step = story["steps"][number - 1]
    count = f"step {number} of {len(story['steps'])}"
    told = [story["title"], step["text"], count, ",".join(sorted(step["panels"]))]
    await page.wait_for_function(HAS_TOLD, arg=told, timeout=PATIENCE_MS)


async def tells_its_second_step(page: Page, demo: Demo, name: str) -> None:
    await has_told(page, await story_of(demo, name), 2)


async def end(page: Page, demo: Demo) -> None:
    await page.get_by_role("button", name="End story").click()

    await demo.until(is_calm)
    await expect(page.locator("#story")).to_be_hidden()
    assert await page.evaluate(WATCHED) == []


def is_uneven(frame: Frame) -> bool:
    return bool(frame["settings"]["policy"] == "round_robin")


def has_a_sinkhole(frame: Frame) -> bool:
    b3 = backend_of(frame, "b3")
    return bool("fail" in b3["faults"] and b3["failed"] > 0)


def is_overloaded(frame: Frame) -> bool:
    return bool(frame["settings"]["load"] == 5.0 and frame["rates"]["refused"] > 0)


def is_noisy(frame: Frame) -> bool:
    wild = frame["customers"].get("wild")
    return bool(wild is not None and wild["refused"] > 0)


@pytest.mark.parametrize(
    ("name", "is_so", "shown"),
    [
        pytest.param("uneven", is_uneven, ("#events", "policy round_robin"), id="uneven"),
        pytest.param("sinkhole", has_a_sinkhole, ("#backends", "failing fast"), id="sinkhole"),
        pytest.param("overload", is_overloaded, ("#controls", "now × 5"), id="overload"),
        pytest.param("noisy-customer", is_noisy, ("#customers", "wild"), id="noisy customer"),
    ],
)
async def test_a_story_changes_the_fleet_and_the_page_shows_it(
    name: str,
    is_so: Callable[[Frame], bool],
    shown: tuple[str, str],
    open_page: Open,
    calm: Demo,
) -> None:
    page = await open_page(height=ALL_IN_SIGHT)
    await begin(page, calm, name)

    await calm.until(is_so)

    panel, words = shown
    await expect(page.locator(panel)).to_contain_text(words)
    await tells_its_second_step(page, calm, name)
    await end(page, calm)


async def test_the_deploy_makes_lame_ducks_and_new_processes(open_page: Open, calm: Demo) -> None:
    page = await open_page(height=ALL_IN_SIGHT)
    before = {one["name"]: one["pid"] for one in calm.last["backends"]}
    await remember_states(page)
    await begin(page, calm, "deploy")

    await has_been(page, None, "lame duck")

    frame = await calm.until(lambda one: backend_of(one, "b1")["pid"] not in {None, before["b1"]})
    await expect(page.locator("#backends")).to_contain_text(f"pid {backend_of(frame, 'b1')['pid']}")
    await tells_its_second_step(page, calm, "deploy")
    await end(page, calm)


async def test_the_retry_storm_goes_without_protection_until_it_is_ended(
    page: Page, calm: Demo
) -> None:
    frame = await begin(page, calm, "retry-storm")
    if frame["settings"]["is_protected"]:
        await calm.until(lambda one: not one["settings"]["is_protected"])
    protection = page.get_by_role("button", name="Protection")
    await expect(protection).to_have_attribute("aria-pressed", "false")

    await end(page, calm)

    assert calm.last["settings"]["is_protected"]
    await expect(protection).to_have_attribute("aria-pressed", "true")


async def test_a_story_takes_the_place_of_another(page: Page, calm: Demo) -> None:
    await begin(page, calm, "retry-storm")

    frame = await begin(page, calm, "noisy-customer")

    if not frame["settings"]["is_protected"]:
        await calm.until(lambda one: one["settings"]["is_protected"])
    await end(page, calm)


async def test_the_links_of_a_story_lead_to_its_panels_and_keep_the_token(
    page: Page, calm: Demo
) -> None:
    frame = await begin(page, calm, "sinkhole")
    links = page.locator("#story-panels a")
    await expect(links).to_have_count(len(frame["story"]["panels"]))

    await links.last.click()

    panel = page.locator(f"#{frame['story']['panels'][-1]}")
    await expect(panel).to_be_focused()
    await expect(panel).to_be_in_viewport()
    assert page.url == calm.url
    await end(page, calm)
