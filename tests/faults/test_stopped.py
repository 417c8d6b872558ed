"""A backend that is stopped and goes on (SIGSTOP, SIGCONT): its kernel accepts all the while."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.suites.transports import stories
from tests.suites.transports.transport import NO_RETRIES, Transport, every_transport

pytestmark = pytest.mark.faults

NOTICED_SECONDS = 5.0
RECOVERED_SECONDS = 5.0
# Of 300 requests/s, each given a second: a third of what comes until it is out, at the very most.
FAILED_MAX = int(300 * NOTICED_SECONDS / 3)


@every_transport
async def test_a_stopped_backend_is_out_within_seconds_and_comes_back(
    transport: Transport,
) -> None:
    async with (
        transport.backends(3, wait_seconds=0.02) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.stopped(backends, client)

    print(
        f"stopped: out after {fault.noticed_seconds:.2f} s, {fault.failures.total()} of"
        f" {fault.requests} failed, {fault.late_failures.total()} of them sent later;"
        f" back after {fault.recovered_seconds:.2f} s"
    )
    assert fault.noticed_seconds <= NOTICED_SECONDS
    assert fault.recovered_seconds <= RECOVERED_SECONDS
    assert fault.late_failures == Counter()
    assert fault.failures.total() <= FAILED_MAX
