from __future__ import annotations

import math

import pytest

from evenly.core.overload.water_filling import DEFAULT_CUSTOMER, effective_limits, water_fill
from evenly.errors import ConfigError

# The book's table, in CPU seconds per second, on 10,000 CPUs.
LIMITS = {"gmail": 4000.0, "calendar": 4000.0, "android": 3000.0, "plus": 2000.0}
DEFAULT = 500.0
CAPACITY = 10_000.0


@pytest.mark.parametrize(
    ("capacity", "demands", "expected"),
    [
        pytest.param(10.0, [], [], id="nobody"),
        pytest.param(10.0, [3.0, 4.0], [3.0, 4.0], id="enough for all"),
        pytest.param(7.0, [3.0, 4.0], [3.0, 4.0], id="just enough"),
        pytest.param(9.0, [9.0, 9.0, 9.0], [3.0, 3.0, 3.0], id="alike"),
        pytest.param(10.0, [8.0, 2.0, 8.0], [4.0, 2.0, 4.0], id="who asks for less leaves more"),
        pytest.param(10.0, [4.0, 1.0, 2.0, 9.0], [3.5, 1.0, 2.0, 3.5], id="three levels"),
        pytest.param(0.0, [1.0, 0.0], [0.0, 0.0], id="nothing there"),
    ],
)
def test_water_fill(capacity: float, demands: list[float], expected: list[float]) -> None:
    assert list(water_fill(capacity, dict(enumerate(demands))).values()) == expected


def test_water_fill_gives_demands_to_the_last_bit_when_they_fit() -> None:
    demands = dict.fromkeys(range(10), 0.1)  # ten additions of 0.1 give 0.9999999999999999

    assert water_fill(1.0, demands) == demands


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_water_fill_refuses_what_is_no_amount(wrong: float) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        water_fill(wrong, {})
    with pytest.raises(ConfigError, match="demand of 'a'"):
        water_fill(1.0, {"a": wrong})


def test_the_books_table_when_all_customers_ask_for_more_than_their_limits() -> None:
    asked = dict.fromkeys([*LIMITS, "someone"], 9000.0)
    result = effective_limits(LIMITS, {"b": asked}, capacity=CAPACITY, default_limit=DEFAULT)

    # 500 and 2000 are below the level; the other 7500 are shared by three.
    assert result == {
        "b": {
            "gmail": 2500.0,
            "calendar": 2500.0,
            "android": 2500.0,
            "plus": 2000.0,
            DEFAULT_CUSTOMER: 500.0,
        }
    }
    assert sum(result["b"].values()) == CAPACITY


def test_the_books_table_when_one_customer_misbehaves() -> None:
    asked = {"gmail": 50_000.0, "calendar": 2000.0, "android": 1000.0, "plus": 500.0}
    result = effective_limits(LIMITS, {"b": asked}, capacity=CAPACITY, default_limit=DEFAULT)

    # 4000 + 2000 + 1000 + 500 fit: gmail has its limit, and the others may grow to theirs.
    assert result["b"] == {**LIMITS, DEFAULT_CUSTOMER: DEFAULT}


def test_a_customer_that_is_short_has_no_headroom() -> None:
    result = effective_limits(
        {"a": 8.0, "b": 8.0},
        {"x": {"a": 7.0, "b": 2.0}, "y": {"a": 1.0}},
        capacity=6.0,
        default_limit=0.0,
    )

    # b has its 2, a gets 4 of its 8: a twentieth evenly, 0.1 each, and max-min of the other 3.8
    # over its demands 7 and 1 is 2.8 and 1.
    assert (result["x"]["a"], result["y"]["a"]) == pytest.approx((2.8 + 0.1, 1.0 + 0.1))
    # b has 8 − 2 = 6 of headroom: x has all of its demand (half of 6) and half of the rest.
    assert (result["x"]["b"], result["y"]["b"]) == (2.0 + 3.0 + 1.5, 1.5)


def test_headroom_of_a_customer_that_asks_for_nothing_is_spread_evenly() -> None:
    result = effective_limits(
        {"a": 8.0}, {"x": {}, "y": {}, "z": {}, "w": {}}, capacity=None, default_limit=4.0
    )

    assert all(limits == {"a": 2.0, DEFAULT_CUSTOMER: 1.0} for limits in result.values())


def test_a_customer_over_its_limit_is_cut_without_a_capacity_too() -> None:
    result = effective_limits(
        {"a": 4.0}, {"x": {"a": 1.0}, "y": {"a": 9.0}}, capacity=None, default_limit=0.0
    )

    # A twentieth of 4 evenly, 0.1 each; 3.8 over demands 1 and 9.
    assert (result["x"]["a"], result["y"]["a"]) == pytest.approx((1.0 + 0.1, 2.8 + 0.1))


def test_a_short_customer_has_something_at_a_backend_where_it_has_not_been_lately() -> None:
    demand = {"x": {"a": 9.0}, "y": {}, "z": {}, "w": {}}
    result = effective_limits({"a": 4.0}, demand, capacity=None, default_limit=0.0)

    # A twentieth of 4 is 0.05 for each of four; x has the other 3.8 besides.
    parts = [result[backend]["a"] for backend in "xyzw"]
    assert parts == pytest.approx([3.8 + 0.05, 0.05, 0.05, 0.05])
    assert sum(parts) == pytest.approx(4.0)


def test_a_customer_whose_demand_is_just_met_keeps_every_part_of_it() -> None:
    demand = {"x": {"a": 4.0}, "y": {}}
    result = effective_limits({"a": 4.0}, demand, capacity=4.0, default_limit=0.0)

    assert (result["x"]["a"], result["y"]["a"]) == (4.0, 0.0)


def test_customers_without_a_limit_share_one_default() -> None:
    result = effective_limits(
        {}, {"x": {f"invented {i}": 5.0 for i in range(100)}}, capacity=None, default_limit=3.0
    )

    assert result == {"x": {DEFAULT_CUSTOMER: 3.0}}


def test_without_backends_there_is_nothing_to_hand_out() -> None:
    assert effective_limits(LIMITS, {}, capacity=CAPACITY, default_limit=DEFAULT) == {}


def test_effective_limits_name_a_wrong_demand() -> None:
    with pytest.raises(ConfigError, match="demand of 'a' at 'x'"):
        effective_limits({}, {"x": {"a": math.nan}}, capacity=None, default_limit=1.0)
