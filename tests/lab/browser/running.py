"""A real `evenly demo` and a real browser, started as a user starts them; see conftest.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, async_playwright

__all__ = [
    "BLOCKED_HOST",
    "Demo",
    "browser_processes",
    "browsing",
    "marked_processes",
    "processor_seconds",
]

Frame = dict[str, Any]

CHROMIUM: Final = "/usr/bin/chromium"
BLOCKED_HOST: Final = "elsewhere.test"
"""A name that the browser takes for this machine, as an attacker's name server would say."""

_ARGUMENTS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # As on a machine without a network: no name is found, and no other address is reached.
    (
        f"--host-resolver-rules=MAP {BLOCKED_HOST} 127.0.0.1, MAP * ~NOTFOUND,"
        " EXCLUDE 127.0.0.1, EXCLUDE localhost"
    ),
]
_ADDRESS: Final = re.compile(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)")
# Long beyond what anything here takes: it ends a test that waits for what never comes.
PATIENCE_SECONDS: Final = 90.0
_MARK: Final = "EVENLY_BROWSER_TEST"


class Demo:
    """Run `evenly demo` and follow its frames, as the page does."""

    def __init__(
        self, process: asyncio.subprocess.Process, origin: str, token: str, mark: str
    ) -> None:
        self.origin = origin
        self.token = token
        self.mark = mark
        self.frames: list[Frame] = []
        self._process = process
        self._changed = asyncio.Condition()
        self._following: asyncio.Task[None] | None = None
        self._client = httpx.AsyncClient(
            base_url=origin,
            headers={"evenly-token": token},
            timeout=PATIENCE_SECONDS,
            # The dashboard closes what idles, perhaps just when it is used again: a browser then
            # sends anew, and httpx fails.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    @classmethod
    async def start(cls, *arguments: str) -> Demo:
        """Start it, read its address from what it prints, and follow it."""
        mark = f"{_MARK}={uuid.uuid4()}"
        name, _, value = mark.partition("=")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "evenly", "demo", "--port", "0", *arguments),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, name: value},
        )
        try:
            origin, token = await _address(process)
        except BaseException:
            process.terminate()
            await process.communicate()
            raise
        demo = cls(process, origin, token, mark)
        demo._following = asyncio.create_task(demo._follow())
        await demo.next()
        return demo

    @property
    def url(self) -> str:
        return f"{self.origin}/#token={self.token}"

    @property
    def last(self) -> Frame:
        return self.frames[-1]

    async def until(self, is_so: Callable[[Frame], bool], *, since: int | None = None) -> Frame:
        """Return the first frame from now on, or from `since` on, for which it is so.

        Every frame is looked at: two may come at once, and some states last for one or two.
        """
        at = len(self.frames) if since is None else since
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for frame in self.frames[at:]:
                    if is_so(frame):
                        return frame
                at = len(self.frames)
                await self.next()

    async def next(self) -> Frame:
        """Wait for a new frame."""
        seen = len(self.frames)
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.frames) > seen)
        return self.last

    async def describe(self) -> dict[str, Any]:
        answer = await self._client.get("/api/describe")
        answer.raise_for_status()
        described: dict[str, Any] = answer.json()
        return described

    async def control(self, do: str, **arguments: object) -> None:
        """Do what a button does, without the page."""
        answer = await self._client.post("/api/control", json={"do": do, **arguments})
        assert answer.is_success, answer.text

    async def calm(self) -> Frame:
        """Make everything as at the start, and wait until it is."""
        await self.control("reset")
        return await self.until(is_calm)

    async def interrupt(self) -> tuple[int, list[int]]:
        """Press Ctrl-C; return the exit code, and which of its processes are left."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._client.aclose()
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._process.stdout.read()
            code = await self._process.wait()
        return code, marked_processes(self.mark)

    async def _follow(self) -> None:
        with contextlib.suppress(httpx.HTTPError):  # It was ended.
            async with self._client.stream("GET", "/api/frames") as answer:
                kind = ""
                async for line in answer.aiter_lines():
                    if line.startswith("event:"):
                        kind = line.removeprefix("event:").strip()
                    elif line.startswith("data:"):
                        data = json.loads(line.removeprefix("data:"))
                        async with self._changed:
                            self.frames.extend(data if kind == "history" else [data])
                            self._changed.notify_all()


async def _address(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Return where the page is, and the token, as printed for a person."""
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (match := _ADDRESS.search(printed)) is None:
            line = await process.stdout.readline()
            assert line, f"it ended before it printed an address: {printed}"
            printed += line.decode()
    return match[1], match[2]


def is_calm(frame: Frame) -> bool:
    """Say whether all is as at the start."""
    settings = frame["settings"]
    return (
        frame["story"] is None
        and settings["load"] == 0.7
        and settings["is_protected"]
        and not settings["is_wild"]
        and all(one["state"] == "healthy" and not one["faults"] for one in frame["backends"])
    )


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Run Debian's Chromium, without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


def marked_processes(mark: str) -> list[int]:
    """Return all processes that were started with `mark` in their environment, or by those."""
    found = []
    for pid in _all_processes():
        with contextlib.suppress(OSError):  # It has ended, or is somebody else's.
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def browser_processes() -> set[int]:
    """Return all processes of all browsers that run under this one.

    By their parents: Chromium writes its title over the environment.
    """
    stats = {pid: stat for pid in _all_processes() if (stat := _stat(pid))}
    under = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in under} - under:
        under |= more
    return {pid for pid in under if _program(pid).endswith("/chromium")}


def processor_seconds(processes: Iterable[int]) -> float:
    """Return the CPU time that these have used so far."""
    # utime and stime are fields 14 and 15 of proc(5); ours begin with the third.
    ticks = sum(int(ticks) for pid in processes for ticks in _stat(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _all_processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Return what follows the name, which may have blanks and brackets; [] if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _program(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
