"""What another site in the same browser can do to the demo: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Error, Page

from tests.lab.browser.running import BLOCKED_HOST, Demo

pytestmark = pytest.mark.asyncio(loop_scope="package")

_PAGE = b"<!doctype html><html lang=en><title>elsewhere</title><p>Another site.</p></html>"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(_PAGE)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + _PAGE)
    await writer.drain()
    writer.close()


@pytest_asyncio.fixture(loop_scope="package")
async def elsewhere(browser: Browser) -> AsyncIterator[Page]:
    """A page of another origin: another port of this machine is one."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    page = await browser.new_page()
    await page.goto(f"http://127.0.0.1:{port}/")
    yield page
    await page.close()
    server.close()
    await server.wait_closed()


FETCH = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        return { type: answer.type, status: answer.status, text: await answer.text() };
    } catch (error) {
        return { type: 'error', status: 0, text: error.name };
    }
}"""

_BODY = '{"do": "load", "load": 10}'


async def test_another_site_cannot_read_the_frames_even_with_the_token(
    elsewhere: Page, demo: Demo
) -> None:
    with_token = {"headers": {"evenly-token": demo.token}}
    for path in ("/api/frames", "/api/describe"):
        url = f"{demo.origin}{path}"
        # The browser asks first, because of the header, and is refused.
        assert (await elsewhere.evaluate(FETCH, [url, with_token]))["type"] == "error"
        # It does not ask for this; but there is no answer that the page may read.
        blind = await elsewhere.evaluate(FETCH, [url, {"mode": "no-cors"}])
        assert blind["text"] in {"", "TypeError"}
        assert blind["type"] in {"opaque", "error"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"method": "POST", "body": _BODY}, id="a simple request"),
        pytest.param({"method": "POST", "body": _BODY, "mode": "no-cors"}, id="a blind request"),
        pytest.param(
            {"method": "POST", "body": _BODY, "headers": {"content-type": "application/json"}},
            id="as the page does, without the token",
        ),
        pytest.param(
            {"method": "POST", "body": _BODY, "headers": {"evenly-token": "THE TOKEN"}},
            id="with the token",
        ),
        pytest.param({"method": "GET"}, id="by reading"),
    ],
)
async def test_another_site_cannot_use_the_controls(
    options: dict[str, object], elsewhere: Page, demo: Demo
) -> None:
    if "evenly-token" in str(options):
        options = {**options, "headers": {"evenly-token": demo.token}}

    answer = await elsewhere.evaluate(FETCH, [f"{demo.origin}/api/control", options])

    assert answer["type"] in {"error", "opaque"}
    await demo.next()
    frame = await demo.next()  # The first may have been on its way.
    assert frame["settings"]["load"] == 0.7


async def test_a_form_of_another_site_changes_nothing(elsewhere: Page, demo: Demo) -> None:
    await elsewhere.set_content(
        f"""<form method=post enctype=text/plain action="{demo.origin}/api/control">
        <input name='{{"do": "load", "load": 10, "x": "' value='"}}'><button>go</button></form>"""
    )
    async with elsewhere.expect_navigation():
        await elsewhere.get_by_role("button").click()

    assert "is not the address of this dashboard" in await elsewhere.locator("body").inner_text()
    await demo.next()
    assert (await demo.next())["settings"]["load"] == 0.7


async def test_another_site_cannot_show_the_page_in_a_frame(elsewhere: Page, demo: Demo) -> None:
    loaded = await elsewhere.evaluate(
        """(url) => new Promise((resolve) => {
            const frame = document.createElement('iframe');
            frame.onload = () => resolve(true);
            frame.src = url;
            document.body.append(frame);
        })""",
        demo.url,
    )

    assert loaded  # Of an error page: the browser shows nothing of ours.
    inner = elsewhere.frames[1]
    assert not inner.url.startswith(demo.origin)


async def test_another_site_cannot_load_our_files_as_its_own(elsewhere: Page, demo: Demo) -> None:
    loaded = await elsewhere.evaluate(
        """(url) => new Promise((resolve) => {
            const script = document.createElement('script');
            script.onload = () => resolve(true);
            script.onerror = () => resolve(false);
            script.src = url;
            document.body.append(script);
        })""",
        f"{demo.origin}/static/vendor/uPlot.iife.min.js",
    )

    assert not loaded


async def test_a_name_that_points_here_is_not_our_name(browser: Browser, demo: Demo) -> None:
    """DNS rebinding: the browser takes it for one origin, and we must not."""
    port = urlsplit(demo.origin).port
    page = await browser.new_page()

    answer = await page.goto(f"http://{BLOCKED_HOST}:{port}/#token={demo.token}")

    assert answer is not None
    assert answer.status == 403
    described = await page.evaluate(
        FETCH, ["/api/describe", {"headers": {"evenly-token": demo.token}}]
    )
    assert described["status"] == 403
    await page.close()


async def test_localhost_is_our_name_too(browser: Browser, demo: Demo) -> None:
    page = await browser.new_page()

    await page.goto(demo.url.replace("127.0.0.1", "localhost"))

    await page.get_by_text("live", exact=True).wait_for()
    await page.close()


async def test_a_script_that_got_into_the_page_is_not_run(browser: Browser, demo: Demo) -> None:
    # Not the fixture's page: the browser complains, as it should.
    page = await browser.new_page()
    await page.goto(demo.url)

    with pytest.raises(Error, match="Content Security Policy"):
        await page.add_script_tag(content="window.isIn = true")

    assert await page.evaluate("() => window.isIn") is None
    await page.close()


async def test_the_page_keeps_the_token_to_itself(page: Page, demo: Demo) -> None:
    kept = await page.evaluate(
        "() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie]"
    )

    assert demo.token not in "".join(kept)
    assert demo.token not in await page.content()
