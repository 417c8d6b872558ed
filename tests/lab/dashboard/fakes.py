"""A source that does as it is told, and readers of the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from evenly.errors import ConfigError
from evenly.lab.dashboard.server import Dashboard

SOON = 20.0  # Nothing in these tests takes so long, unless it hangs.


class FakeSource:
    """Make frames on demand, and note what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.description: dict[str, object] = {"plan": "eight backends"}
        self.was_cancelled = False
        self.follower_has_left = False
        self._made: asyncio.Queue[dict[str, object] | Exception] = asyncio.Queue()

    def make(self, *frames: dict[str, object] | Exception) -> None:
        for frame in frames:
            self._made.put_nowait(frame)

    def describe(self) -> dict[str, object]:
        return self.description

    def targets(self, address: str) -> list[dict[str, object]]:
        return [{"targets": ["127.0.0.1:9101", address], "labels": {"role": "backend"}}]

    def metrics(self) -> str:
        return "evenly_demo_load 0.7\n"

    async def frames(self) -> AsyncIterator[dict[str, object]]:
        try:
            while True:
                frame = await self._made.get()
                if isinstance(frame, StopAsyncIteration):
                    return
                if isinstance(frame, Exception):
                    raise frame
                yield frame
        finally:
            self.follower_has_left = True

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        self.asked.append((name, arguments))
        if name == "load":
            raise ConfigError(f"load must be in [0.1, 10], not {arguments['load']!r}")
        if name == "break":
            raise KeyError("the secret inside of the fleet")
        if name == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise


def authority(dashboard: Dashboard) -> str:
    """Return host and port of the link."""
    return urlsplit(dashboard.url).netloc


def port_of(dashboard: Dashboard) -> int:
    port = urlsplit(dashboard.url).port
    assert port is not None
    return port


def token_of(dashboard: Dashboard) -> str:
    return urlsplit(dashboard.url).fragment.removeprefix("token=")


def client_of(dashboard: Dashboard, *, has_token: bool = True) -> httpx.AsyncClient:
    """Return a client for that dashboard; what its environment says of proxies is not for us."""
    headers = {"evenly-token": token_of(dashboard)} if has_token else {}
    return httpx.AsyncClient(
        base_url=f"http://{authority(dashboard)}", headers=headers, timeout=SOON, trust_env=False
    )


@asynccontextmanager
async def following(dashboard: Dashboard) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Open the stream; give its events, and comments as the event `:`."""
    async with client_of(dashboard) as client, client.stream("GET", "/api/frames") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        yield events(answer.aiter_lines())


async def events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    name, data = "", None
    async for line in lines:
        if line.startswith(":"):
            yield ":", None
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
        elif name:
            yield name, data
            name, data = "", None


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a fact; fail if it does not come."""
    async with asyncio.timeout(SOON):
        while not is_so():
            await asyncio.sleep(0.005)


async def exchange(dashboard: Dashboard, request: bytes) -> bytes:
    """Send bytes as they are; return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(dashboard))
    try:
        writer.write(request)
        async with asyncio.timeout(SOON):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
