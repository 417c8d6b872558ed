"""A service at three times its capacity, over real connections: the right requests are refused."""

from __future__ import annotations

import pytest

from tests.suites.transports.overload import overloaded
from tests.suites.transports.transport import Transport, every_transport

pytestmark = pytest.mark.alone


@every_transport
async def test_overload_is_refused_from_the_bottom_up(transport: Transport) -> None:
    run = await overloaded(transport, is_plain=False, overload_seconds=8.0, calm_seconds=4.0)

    served = run["served"]
    assert (
        served["CRITICAL_PLUS"]
        > served["CRITICAL"]
        > served["SHEDDABLE_PLUS"]
        > served["SHEDDABLE"]
    )
    # Unprotected, less than a fifth of what was offered would be served in time, of any.
    assert served["CRITICAL_PLUS"] > 0.9
