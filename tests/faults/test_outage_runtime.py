"""A runtime whose only backend refuses, with a back-off of an hour, and is back."""

from __future__ import annotations

import asyncio

import pytest

from evenly.core.balancing.health import HealthConfig
from tests.runtime.driven import A, Listed, configured, healthy, started, until

pytestmark = pytest.mark.faults

HOUR = HealthConfig(
    connect_jitter_seconds=0.0, backoff_first_seconds=3600.0, backoff_max_seconds=3600.0
)


@pytest.mark.parametrize("is_patient", [False, True])
async def test_a_request_has_a_backend_tried_long_before_its_delay_is_over(
    is_patient: bool,
) -> None:
    config = configured(health=HOUR, is_probing=False)
    async with started(Listed([A]), config, closed=[A]) as (runtime, transport, requests):
        await until(lambda: transport.connects)
        await asyncio.sleep(1.6)  # Its first try is long enough ago for another.
        transport.closed.clear()
        requests.begin("a", is_patient=is_patient)

        assert transport.connects == [A, A]  # at once
        await until(lambda: healthy(runtime) == 1)
