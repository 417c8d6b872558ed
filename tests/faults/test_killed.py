"""A backend that is killed: what was under way there fails, and nothing after it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.suites.transports import stories
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

NOTICED_SECONDS = 1.0
# 300 requests/s of 20 ms are 2 under way at each of three; the client makes up for pauses by 10.
UNDER_WAY_MAX = 20


@every_transport
async def test_of_a_killed_backend_only_what_was_under_way_fails(transport: Transport) -> None:
    async with (
        transport.backends(3, wait_seconds=0.02) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.killed(backends, client)

    print(
        f"killed: {fault.failures.total()} of {fault.requests} failed,"
        f" {fault.late_failures.total()} sent later; out after {fault.noticed_seconds:.3f} s"
    )
    assert fault.late_failures == Counter()
    assert fault.failures.total() <= UNDER_WAY_MAX
    assert fault.noticed_seconds <= NOTICED_SECONDS
