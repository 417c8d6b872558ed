"""What strangers can make `evenly serve` pay: memory and descriptors.

EVENLY_ENDINGS=100000 .venv/bin/pytest -m faults -s tests/faults/test_strangers.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import struct
import time
from pathlib import Path

import pytest

from tests.http.serve_process import SOON, Served, served, until

pytestmark = pytest.mark.faults

ENDINGS = int(os.environ.get("EVENLY_ENDINGS", "4000"))
MIB = 1 << 20
BEGIN = b"GET / HTTP/1.1\r\nhost: a\r\nuser-agent: evenly/1\r\n"
LARGE = BEGIN + b"".join(b"x-%d: %s\r\n" % (index, b"v" * 1_000) for index in range(50))
AT_ONCE_SECONDS = 2.0


def rss_bytes(backend: Served) -> int:
    pages = int(Path(f"/proc/{backend.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def descriptors(backend: Served) -> int:
    return len(list(Path(f"/proc/{backend.pid}/fd").iterdir()))


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_head_of_100_mib_is_cut_off_and_keeps_nothing() -> None:
    async with served() as backend:
        before = rss_bytes(backend)
        _, writer = await asyncio.open_connection("127.0.0.1", backend.port)
        writer.write(BEGIN + b"x: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 100 * MIB:
                writer.write(b"v" * 65_536)
                await asyncio.wait_for(writer.drain(), SOON)
                sent += 65_536
        grown = rss_bytes(backend) - before

        print(f"cut off after {sent / MIB:.1f} MiB; RSS {grown / MIB:+.1f} MiB")
        assert sent < 100 * MIB
        assert grown <= 10 * MIB


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_flood_of_pipelined_requests_keeps_nothing(loop: str) -> None:
    async with served("--loop", loop) as backend:
        await reset_after_answer(backend, 50)
        before = most = rss_bytes(backend)
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", backend.port)
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET /?0.2 HTTP/1.1\r\n\r\n" * 40_000)
                await asyncio.sleep(0.1)
                most = max(most, rss_bytes(backend))
            writer.transport.abort()
        grown = most - before

    print(f"20 x 40,000 requests on one connection each: RSS {grown / MIB:+.1f} MiB")
    assert grown <= 10 * MIB


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("begin", [b"", BEGIN], ids=["silent", "half a head"])
async def test_1100_who_ask_nothing_at_1024_descriptors(loop: str, begin: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    held: list[asyncio.StreamWriter] = []
    try:
        async with served("--loop", loop) as backend:
            resource.prlimit(backend.pid, resource.RLIMIT_NOFILE, (1_024, 1_024))
            for _ in range(1_100):
                _, writer = await asyncio.open_connection("127.0.0.1", backend.port)
                held.append(writer)
                with contextlib.suppress(ConnectionError):
                    writer.write(begin)
            began = time.monotonic()
            try:
                found = f"served: {(await backend.get()).status}"
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                found = f"refused: {type(error).__name__}"
            decided = time.monotonic() - began
            open_ones = descriptors(backend)
            for writer in held:
                writer.transport.abort()
            began = time.monotonic()
            await until(lambda: is_served(backend))
            recovered = time.monotonic() - began
            backend.signal(signal.SIGTERM)
            said = (await backend.errors()).count("new connections are refused for now: ")
    finally:
        for writer in held:
            writer.transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    print(f"{found} in {decided:.3f} s at {open_ones} descriptors; again in {recovered:.3f} s")
    assert decided < AT_ONCE_SECONDS
    assert recovered < AT_ONCE_SECONDS
    assert open_ones < 1_024
    assert said == 1


async def is_served(backend: Served) -> bool:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        return (await backend.get()).status == 200
    return False


async def ask(backend: Served, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", backend.port)
    writer.write(head)
    return reader, writer


async def test_nothing_is_left_of_1000_resets_with_large_headers() -> None:
    async with served() as backend:
        await reset_after_answer(backend, 200)  # What the first ones cost is not given back.
        before, opened = rss_bytes(backend), descriptors(backend)
        await reset_after_answer(backend, 1_000)
        await asyncio.sleep(1.0)
        grown, left = rss_bytes(backend) - before, descriptors(backend) - opened

    print(f"RSS {grown / MIB:+.1f} MiB, descriptors {left:+d}")
    assert grown <= 5 * MIB  # 100 KB each would be 100 MiB.
    assert left <= 0


async def reset_after_answer(backend: Served, times: int) -> None:
    for _ in range(times):
        reader, writer = await ask(backend, LARGE + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON)
        reset(writer)


async def end_somehow(backend: Served, rng: random.Random) -> None:
    kind = rng.randrange(6)
    head = (LARGE if rng.random() < 0.3 else BEGIN) + b"\r\n"
    target = head.replace(b" / ", b" /?0.01 ")
    sent = (b"", head[: rng.randrange(1, len(head))], head, head * 3, target, b"\x16nonsense\r\n")
    reader, writer = await ask(backend, sent[kind])
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        if kind in {2, 5} or (kind == 3 and rng.random() < 0.5):
            await asyncio.wait_for(reader.read(1_000), SOON)
    if rng.random() < 0.7:
        reset(writer)
    else:
        writer.close()


async def test_a_soak_of_random_endings_does_not_grow_the_backend() -> None:
    rng = random.Random("endings")
    async with served() as backend:
        assert backend.process.stderr is not None
        # uvicorn logs each request that is none: a full pipe would stop it.
        drain = asyncio.ensure_future(backend.process.stderr.read())
        seen: list[int] = []
        left = iter(range(ENDINGS))

        async def end_some() -> None:
            for index in left:
                with contextlib.suppress(ConnectionError):
                    await end_somehow(backend, rng)
                if index % (ENDINGS // 20) == 0:
                    seen.append(rss_bytes(backend))

        await asyncio.gather(*(end_some() for _ in range(8)))
        await asyncio.sleep(1.0)
        last = rss_bytes(backend)
        status = (await backend.get()).status
        drain.cancel()

    # The first quarter fills caches and arenas.
    settled = seen[len(seen) // 4]
    per_ending = (last - settled) / (ENDINGS * 0.75)
    print("RSS MiB", *(f"{rss / MIB:.1f}" for rss in seen), f"last {last / MIB:.1f}")
    print(f"{per_ending:+.1f} bytes per ending over {ENDINGS}")
    assert status == 200
    assert last - settled <= 4 * MIB
