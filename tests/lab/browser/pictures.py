"""Take the pictures of the README and the docs: `python -m tests.lab.browser.pictures [STORY ...]`.

Each of the six stories is played on a real fleet, and its picture taken when it tells most.  This
takes about eight minutes; nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from PIL import Image
from playwright.async_api import Browser, Page

from tests.lab.browser.running import Demo, Frame, browsing, is_calm

__all__ = ["main"]

FOLDER: Final = Path(__file__).parents[3] / "docs" / "images"
WIDTH: Final = 1280
MOST_BYTES: Final = 300_000
_FEW: Final = 4
_QUIET_SECONDS: Final = 15.0
_FULL_SECONDS: Final = 80.0
"""Two thirds of what the charts show."""
_DRAWN_MS: Final = 600.0
"""A frame is drawn a moment after it came."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Say when to take it, and what of the page."""

    story: str
    step: int
    """The step in which it is taken, from 0."""
    seconds: float
    """How long after that step began."""
    panels: Mapping[str, int]
    """What is shown below the story's text, each with how many of six columns it takes."""
    is_so: Callable[[Sequence[Frame]], bool] = bool
    """What the last frames must show as well; without it the picture is not taken."""
    state: str = ""
    """The state that the page must show of a backend at that moment, if any."""


def _backend(frame: Frame, name: str) -> Frame:
    found: Frame = next(one for one in frame["backends"] if one["name"] == name)
    return found


def _is_refusing(frames: Sequence[Frame]) -> bool:
    return all(one["refused_by"]["throttled"] > 0 for one in frames)


PICTURES: Final = (
    Picture(
        story="uneven",
        step=3,
        seconds=10.0,
        panels={"utilization": 3, "latency": 3, "backends": 6},
    ),
    Picture(
        story="sinkhole",
        step=1,
        seconds=12.0,
        panels={"utilization": 3, "requests": 3, "backends": 6},
        is_so=lambda frames: all("fail" in _backend(one, "b3")["faults"] for one in frames),
    ),
    Picture(
        story="deploy",
        step=1,
        seconds=4.0,
        panels={"requests": 3, "clients": 3, "backends": 6},
        state="lame duck",
    ),
    Picture(
        story="overload",
        step=3,
        seconds=8.0,
        panels={"requests": 3, "refused-now": 3, "refused-criticality": 3, "refused-where": 3},
        is_so=_is_refusing,
    ),
    Picture(
        story="retry-storm",
        step=3,
        seconds=13.0,
        panels={"requests": 3, "attempts": 3, "latency": 3, "active": 3},
    ),
    Picture(
        story="noisy-customer",
        step=2,
        seconds=10.0,
        panels={"requests": 3, "refused-where": 3, "customers": 3, "latency": 3},
        is_so=lambda frames: all(one["customers"]["wild"]["refused"] > 0 for one in frames),
    ),
)


# The figures, the story and some panels, in rows without holes: what a reader should look at.
_SHOW_ONLY = """(panels) => {
    const names = Object.keys(panels);
    for (const panel of document.querySelectorAll('.panel')) {
        panel.style.display = names.includes(panel.id) ? '' : 'none';
        panel.style.gridColumn = `span ${panels[panel.id]}`;
        panel.style.order = names.indexOf(panel.id);
    }
    for (const part of document.querySelectorAll('.top, .side, #tour, #cost')) {
        part.style.display = 'none';
    }
    for (const chart of document.querySelectorAll('.chart')) {
        chart.style.height = '13rem';
    }
    document.querySelector('.columns').style.gridTemplateColumns = 'minmax(0, 1fr)';
    document.body.style.paddingTop = '0.75rem';
    document.getElementById('story').style.margin = '0.75rem 0';
}"""
_HAS_STATE = """(state) => [...document.querySelectorAll('#backends .state')]
    .some((one) => one.textContent.endsWith(state))"""
_BOTTOM = "(name) => Math.ceil(document.querySelector(name).getBoundingClientRect().bottom + 12)"
_TOP = "(name) => Math.floor(document.querySelector(name).getBoundingClientRect().top - 6)"


async def _settled(demo: Demo, seconds: float) -> None:
    """Let it run quietly for a while, so that what comes stands out."""
    quiet_at = demo.last["t"] + seconds
    await demo.until(lambda one: is_calm(one) and one["t"] >= quiet_at)


async def _take_story(browser: Browser, demo: Demo, picture: Picture) -> None:
    await _settled(demo, _QUIET_SECONDS)
    page = await _open(browser, demo)
    await page.evaluate(_SHOW_ONLY, picture.panels)
    await demo.control("story", story=picture.story)
    begun = await demo.until(lambda one: (one["story"] or {}).get("step") == picture.step)
    await demo.until(
        lambda one: one["t"] >= begun["t"] + picture.seconds and picture.is_so(demo.frames[-_FEW:])
    )
    if (demo.last["story"] or {}).get("step") != picture.step:
        raise SystemExit(f"{picture.story}: the story went on before it showed what it should")
    await page.wait_for_timeout(_DRAWN_MS)
    height = await page.evaluate(_BOTTOM, "#panels")
    if picture.state:
        await page.wait_for_function(_HAS_STATE, arg=picture.state)
    await _write(page, f"demo-{picture.story}.png", height)


async def _take_calm(browser: Browser, demo: Demo) -> None:
    """The whole page, once its charts are full; all but the list of words."""
    await _settled(demo, _FULL_SECONDS)
    page = await _open(browser, demo)
    await page.locator("#clients tbody tr").first.wait_for()
    await demo.next()
    await page.wait_for_timeout(_DRAWN_MS)
    await _write(page, "demo.png", await page.evaluate(_TOP, "#words"))


async def _open(browser: Browser, demo: Demo) -> Page:
    page = await browser.new_page(
        # So high that everything is in sight: what is not, is not drawn.
        viewport={"width": WIDTH, "height": 3200},
        device_scale_factor=1,
        color_scheme="light",
        reduced_motion="reduce",
    )
    await page.goto(demo.url)
    await page.get_by_text("live", exact=True).wait_for()
    return page


async def _write(page: Page, name: str, height: int) -> None:
    shot = await page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    # 256 colours are enough for lines and text, and a third of the bytes.
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    few = image.quantize(colors=256, dither=Image.Dither.NONE)
    path = FOLDER / name
    few.save(path, optimize=True)
    size = path.stat().st_size
    if size >= MOST_BYTES:
        raise SystemExit(f"{name} must have less than {MOST_BYTES} bytes, not {size}")
    sys.stdout.write(f"{path}: {image.width} × {image.height}, {size} bytes\n")


async def _take_all(names: Sequence[str]) -> None:
    takers = {"calm": _take_calm} | {
        picture.story: functools.partial(_take_story, picture=picture) for picture in PICTURES
    }
    async with browsing() as browser:
        for name, take in takers.items():
            if not names or name in names:
                # Each with a fleet of its own: charts remember what was done before.
                demo = await Demo.start()
                try:
                    await take(browser, demo)
                finally:
                    await demo.interrupt()


def main() -> None:
    """Take all of them, or those that are named; `calm` is the whole page."""
    known = ["calm", *(picture.story for picture in PICTURES)]
    unknown = [name for name in sys.argv[1:] if name not in known]
    if unknown:
        raise SystemExit(f"STORY must be one of {', '.join(known)}, not {', '.join(unknown)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take_all(sys.argv[1:]))


if __name__ == "__main__":
    main()
