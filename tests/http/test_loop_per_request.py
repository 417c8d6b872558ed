"""A loop per request, as scripts have it: throttle and retry budget are the process's."""

from __future__ import annotations

import asyncio
import gc

import pytest

import evenly
from evenly.http.client.session import Session
from tests.http.raw_backend import (
    OVERLOADED,
    UNTHROTTLED,
    Arrival,
    quick,
    raw_backends,
    reply,
    target,
)

REQUESTS = 40
# Of every ten requests one retry is earned, and there are three to begin with.
ATTEMPTS = REQUESTS + 3 + REQUESTS // 10


async def refuse(arrival: Arrival) -> bytes:
    return reply(503, b"", OVERLOADED, ("connection", "close"))


# Whoever leaves a session open leaves its sockets open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("is_throttled", [True, False])
async def test_a_loop_per_request_has_one_budget_and_one_throttle(
    is_closed: bool, is_throttled: bool
) -> None:
    config = quick() if is_throttled else quick(task=UNTHROTTLED)
    # Their types: an error's traceback would keep the session.
    refusals: list[type[evenly.RejectedError]] = []

    async def request(where: str) -> None:
        session = Session(where, config=config)
        try:
            await session.get("/")
        except evenly.RejectedError as error:
            refusals.append(type(error))
        if is_closed:
            await session.close()
        else:
            sessions.append(session)  # It is not even collected before its loop is closed.

    def run(where: str) -> None:
        for _ in range(REQUESTS):
            asyncio.run(request(where))

    sessions: list[Session] = []
    async with raw_backends(3, refuse) as backends:
        await asyncio.to_thread(run, target(*backends))
        sent = sum(backend.requests for backend in backends)
        sessions.clear()
        # Who shares next lets go of what the last loop left.
        async with Session(target(*backends), config=config) as session:
            assert session.service.users == 1
        gc.collect()  # Here, where it is not taken for a mistake.

    assert len(refusals) == REQUESTS
    if is_throttled:
        assert sent < REQUESTS
        assert any(issubclass(error, evenly.Throttled) for error in refusals)
    else:
        assert sent == ATTEMPTS
