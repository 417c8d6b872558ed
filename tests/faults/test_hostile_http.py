"""A hostile HTTP backend among honest ones: whatever it answers, whole, cut or byte by byte."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from evenly.http.client.errors import HttpError
from evenly.http.client.session import Session
from tests.http.raw_backend import LOAD, RawBackend, reply

pytestmark = pytest.mark.faults

HONEST = reply(200, b"honest", LOAD)
TIMEOUT_SECONDS = 0.5
LATE_SECONDS = 5.0
REQUESTS = 60
AT_ONCE = 6

Speaker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def whole(data: bytes) -> Speaker:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return speak


def slowly(data: bytes, seconds: float) -> Speaker:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(len(data)):
            writer.write(data[number : number + 1])
            await writer.drain()
            await asyncio.sleep(seconds)

    return speak


async def for_ever(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        writer.write(b"v" * 65_536)
        await writer.drain()


async def silently(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


NOISE = random.Random("hostile").randbytes(4_096)
HOSTILE: dict[str, Speaker] = {
    "noise": whole(NOISE),
    "nothing": whole(b""),
    "silence": silently,
    "a head without end": for_ever,
    "10,000 headers": whole(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000 + b"\r\n"),
    "a cut head": whole(HONEST[:30]),
    "a cut body": whole(reply(200, b"hon", length=6)),
    "two lengths": whole(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
    "a negative length": whole(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"),
    "a huge length": whole(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n"),
    "a huge chunk": whole(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\na"
    ),
    "another protocol": whole(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "byte by byte, too slow": slowly(HONEST, 0.1),
    "noise, byte by byte": slowly(NOISE[:50], 0.005),
}


@asynccontextmanager
async def listening(speak: Speaker) -> AsyncIterator[str]:
    """Say the same to everybody who has asked something; then close."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await speak(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort() if speak is for_ever else writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def ask(session: Session, ended: Counter[str], slowest: list[float]) -> None:
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    try:
        response = await session.get("/", timeout_seconds=TIMEOUT_SECONDS)
    except HttpError:
        ended["failed"] += 1
    else:
        ended["ok" if response.content == b"honest" else "believed"] += 1
    slowest.append(loop.time() - begun_at)


@pytest.mark.parametrize("kind", HOSTILE)
async def test_one_of_three_is_hostile(kind: str) -> None:
    honest = [RawBackend(), RawBackend()]
    for backend in honest:
        backend.handler = lambda _: asyncio.sleep(0.005, HONEST)
        await backend.start()
    ended: Counter[str] = Counter()
    slowest: list[float] = []
    async with listening(HOSTILE[kind]) as address:
        target = f"static:{address},{honest[0].address},{honest[1].address}"
        async with Session(target) as session:
            for _ in range(REQUESTS // AT_ONCE):
                asks = (ask(session, ended, slowest) for _ in range(AT_ONCE))
                await asyncio.gather(*asks)
            active = session.snapshot().active
    for backend in honest:
        await backend.stop()

    print(f"{kind}: {dict(ended)}, the slowest took {max(slowest):.2f} s")
    assert ended["believed"] == 0
    assert ended["ok"] >= REQUESTS // 2
    assert max(slowest) < LATE_SECONDS
    assert active == 0


async def test_an_honest_answer_cut_after_each_byte_is_believed_only_whole() -> None:
    for length in range(len(HONEST) + 1):
        ended: Counter[str] = Counter()
        async with (
            listening(whole(HONEST[:length])) as address,
            Session(f"static:{address}") as session,
        ):
            await ask(session, ended, [])
        assert ended == {"ok" if length == len(HONEST) else "failed": 1}, length
    print(f"cut after each of {len(HONEST)} bytes: believed only whole")


async def test_an_honest_answer_with_each_byte_wrong_raises_nothing_unknown() -> None:
    ended: Counter[str] = Counter()
    for number in range(len(HONEST)):
        wrong = HONEST[:number] + bytes([HONEST[number] ^ 0xFF]) + HONEST[number + 1 :]
        async with (
            listening(whole(wrong)) as address,
            Session(f"static:{address}") as session,
        ):
            await ask(session, ended, [])
    print(f"each of {len(HONEST)} bytes wrong: {dict(ended)}")
    assert ended.total() == len(HONEST)
    assert ended["failed"] > 0


async def test_byte_by_byte_an_honest_answer_is_honest() -> None:
    # Said, as this server closes: else the next request may be on its way to a closed connection.
    closed_after = reply(200, b"honest", LOAD, ("connection", "close"))
    ended: Counter[str] = Counter()
    async with (
        listening(slowly(closed_after, 0.0)) as address,
        Session(f"static:{address}") as session,
    ):
        for _ in range(5):
            await ask(session, ended, [])
    assert ended == {"ok": 5}
