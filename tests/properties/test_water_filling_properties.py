from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.overload.water_filling import DEFAULT_CUSTOMER, effective_limits, water_fill

# Sums of at most 40 amounts below 100: off by less than 40 · 4000 · 1.1e-16 < 1e-10.
NEAR = 1e-9

amounts = st.one_of(st.integers(0, 20).map(float), st.floats(0.0, 100.0))
demands = st.dictionaries(st.integers(0, 99), amounts, max_size=12)


@given(capacity=st.one_of(st.just(0.0), st.floats(0.0, 500.0)), demands=demands)
def test_shares_are_those_of_the_water_level_found_by_bisection(
    capacity: float, demands: dict[int, float]
) -> None:
    shares = water_fill(capacity, demands)

    # An independent way: the level is where Σ min(demand, level) meets the capacity.
    low, high = 0.0, 100.0
    for _ in range(100):
        level = (low + high) / 2
        if math.fsum(min(demand, level) for demand in demands.values()) <= capacity:
            low = level
        else:
            high = level
    assert list(shares) == list(demands)
    assert shares == pytest.approx({k: min(d, low) for k, d in demands.items()}, abs=NEAR)


@given(capacity=st.integers(0, 60), demands=st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_shares_are_what_handing_out_crumbs_to_the_poorest_gives(
    capacity: int, demands: list[int]
) -> None:
    # Crumbs of 1/60: a whole number of them goes into any level of up to six.
    crumbs = [0] * len(demands)
    for _ in range(capacity * 60):
        hungry = [i for i, demand in enumerate(demands) if crumbs[i] < demand * 60]
        if not hungry:
            break
        crumbs[min(hungry, key=lambda i: crumbs[i])] += 1

    shares = water_fill(float(capacity), {i: float(d) for i, d in enumerate(demands)})
    # What does not divide evenly makes neighbours differ by one crumb.
    assert shares == pytest.approx({i: c / 60 for i, c in enumerate(crumbs)}, abs=1 / 60 + NEAR)


@given(capacity=st.floats(0.0, 500.0), demands=demands)
def test_nobody_could_get_more_without_taking_it_from_someone_with_less(
    capacity: float, demands: dict[int, float]
) -> None:
    shares = water_fill(capacity, demands)

    total = math.fsum(demands.values())
    assert math.fsum(shares.values()) == pytest.approx(min(capacity, total), abs=NEAR)
    most = max(shares.values(), default=0.0)
    for name, share in shares.items():
        assert 0.0 <= share <= demands[name]
        assert share == demands[name] or share == most


worlds = st.dictionaries(
    st.sampled_from(["x", "y", "z"]),
    st.dictionaries(st.sampled_from(["a", "b", "stranger", "other"]), amounts),
    min_size=1,
)


@given(
    limits=st.dictionaries(st.sampled_from(["a", "b"]), amounts),
    demand=worlds,
    capacity=st.one_of(st.none(), st.floats(0.0, 300.0)),
    default_limit=amounts,
)
def test_effective_limits(
    limits: dict[str, float],
    demand: dict[str, dict[str, float]],
    capacity: float | None,
    default_limit: float,
) -> None:
    result = effective_limits(limits, demand, capacity=capacity, default_limit=default_limit)

    allowed = {**limits, DEFAULT_CUSTOMER: default_limit}
    asked = {(backend, name): 0.0 for backend in demand for name in allowed}
    for backend, by in demand.items():
        for customer, amount in by.items():
            # Added one by one, as there: at the limit itself the last bit decides who is short.
            asked[backend, customer if customer in limits else DEFAULT_CUSTOMER] += amount
    total = {name: math.fsum(asked[backend, name] for backend in demand) for name in allowed}
    wants = {name: min(limit, total[name]) for name, limit in allowed.items()}
    usable = math.inf if capacity is None else capacity
    grants = water_fill(min(usable, 1e15), wants)
    for name, limit in allowed.items():
        parts = {backend: result[backend][name] for backend in demand}
        assert all(part >= 0.0 for part in parts.values())
        used = math.fsum(min(parts[backend], asked[backend, name]) for backend in demand)
        if grants[name] == total[name]:
            assert all(parts[backend] >= asked[backend, name] - NEAR for backend in demand)
            assert math.fsum(parts.values()) == pytest.approx(limit, abs=NEAR)
        else:
            assert math.fsum(parts.values()) == pytest.approx(grants[name], abs=NEAR)
            # An even twentieth, wherever the demand is; at most that much finds no use.
            assert min(parts.values()) >= 0.05 * grants[name] / len(demand) - NEAR
            assert used >= 0.95 * grants[name] - NEAR
        assert used <= grants[name] + NEAR
    # Never more than the capacity, or than all that the customers may want.
    total_grants = math.fsum(grants.values())
    assert total_grants == pytest.approx(min(usable, math.fsum(wants.values())), abs=NEAR)
