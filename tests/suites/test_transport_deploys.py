"""Deploys without a failed request, over real connections."""

from __future__ import annotations

from collections import Counter

from tests.suites.transports.grpc_clients import NO_RETRIES, evenly_client
from tests.suites.transports.processes import Backends
from tests.suites.transports.stories import rolling_restarts


async def test_twenty_rolling_restarts_lose_no_request_with_retries_off() -> None:
    async with (
        Backends(5, wait_seconds=0.005) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        deploy = await rolling_restarts(backends, client, restarts=20)

    assert deploy.failures == Counter()
    assert deploy.backends == set(backends.addresses)
