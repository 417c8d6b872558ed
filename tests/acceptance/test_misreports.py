"""One backend of ten that misreports: each number, each policy, at light to high load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenly.core.balancing.policies.catalogue import POLICIES
from tests.suites.test_misreports import NUMBERS, TEN, lied_share

pytestmark = pytest.mark.acceptance

LOADS = [0.1, 0.5, 0.85]


@pytest.mark.parametrize("factor", [1000.0, 0.001])
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_one_of_ten_draws_no_more_than_three_times_its_share(
    policy: str, load: float, name: str, factor: float
) -> None:
    assert lied_share(TEN, policy, name, factor, load=load) <= 3.0


# With no more than sixteen backends it is least loaded, and reads no reports.
@pytest.mark.parametrize("factor", [1000.0, 0.001])
@pytest.mark.parametrize("name", ["active", "latency_seconds"])
@pytest.mark.parametrize("load", LOADS)
def test_prequal_in_a_fleet_that_its_pool_does_not_hold(
    load: float, name: str, factor: float
) -> None:
    wider = replace(TEN, backends=replace(TEN.backends, count=20))

    assert lied_share(wider, "prequal", name, factor, load=load) <= 3.0
