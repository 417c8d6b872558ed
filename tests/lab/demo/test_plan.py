from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenly
from evenly.lab.demo.plan import CUSTOMERS, MIX, WILD, BackendPlan, Plan


def test_the_usual_fleet() -> None:
    plan = Plan()

    assert plan == Plan.of()
    assert plan.capacity == pytest.approx(160.0)
    assert sum(MIX.values()) == pytest.approx(1.0)
    assert sum(CUSTOMERS.values()) == pytest.approx(1.0)


@given(st.integers(1, 64), st.integers(1, 64))
def test_no_backend_is_without_clients(backends: int, clients: int) -> None:
    plan = Plan.of(backends=backends, clients=clients)
    names = [backend.name for backend in plan.backends]
    had = Counter(
        name
        for index in range(clients)
        for name in evenly.nested_subset(names, index, plan.subset_size)
    )

    assert set(had) == set(names)
    assert min(had.values()) >= min(clients, 2)


def test_a_customer_that_runs_wild_has_a_tenth_and_everyone_else_plenty() -> None:
    limits = Plan().limits_of(BackendPlan(name="b1", speed=2.0, slots=2))

    assert limits[WILD] == pytest.approx(0.4)
    assert all(limits[customer] > 4.0 for customer in CUSTOMERS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backends": 0}, "backends must be .* not 0"),
        ({"backends": 65}, "backends must be .* not 65"),
        ({"clients": 0}, "clients must be .* not 0"),
        ({"transport": "smtp"}, "transport must be 'grpc' or 'http', not 'smtp'"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(evenly.ConfigError, match=message):
        Plan.of(**given)  # type: ignore[arg-type]
