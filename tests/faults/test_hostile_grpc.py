"""A hostile gRPC backend among honest ones: it speaks something else, or lies in its trailers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import grpc
import grpc.aio
import pytest

import evenly.grpc
from tests.faults.test_hostile_http import NOISE, Speaker, listening, silently, slowly, whole
from tests.grpc.plain import UNARY_UNARY, PlainBackend

pytestmark = pytest.mark.faults

TIMEOUT_SECONDS = 2.0
LATE_SECONDS = 10.0
REQUESTS = 60
AT_ONCE = 6
# A frame: length (3 bytes), type, flags, stream (4 bytes).
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HEADERS = b"\x00\x00\x04\x01\x05\x00\x00\x00\x01" + b"\xff" * 4
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8)
LONG_FRAME = b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
HOSTILE: dict[str, Speaker] = {
    "noise": whole(NOISE),
    "nothing": whole(b""),
    "silence": silently,
    "HTTP/1.1": whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
    "settings, then noise": whole(SETTINGS + NOISE),
    "settings, then broken headers": whole(SETTINGS + HEADERS),
    "settings, then a GOAWAY": whole(SETTINGS + GOAWAY),
    "a frame of 16 MiB": whole(SETTINGS + LONG_FRAME),
    "settings, byte by byte": slowly(SETTINGS, 0.1),
    "noise, byte by byte": slowly(NOISE[:50], 0.01),
}


async def calls(target: str) -> tuple[Counter[str], float]:
    loop = asyncio.get_running_loop()
    ended: Counter[str] = Counter()
    slowest = 0.0
    async with evenly.grpc.channel(target) as channel:
        echo = channel.unary_unary(UNARY_UNARY)

        async def ask() -> None:
            nonlocal slowest
            begun_at = loop.time()
            try:
                answer = await echo(b"hello", timeout=TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError:
                ended["failed"] += 1
            else:
                ended["ok" if answer == b"hello" else "believed"] += 1
            slowest = max(slowest, loop.time() - begun_at)

        for _ in range(REQUESTS // AT_ONCE):
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            await asyncio.sleep(0.02)
        assert channel.snapshot().active == 0
    return ended, slowest


@pytest.mark.parametrize("kind", HOSTILE)
async def test_one_of_three_speaks_something_else(kind: str) -> None:
    honest = [PlainBackend(), PlainBackend()]
    for backend in honest:
        await backend.start()
    async with listening(HOSTILE[kind]) as address:
        addresses = [address, *(backend.address for backend in honest)]
        ended, slowest = await calls(f"static:{','.join(addresses)}")
    for backend in honest:
        await backend.stop()

    print(f"{kind}: {dict(ended)}, the slowest took {slowest:.2f} s")
    # It never has a connection that stands, or loses it before anything was processed.
    assert ended["believed"] == 0
    assert ended["ok"] >= REQUESTS // 2
    assert slowest < LATE_SECONDS


async def test_hostile_trailers_fail_no_call() -> None:
    rng = random.Random("trailers")
    said = "1;b=1;n=1;s=h;a=1111;r=0.5;c=1;u=0.5;q=10"
    lies = ["", "1", "nonsense", "1;" * 4_000, said.replace("0.5", "1e999"), said.replace("h", "z")]
    for _ in range(50):
        at = rng.randrange(len(said))
        lies.append(f"{said[:at]}{chr(rng.randrange(33, 127))}{said[at + 1 :]}")
    liar = PlainBackend()
    await liar.start()
    ended: Counter[str] = Counter()
    for lie in lies:
        liar.trailers = (("evenly-load", lie),)
        found, _ = await some(f"static:{liar.address}", 3)
        ended += found
    await liar.stop()
    print(f"{len(lies)} hostile reports in trailers: {dict(ended)}")
    assert ended == {"ok": 3 * len(lies)}


async def some(target: str, count: int) -> tuple[Counter[str], None]:
    ended: Counter[str] = Counter()
    async with evenly.grpc.channel(target) as channel:
        for _ in range(count):
            try:
                await channel.unary_unary(UNARY_UNARY)(b"hello", timeout=TIMEOUT_SECONDS)
                ended["ok"] += 1
            except grpc.aio.AioRpcError as error:
                ended[str(error.details())] += 1
    return ended, None
