"""What a client sees of backends that are killed, stopped, closed or failing, under load."""

from __future__ import annotations

from collections import Counter

from tests.suites.transports import stories
from tests.suites.transports.grpc_clients import NO_RETRIES, evenly_client
from tests.suites.transports.processes import Backends

# With this many requests on their way at a time, at most so many can have been sent when a backend
# dies: 300 a second, a third of them there, each taking 20 ms and a little.
_COUNT = 3
_WAIT_SECONDS = 0.02


async def test_of_a_killed_backend_only_requests_already_sent_fail() -> None:
    async with (
        Backends(_COUNT, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.killed(backends, client)

    assert fault.late_failures == Counter()


async def test_a_stopped_backend_is_taken_out_and_comes_back() -> None:
    async with (
        Backends(_COUNT, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.stopped(backends, client)

    assert fault.late_failures == Counter()
    assert fault.share == 0.0


async def test_a_closed_port_costs_only_what_was_under_way() -> None:
    async with (
        Backends(_COUNT, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.port_closed(backends, client)

    assert fault.late_failures == Counter()
    assert fault.share == 0.0


async def test_a_backend_that_fails_fast_is_hardly_sent_to() -> None:
    async with (
        Backends(_COUNT, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.failing_fast(backends, client)

    assert fault.share < 0.01


async def test_a_service_that_is_gone_fails_clearly_and_recovers() -> None:
    async with (
        Backends(_COUNT, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses, NO_RETRIES) as client,
    ):
        fault = await stories.all_gone_and_back(backends, client)

    assert fault.late_failures
    for failure in fault.late_failures:
        assert "no backend" in failure or "connection could not be had" in failure


async def test_an_idle_client_hears_of_a_lame_duck() -> None:
    async with (
        Backends(2, wait_seconds=_WAIT_SECONDS) as backends,
        evenly_client(backends.addresses) as client,
    ):
        client.channel.start()
        await stories.lame_duck_told_to_idle_client(backends, client)
