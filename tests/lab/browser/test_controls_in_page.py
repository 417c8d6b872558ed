"""Each control of the page does something to real processes, and the page shows it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.lab.browser.conftest import Open
from tests.lab.browser.running import PATIENCE_SECONDS, Demo, Frame
from tests.lab.browser.test_page import ALL_IN_SIGHT

pytestmark = pytest.mark.asyncio(loop_scope="package")

PATIENCE_MS = PATIENCE_SECONDS * 1000


def backend_of(frame: Frame, name: str) -> dict[str, Any]:
    return next(one for one in frame["backends"] if one["name"] == name)


def row_of(page: Page, name: str) -> Locator:
    return page.locator("#backends tbody tr").filter(
        has=page.get_by_role("rowheader", name=name, exact=False)
    )


async def press(page: Page, label: str, backend: str) -> Locator:
    button = row_of(page, backend).get_by_role("button", name=label)
    await button.click()
    return button


async def said(page: Page, text: str) -> None:
    """The log says so, and that it was you."""
    await expect(page.locator("#events li", has_text=f"You: {text}").first).to_be_attached()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def has_stopped(pid: int) -> None:
    """Wait for it: a process stops when it would run next, which may be after it was told so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while state_of(pid) != "T":
            await asyncio.sleep(0.01)


async def test_kill_9_ends_a_process_and_another_takes_its_place(page: Page, calm: Demo) -> None:
    pid = backend_of(calm.last, "b3")["pid"]
    await row_of(page, "b3").scroll_into_view_if_needed()
    await remember_states(page)

    await press(page, "kill −9", "b3")

    await has_been(page, "b3", "down", "no process")
    assert pid not in processes()
    frame = await calm.until(
        lambda one: (now := backend_of(one, "b3"))["state"] == "healthy" and now["pid"] != pid
    )
    new = backend_of(frame, "b3")["pid"]
    await expect(row_of(page, "b3")).to_contain_text(f"pid {new}")
    await expect(row_of(page, "b3").locator(".state")).to_contain_text("healthy")
    await said(page, "b3: SIGKILL")


def processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208


async def test_sigterm_makes_a_lame_duck_and_then_a_new_process(page: Page, calm: Demo) -> None:
    pid = backend_of(calm.last, "b4")["pid"]
    failed_before = sum(one["rates"]["failed"] for one in calm.frames)
    await row_of(page, "b4").scroll_into_view_if_needed()
    await remember_states(page)

    await press(page, "SIGTERM", "b4")

    await has_been(page, "b4", "lame duck")
    frame = await calm.until(
        lambda one: (now := backend_of(one, "b4"))["state"] == "healthy" and now["pid"] != pid
    )
    await expect(row_of(page, "b4")).to_contain_text(f"pid {backend_of(frame, 'b4')['pid']}")
    assert sum(one["rates"]["failed"] for one in calm.frames) == failed_before
    await said(page, "b4: SIGTERM")


async def remember_states(page: Page) -> None:
    """Remember what every row shows from now on: some of it is shown for a second only."""
    await page.evaluate(
        """() => {
            const body = document.querySelector('#backends tbody');
            window.shownRows = [];
            const look = () => window.shownRows.push(...[...body.rows].map((row) => [
                row.querySelector('th').childNodes[1].textContent,
                row.querySelector('.state').textContent,
                row.textContent,
            ]));
            new MutationObserver(look).observe(
                body, { childList: true, characterData: true, subtree: true });
        }"""
    )


async def has_been(page: Page, backend: str | None, state: str, pid: str = "") -> None:
    """Wait for a backend, or any of them, to have been shown in this state since then."""
    await page.wait_for_function(
        """([who, state, pid]) => window.shownRows.some(([name, shown, text]) =>
            (who === null || name === who) && shown.endsWith(state) && text.includes(pid))""",
        arg=[backend, state, pid],
        timeout=PATIENCE_MS,
    )


async def test_a_rolling_restart_begins_with_the_first(page: Page, calm: Demo) -> None:
    before = pids_of(calm.last)
    since = len(calm.frames)  # What it does may have begun when the click is over.

    await page.get_by_role("button", name="Rolling restart").click()

    await calm.until(lambda one: backend_of(one, "b1")["state"] == "lame duck", since=since)
    frame = await calm.until(
        lambda one: backend_of(one, "b1")["pid"] not in {None, before["b1"]}, since=since
    )
    assert pids_of(frame) | {"b1": before["b1"]} == before  # One after the other.
    await said(page, "rolling restart")


def pids_of(frame: Frame) -> dict[str, int | None]:
    return {one["name"]: one["pid"] for one in frame["backends"]}


async def test_stop_freezes_a_process_and_cont_thaws_it(page: Page, calm: Demo) -> None:
    pid = backend_of(calm.last, "b5")["pid"]

    await press(page, "STOP", "b5")

    await calm.until(lambda one: backend_of(one, "b5")["state"] == "stopped")
    await has_stopped(pid)
    await expect(row_of(page, "b5").locator(".state")).to_contain_text("stopped")
    await press(page, "CONT", "b5")  # The same button: it says what it would do.

    frame = await calm.until(lambda one: backend_of(one, "b5")["state"] == "healthy")
    assert backend_of(frame, "b5")["pid"] == pid
    assert state_of(pid) != "T"
    await expect(row_of(page, "b5").locator(".state")).to_contain_text("healthy")
    await said(page, "b5: SIGCONT")


@pytest.mark.parametrize(
    ("label", "fault", "words"),
    [("slow", "slow", "slowed 4 ×"), ("fast-fail", "fail", "failing fast")],
)
async def test_a_fault_is_switched_on_and_off(
    label: str, fault: str, words: str, page: Page, calm: Demo
) -> None:
    backend = "b6"
    button = await press(page, label, backend)

    await calm.until(lambda one: backend_of(one, backend)["faults"] == [fault])
    if fault == "fail":
        await calm.until(lambda one: backend_of(one, backend)["failed"] > 0)
    else:
        assert calm.last["capacity_now"] < calm.last["capacity"]
    await expect(row_of(page, backend).locator(".faults")).to_have_text(words)
    await expect(button).to_have_attribute("aria-pressed", "true")

    await button.click()

    await calm.until(lambda one: backend_of(one, backend)["faults"] == [])
    await expect(row_of(page, backend).locator(".faults")).to_have_text("")
    await expect(button).to_have_attribute("aria-pressed", "false")


async def test_load_changes_what_is_asked_for(page: Page, calm: Demo) -> None:
    capacity = calm.last["capacity"]
    button = page.get_by_role("button", name="load 2 times the capacity")

    await button.click()

    frame = await calm.until(lambda one: one["settings"]["load"] == 2.0)
    assert frame["offered"] == pytest.approx(2 * capacity)
    # Half of it cannot be served; the first of it is refused long before it is half.
    await calm.until(lambda one: one["rates"]["asked"] > 1.5 * capacity)
    await calm.until(lambda one: one["rates"]["refused"] > 0)
    await expect(button).to_have_attribute("aria-pressed", "true")
    await expect(page.locator("#controls legend")).to_contain_text("now × 2")
    await expect(page.get_by_role("button", name="load 0.7 times")).to_have_attribute(
        "aria-pressed", "false"
    )


@pytest.mark.parametrize(
    ("label", "control", "choice"),
    [("Policy", "policy", "round_robin"), ("Throttle", "throttle", "off")],
)
async def test_policy_and_throttle_are_changed_live(
    label: str, control: str, choice: str, page: Page, calm: Demo
) -> None:
    select = page.get_by_label(label, exact=True)
    usual = calm.last["settings"][control]

    await select.select_option(choice)

    await calm.until(lambda one: one["settings"][control] == choice)
    await said(page, f"{control} {choice}")
    await calm.control("reset")
    await expect(select).to_have_value(usual)  # It follows what others do, too.


async def test_protection_is_switched_off_and_on(page: Page, calm: Demo) -> None:
    button = page.get_by_role("button", name="Protection")
    await expect(button).to_have_attribute("aria-pressed", "true")

    await button.click()

    await calm.until(lambda one: not one["settings"]["is_protected"])
    await expect(button).to_have_attribute("aria-pressed", "false")

    await button.click()

    await calm.until(lambda one: one["settings"]["is_protected"])
    await expect(button).to_have_attribute("aria-pressed", "true")


async def test_a_customer_runs_wild_and_only_it_is_refused(open_page: Open, calm: Demo) -> None:
    page = await open_page(height=ALL_IN_SIGHT)
    button = page.get_by_role("button", name="Wild customer")

    await button.click()

    await calm.until(lambda one: one["customers"].get("wild", {"refused": 0})["refused"] > 0)
    await expect(button).to_have_attribute("aria-pressed", "true")
    wild = page.locator("#customers tbody tr", has_text="wild")
    await expect(wild).to_be_visible()
    await expect(wild.locator("[data-label=refused]")).not_to_have_text("0/s")

    await button.click()

    await calm.until(lambda one: not one["settings"]["is_wild"])
    await expect(button).to_have_attribute("aria-pressed", "false")


async def test_reset_puts_everything_back(page: Page, calm: Demo) -> None:
    await calm.control("load", load=2.0)
    await calm.control("slow", backend="b2", is_on=True)
    await calm.until(lambda one: backend_of(one, "b2")["faults"] == ["slow"])

    await page.get_by_role("button", name="Reset all").click()

    frame = await calm.until(lambda one: one["settings"]["load"] == 0.7)
    assert backend_of(frame, "b2")["faults"] == []
    await said(page, "everything is as at the start")


async def test_what_cannot_be_done_is_said_beside_the_button(browser: Browser, calm: Demo) -> None:
    # Not the fixture's page: the browser itself complains of the status 422.
    page = await browser.new_page()
    await page.goto(calm.url)
    await calm.control("rolling_restart")

    await page.get_by_role("button", name="Rolling restart").click()

    problem = page.locator("#controls").get_by_role("alert")
    await expect(problem).to_contain_text("Not done: rolling_restart must be the only one")
    await page.get_by_role("button", name="Close this message").click()
    await expect(problem).to_be_hidden()
    await page.close()
