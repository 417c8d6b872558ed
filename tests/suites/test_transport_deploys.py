"""Deploys without a failed request, over real connections."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.suites.transports.stories import rolling_restarts
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.alone


@every_transport
async def test_twenty_rolling_restarts_lose_no_request_with_retries_off(
    transport: Transport,
) -> None:
    async with (
        transport.backends(5, wait_seconds=0.005) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        deploy = await rolling_restarts(backends, client, restarts=20)

    assert deploy.failures == Counter()
    assert deploy.backends == set(backends.addresses)
