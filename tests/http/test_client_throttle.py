"""What throttles a client of stock servers, end to end, and what it then says."""

from __future__ import annotations

import contextlib

import evenly
from tests.http.raw_backend import Arrival, hang, quick, reply, served


async def test_users_at_their_limit_throttle_nobody() -> None:
    served_so_far = 0

    async def limit(arrival: Arrival) -> bytes:
        nonlocal served_so_far
        served_so_far += 1
        return reply(429 if served_so_far % 20 in (0, 7, 13) else 200)  # 15 %

    async with served(2, limit, config=quick()) as (_backends, session, counts):
        statuses = [(await session.get("/")).status for _ in range(400)]

    assert (statuses.count(429), statuses.count(200)) == (60, 340)
    assert counts.refused == []


async def test_a_stock_server_that_refuses_everything_is_throttled_and_the_error_says_so() -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(503, b"", ("retry-after", "1"))

    texts: list[str] = []
    async with served(1, refuse, config=quick()) as (_backends, session, counts):
        for _ in range(100):
            try:
                await session.get("/")  # A 503 of others is for the caller to read.
            except evenly.Throttled as error:
                texts.append(str(error))

    assert len(texts) > 50
    assert all("because backends have been rejecting;" in text for text in texts)
    assert len(counts.refused) == len(texts)


async def test_timeouts_are_called_timeouts() -> None:
    async with served(1, hang, config=quick()) as (_backends, session, _counts):
        for _ in range(30):
            with contextlib.suppress(TimeoutError, evenly.Throttled):
                await session.get("/", timeout_seconds=0.005)
        # 20 in a row that are not refused have a chance of (1 / 30) ** 20.
        texts: list[str] = []
        for _ in range(20):
            try:
                await session.get("/", timeout_seconds=0.005)
            except TimeoutError:
                pass
            except evenly.Throttled as error:
                texts.append(str(error))

    assert texts
    assert all("with timeouts;" in text for text in texts)
