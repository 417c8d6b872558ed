"""Whatever clients and servers do to a pool: its counts are right, and its words are true.

The server does what the target of a request says, and remembers which requests it saw: so that
`NotSent` can be held to its word.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.http1.connection import Connection, End, Lost, NotSent
from evenly.http1.pool import Pool
from tests.http1.pools import watched_loosely
from tests.http1.raw_server import OK, Peer, RawServer, raw_server, until

CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
PARTIAL = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
# Long enough for what comes after it to overtake, short enough to do it often.
SLOW_SECONDS = 0.004


class Does(enum.StrEnum):
    """Say what the server does."""

    ANSWERS = enum.auto()
    ANSWERS_LATE = enum.auto()
    SAYS_CLOSE = enum.auto()
    ENDS_WITH_THE_BODY = enum.auto()
    SAYS_TOO_MUCH = enum.auto()
    ANSWERS_AND_RESETS = enum.auto()
    RESETS = enum.auto()
    CLOSES = enum.auto()
    TALKS_NONSENSE = enum.auto()
    BREAKS_OFF = enum.auto()
    HANGS_IN_THE_BODY = enum.auto()
    HANGS = enum.auto()


class Wants(enum.StrEnum):
    """Say what the client does."""

    READS = enum.auto()
    DROPS = enum.auto()
    CLOSES = enum.auto()
    IS_CANCELLED = enum.auto()
    SENDS_NOTHING = enum.auto()
    CLOSES_THE_CONNECTION = enum.auto()


HANGING = {Does.HANGS, Does.HANGS_IN_THE_BODY}
IMPATIENT = {Wants.IS_CANCELLED, Wants.SENDS_NOTHING, Wants.CLOSES_THE_CONNECTION}


@dataclass(frozen=True)
class Deed:
    """Be one request: what is asked of the server, and what becomes of it here."""

    does: Does
    wants: Wants
    turns: int
    """After how many turns of the loop it begins, and is cancelled."""


def is_possible(deed: Deed) -> bool:
    """Return whether a request comes to an end by itself."""
    if deed.does is Does.HANGS:
        return deed.wants in IMPATIENT
    return deed.does is not Does.HANGS_IN_THE_BODY or deed.wants is not Wants.READS


deeds = st.builds(
    Deed, st.sampled_from(Does), st.sampled_from(Wants), st.integers(min_value=0, max_value=12)
).filter(is_possible)


@dataclass
class World:
    """Be both sides of what happens."""

    seen: dict[int, int] = field(default_factory=dict)
    """How often the server saw each request."""
    handed_out: int = 0
    """Connections that somebody has."""

    async def serve(self, peer: Peer) -> None:
        while True:
            target = (await peer.request()).split(b" ", 2)[1].decode()
            _, number, does = target.split("/")
            self.seen[int(number)] = self.seen.get(int(number), 0) + 1
            if not await self._answer(peer, Does(does)):
                return

    async def _answer(self, peer: Peer, does: Does) -> bool:
        """Do it; return whether the connection goes on."""
        said = {
            Does.SAYS_CLOSE: CLOSING,
            Does.ENDS_WITH_THE_BODY: b"HTTP/1.1 200 OK\r\n\r\nok",
            Does.SAYS_TOO_MUCH: OK + b"HTTP/1.1 200 OK",
            Does.ANSWERS_AND_RESETS: OK,
            Does.TALKS_NONSENSE: b"nonsense\r\n",
            Does.BREAKS_OFF: PARTIAL,
            Does.HANGS_IN_THE_BODY: PARTIAL,
            Does.ANSWERS: OK,
            Does.ANSWERS_LATE: OK,
        }
        if does is Does.ANSWERS_LATE:
            await asyncio.sleep(SLOW_SECONDS)
        await peer.send(said.get(does, b""))
        if does in {Does.ANSWERS, Does.ANSWERS_LATE}:
            return True
        if does in {Does.RESETS, Does.ANSWERS_AND_RESETS}:
            peer.reset()
        elif does not in HANGING:
            peer.close()
        return False

    async def act(self, pool: Pool, number: int, deed: Deed) -> None:
        """Send one request, and hold everybody to their words."""
        for _ in range(deed.turns):
            await asyncio.sleep(0)
        task = asyncio.create_task(self._send(pool, number, deed))
        if deed.wants is Wants.IS_CANCELLED:
            for _ in range(deed.turns):
                await asyncio.sleep(0)
            if deed.does in HANGING:
                await until(lambda: task.done() or number in self.seen)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _send(self, pool: Pool, number: int, deed: Deed) -> None:
        try:
            connection = await pool.acquire()
        except NotSent:
            assert pool.is_closed
            return
        self.handed_out += 1
        # It may have broken between the turn in which it was handed over and this one.
        assert pool.active >= 1 or not connection.is_idle
        try:
            await self._request(pool, connection, number, deed)
        finally:
            self.handed_out -= 1

    async def _request(self, pool: Pool, connection: Connection, number: int, deed: Deed) -> None:
        if deed.wants is Wants.SENDS_NOTHING:
            pool.release(connection)
            return
        if deed.wants is Wants.CLOSES_THE_CONNECTION:
            asyncio.get_running_loop().call_later(SLOW_SECONDS / 2, connection.close)
        ends: list[End] = []
        try:
            head = f"GET /{number}/{deed.does} HTTP/1.1\r\n\r\n".encode()
            response = await connection.request("GET", head)
            response.on_end = ends.append
            if deed.wants is Wants.CLOSES:
                response.close()
            elif deed.wants is Wants.DROPS:
                del response
                await until(lambda: ends)
            else:
                assert await response.read() == b"ok"
        except NotSent:
            # The server may be slower than we are, but sees nothing later on either: see below.
            assert self.seen.setdefault(-number - 1, 0) == 0
            return
        except Lost:
            assert self.seen.get(number, 0) <= 1
            assert ends in ([], [End.LOST])
            return
        assert self.seen[number] == 1
        assert len(ends) == 1


async def play(deeds: list[Deed], batches: int, idle_seconds: float, retire_after: int) -> None:
    world = World()
    async with raw_server(world.serve) as server:
        async with watched_loosely(server.address, idle_seconds=idle_seconds) as it:
            pool = it.pool
            for batch in range(batches):
                if batch == retire_after:
                    asyncio.get_running_loop().call_later(SLOW_SECONDS / 2, pool.retire)
                numbers = range(batch * len(deeds), (batch + 1) * len(deeds))
                await asyncio.gather(
                    *(world.act(pool, n, d) for n, d in zip(numbers, deeds, strict=True))
                )
                await settled(pool, server)
                assert world.handed_out == 0
        await until(lambda: not server.tasks)
    for number, count in list(world.seen.items()):
        assert count <= 1
        if number < 0:  # This one was not sent, it was said.
            assert -number - 1 not in world.seen


async def settled(pool: Pool, server: RawServer) -> None:
    """Wait until nothing moves: then none is in use, and both sides count the same connections."""
    await until(lambda: pool.connecting == 0 and pool.active == 0)
    await until(lambda: len(server.tasks) == pool.idle)


@settings(max_examples=150)
@given(
    deeds=st.lists(deeds, min_size=1, max_size=12),
    batches=st.integers(min_value=1, max_value=3),
    idle_seconds=st.sampled_from([60.0, 0.002]),
    retire_after=st.sampled_from([99, 99, 0, 1]),
)
def test_counts_are_right_and_words_are_true(
    deeds: list[Deed], batches: int, idle_seconds: float, retire_after: int
) -> None:
    asyncio.run(play(deeds, batches, idle_seconds, retire_after))
