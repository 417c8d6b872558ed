"""Two live backends with a customer's quota, and nobody who brings them together."""

from __future__ import annotations

import asyncio
from typing import Any

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.runtime.backend_config import BackendConfig
from tests.http import asgi_backend
from tests.http.asgi_backend import respond, until

# A bucket of one CPU second that hardly refills.  Each request under way reserves what is expected
# of it, and is admitted while something is left: 1 - 6 · 0.15 > 0 > 1 - 7 · 0.15.
QUOTA = QuotaConfig(
    limits={"a": 0.001}, default_limit=0.0, burst_seconds=1_000.0, first_cost_seconds=0.15
)
FIT = 7
CONFIG = BackendConfig(task=BackendTaskConfig(quota=QUOTA, limits_queue=False, quiet_seconds=0.0))
HEADERS = (("evenly-customer", "a"), ("evenly-criticality", "CRITICAL_PLUS"))


async def test_each_of_two_backends_grants_the_whole_quota() -> None:
    may_end = asyncio.Event()

    async def held(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await may_end.wait()
        await respond(send, b"done")

    async with (
        asgi_backend.backend(held, config=CONFIG) as one,
        asgi_backend.backend(held, config=CONFIG) as other,
    ):
        calls = [
            asyncio.ensure_future(backend.get("/", HEADERS))
            for backend in (one, other)
            for _ in range(2 * FIT)
        ]
        for backend in (one, other):
            await until(lambda seen=backend.ledger: len(seen.admitted + seen.rejected) == 2 * FIT)
        may_end.set()
        statuses = [answer.status for answer in await asyncio.gather(*calls)]

    # The service's limit would be 7, and an aggregator would give each backend half of it.
    assert [statuses[: 2 * FIT].count(200), statuses[2 * FIT :].count(200)] == [FIT, FIT]
    assert statuses.count(429) == 2 * FIT
