"""A burst at a process that has served nothing yet: it refuses none of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.http.serve_process import SOON, Served, served, until

pytestmark = pytest.mark.faults

BURST = 400
LATE_SECONDS = 60.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connections(backend: Served) -> list[Connection]:
    return [await asyncio.open_connection("127.0.0.1", backend.port) for _ in range(BURST)]


async def status(reader: asyncio.StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), LATE_SECONDS)
    return int(line.split()[1])


def head(method: str, target: str, length: int = 0) -> bytes:
    text = f"{method} {target} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"
    return text.encode()


async def close(held: list[Connection]) -> None:
    for _, writer in held:
        writer.transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("target", ["/", "/?0.5"], ids=["GET /", "sleeping handlers"])
async def test_400_requests_at_once(target: str) -> None:
    async with served() as backend:
        held = await connections(backend)
        began_at = time.monotonic()
        for _, writer in held:
            writer.write(head("GET", target))
        found = Counter(await asyncio.gather(*(status(reader) for reader, _ in held)))
        seconds = time.monotonic() - began_at
        await close(held)

    print(f"{BURST} × GET {target}: {dict(found)} in {seconds:.2f} s")
    assert found == {200: BURST}


async def test_400_posts_whose_body_does_not_come() -> None:
    async with served(app="reads") as backend:
        held = await connections(backend)
        for _, writer in held:
            writer.write(head("POST", "/", length=4))
        await until(lambda: are_under_way(backend))
        waiting = [asyncio.ensure_future(status(reader)) for reader, _ in held]
        await asyncio.sleep(1.0)
        early = Counter(answer.result() for answer in waiting if answer.done())
        began_at = time.monotonic()
        for _, writer in held:
            writer.write(b"body")
        found = Counter(await asyncio.wait_for(asyncio.gather(*waiting), SOON))
        seconds = time.monotonic() - began_at
        await close(held)

    print(
        f"{BURST} × POST: {dict(early)} before their bodies came,"
        f" then {dict(found)} in {seconds:.2f} s"
    )
    assert early == Counter()
    assert found == {200: BURST}


async def are_under_way(backend: Served) -> bool:
    return (await backend.probe()).active == BURST
