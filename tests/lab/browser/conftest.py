"""One demo and one browser for all tests here, and a page for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.lab.browser.running import PATIENCE_SECONDS, Demo, browsing

# One loop: a browser and its pages belong to the loop that began them.
together = pytest_asyncio.fixture(loop_scope="package", scope="package")
HEIGHT: Final = 900
# As `PATIENCE_SECONDS`: how long the page may take to show what it is told.
expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@together
async def demo() -> AsyncIterator[Demo]:
    demo = await Demo.start()
    try:
        yield demo
    finally:
        code, left = await demo.interrupt()
    assert (code, left) == (0, [])


@together
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


class Complaints:
    """What a page complained of, and what it asked for."""

    def __init__(self, page: Page) -> None:
        self.texts: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.texts.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.texts.append(f"{kind}: {text}")

    def hosts(self) -> set[str]:
        # A data: address, such as an icon's in the style sheet, asks nobody.
        asked = (urlsplit(url) for url in self.requests if not url.startswith("data:"))
        return {f"{one.scheme}://{one.netloc}" for one in asked}


Open = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="package")
async def open_page(browser: Browser, demo: Demo) -> AsyncIterator[Open]:
    """Open the demo in a window of its own; whatever a test does, no page may complain."""
    complaints: list[Complaints] = []
    async with AsyncExitStack() as stack:

        async def open_one(
            *, width: int = 1440, height: int = HEIGHT, theme: Any = "light"
        ) -> Page:
            context = await browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,
                reduced_motion="reduce",  # Nothing glides: what is scrolled to is there.
            )
            stack.push_async_callback(context.close)
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            page = await context.new_page()
            complaints.append(Complaints(page))
            await page.goto(demo.url)
            await page.get_by_text("live", exact=True).wait_for()
            return page

        yield open_one
    for one in complaints:
        assert one.texts == []
        assert one.hosts() == {demo.origin}
        # The token is in no address, or it would end up in logs.
        sent = [url for url in one.requests[1:] if demo.token in url]
        assert sent == []


@pytest_asyncio.fixture(loop_scope="package")
async def page(open_page: Open) -> Page:
    return await open_page()


@pytest_asyncio.fixture(loop_scope="package")
async def calm(demo: Demo) -> AsyncIterator[Demo]:
    """A fleet that may be hurt; it is as at the start afterwards."""
    yield demo
    await demo.calm()
