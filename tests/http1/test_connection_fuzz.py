"""Random and mutated responses: each ends as a response or as a loss, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random

from evenly.http1.connection import BadResponse, Connection, End, Lost, NotSent
from evenly.http1.pool import Pool
from evenly.http1.reply import Reply
from tests.http1.pools import watched
from tests.http1.raw_server import Gone, Peer, raw_server

SEED = 20251115
CASES = 2_000
CONCURRENCY = 20
# A case takes a millisecond; whatever takes this long hangs.
HANG_SECONDS = 10.0

# What mutations begin with: something of every kind.
GOOD = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nhello",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nA: b\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
]
# What attacks are made of.
PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"-1", b"\xff",
    b"0\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close",
    b"Upgrade: x\r\nConnection: upgrade\r\n", b"101", b"100", b"fffffffff\r\n", b"99999999999999",
]  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """Return a response with up to four mistakes, or no response at all."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(GOOD))
    if rng.random() < 0.2:
        data += rng.choice(GOOD)
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                del data[at : at + rng.randrange(1, 8)]
            case 2 if data:
                data[at % len(data)] = rng.randrange(256)
            case 3:
                data[at:at] = data[at : at + rng.randrange(30)]
            case _:
                del data[at:]
    return bytes(data)


class Fuzzer:
    """Be a server that answers the request for `/<number>` with the bytes of that case."""

    def __init__(self, cases: list[bytes]) -> None:
        self.cases = cases
        self.seen = [0] * len(cases)

    async def play(self, peer: Peer) -> None:
        while True:
            number = int((await peer.request()).split(b" ", 2)[1][1:])
            self.seen[number] += 1
            rng = random.Random(f"{SEED}/{number}")
            data = self.cases[number]
            while data:
                size = rng.choice([1, 2, 5, 20, 1000])
                await peer.send(data[:size])
                data = data[size:]
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
            # Whoever waits for more than there is must hear of the end; how, is left to chance.
            ending = rng.choice([peer.half_close, peer.close, peer.reset, None])
            if ending is not None:
                ending()
                return
            await self._linger(peer)

    async def _linger(self, peer: Peer) -> None:
        """Stay open for who has got all; a client that wants more is let down after a while."""
        try:
            async with asyncio.timeout(0.02):
                await peer.reader.read(1)
        except TimeoutError:
            pass
        peer.close()
        raise Gone


async def play_client(pool: Pool, number: int, rng: random.Random) -> str:
    """Ask for one case; return what came of it."""
    method = rng.choice(["GET", "GET", "GET", "HEAD"])
    connection = await pool.acquire()
    ends: list[End] = []
    try:
        head = f"{method} /{number} HTTP/1.1\r\n\r\n".encode()
        response = await connection.request(method, head)
        response.on_end = ends.append
        assert 200 <= response.status <= 999
        if rng.random() < 0.2:
            response.close()
            assert len(ends) == 1
            return "closed"
        await response.read()
    except NotSent:
        # An idle connection ended at this moment; so the request may be sent again.
        return await play_client(pool, number, rng)
    except BadResponse:
        return "bad"
    except Lost:
        return "lost"
    assert ends == [End.COMPLETE]
    return "read"


async def test_whatever_a_server_sends_ends_in_a_response_or_a_loss() -> None:
    rng = random.Random(SEED)
    fuzzer = Fuzzer([mutated(rng) for _ in range(CASES)])
    numbers = iter(range(CASES))
    results: list[str] = []

    async def work(pool: Pool) -> None:
        for number in numbers:
            luck = random.Random(f"{SEED}/{number}/client")
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    results.append(await play_client(pool, number, luck))
            except Exception as error:
                raise AssertionError(f"case {number}: {fuzzer.cases[number]!r}") from error

    async with raw_server(fuzzer.play) as server, watched(server.address) as it:
        await asyncio.gather(*(work(it.pool) for _ in range(CONCURRENCY)))
        assert it.pool.active == 0
    del it
    assert len(results) == CASES
    assert max(fuzzer.seen) == 1  # Nothing is sent twice.
    # It is a test only if all of it happens.
    assert set(results) == {"bad", "closed", "lost", "read"}
    gc.collect()
    alive = [thing for thing in gc.get_objects() if isinstance(thing, Connection | Reply)]
    assert alive == []
