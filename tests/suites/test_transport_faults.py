"""What a client sees of backends that are killed, stopped, closed or failing, under load."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from evenly.core.balancing.backend import Backend
from evenly.probe.prober import Prober
from tests.suites.transports import stories
from tests.suites.transports.processes import Backends
from tests.suites.transports.transport import (
    IDLE,
    NO_RETRIES,
    TRANSPORTS,
    Client,
    Transport,
    every_transport,
)

pytestmark = pytest.mark.alone

Fleet = tuple[Backends, Client]


@pytest.fixture(params=TRANSPORTS)
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    """Give three backends that take 20 ms a request, and a client that does not retry."""
    transport = TRANSPORTS[request.param]
    async with (
        transport.backends(3, wait_seconds=0.02) as backends,
        transport.client(backends.addresses, NO_RETRIES) as client,
    ):
        yield backends, client


async def test_of_a_killed_backend_only_requests_already_sent_fail(fleet: Fleet) -> None:
    fault = await stories.killed(*fleet)

    assert fault.late_failures == Counter()


async def test_a_stopped_backend_is_taken_out_and_comes_back(fleet: Fleet) -> None:
    fault = await stories.stopped(*fleet)

    assert fault.late_failures == Counter()
    assert fault.share == 0.0


async def test_a_closed_port_costs_only_what_was_under_way(fleet: Fleet) -> None:
    fault = await stories.port_closed(*fleet)

    assert fault.late_failures == Counter()
    assert fault.share == 0.0


async def test_a_backend_that_fails_fast_is_hardly_sent_to(fleet: Fleet) -> None:
    fault = await stories.failing_fast(*fleet)

    assert fault.usual_share < 0.01


async def test_a_service_that_is_gone_fails_clearly_and_recovers(fleet: Fleet) -> None:
    fault = await stories.all_gone_and_back(*fleet)

    assert fault.late_failures
    for failure in fault.late_failures:
        # gRPC's words for it, and HTTP's.
        no_connection = ("the connection could not be had", "no connection could be had")
        assert "no backend" in failure or any(text in failure for text in no_connection)


@every_transport
async def test_an_idle_client_hears_of_a_lame_duck(transport: Transport) -> None:
    async with (
        transport.backends(2) as backends,
        transport.client(backends.addresses, IDLE) as client,
    ):
        await stories.lame_duck_told_to_idle_client(backends, client)


@every_transport
async def test_who_has_no_connection_hears_of_a_lame_duck_by_the_notice_alone(
    transport: Transport,
) -> None:
    heard: asyncio.Queue[tuple[bool, bool]] = asyncio.Queue()
    prober = Prober(lambda _, report, is_probe: heard.put_nowait((report.lame_duck, is_probe)))
    async with transport.backends(1) as backends, asyncio.timeout(60.0):
        backend = Backend(backends.addresses[0])
        prober.start(asyncio.get_running_loop())
        try:
            prober.probe(backend)
            while await heard.get() != (False, True):
                prober.probe(backend)  # It says that it is ready while it warms up.
            backends.all[0].signal(signal.SIGTERM)
            # Nobody asks from here on, so no answer can tell.
            while await heard.get() != (True, False):
                pass
        finally:
            prober.stop()
