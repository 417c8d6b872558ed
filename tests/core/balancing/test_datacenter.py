from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

import pytest

from evenly.core.balancing.datacenter import DatacenterConfig, approach, loads, waterfall
from evenly.errors import ConfigError

BOOK = DatacenterConfig(fill_ratio=1.0)


def test_all_goes_to_the_nearest_while_it_has_room() -> None:
    shares = waterfall(
        {"paris": 90.0}, {"east": 100.0, "west": 100.0}, {"paris": {"east": 10.0, "west": 80.0}}
    )

    assert shares == {"paris": {"east": 1.0}}


def test_what_does_not_fit_spills_to_the_next_nearest() -> None:
    shares = waterfall(
        {"paris": 120.0},
        {"east": 100.0, "west": 20.0, "south": 100.0},
        {"paris": {"east": 10.0, "south": 90.0, "west": 80.0}},
    )

    # 0.9 · 100 = 90 in the east, 0.9 · 20 = 18 in the west, the last 12 of 120 in the south
    assert shares == {
        "paris": {
            "east": pytest.approx(90 / 120),
            "west": pytest.approx(18 / 120),
            "south": pytest.approx(12 / 120),
        }
    }


def test_no_more_than_the_books_fifty_thousand_a_second() -> None:
    # "if a datacenter runs 100 backend tasks and each task can process up to 500 requests per
    # second, the load balancing algorithm will not allow more than 50,000 queries per second"
    demand = {"everyone": 60_000.0}
    shares = waterfall(
        demand,
        {"near": 100 * 500.0, "far": 100 * 500.0},
        {"everyone": {"near": 1.0, "far": 2.0}},
        config=BOOK,
    )

    assert loads(demand, shares) == pytest.approx({"near": 50_000.0, "far": 10_000.0})


def test_the_nearer_origin_has_the_first_call_on_a_datacenter() -> None:
    shares = waterfall(
        {"lyon": 80.0, "paris": 50.0},
        {"east": 100.0, "west": 100.0},
        {"paris": {"east": 10.0, "west": 80.0}, "lyon": {"east": 20.0, "west": 70.0}},
    )

    # Of the 90 in the east paris takes 50, and 40 are left for lyon's 80.
    assert shares == {
        "paris": {"east": 1.0},
        "lyon": {"east": pytest.approx(0.5), "west": pytest.approx(0.5)},
    }


def test_origins_at_the_same_distance_share_the_last_room_in_proportion() -> None:
    shares = waterfall(
        {"paris": 60.0, "lyon": 120.0},
        {"east": 100.0, "west": 1000.0},
        {"paris": {"east": 10.0, "west": 80.0}, "lyon": {"east": 10.0, "west": 70.0}},
    )

    # 180 want the 90 in the east: every request has one chance in two, paris's and lyon's alike.
    half = {"east": pytest.approx(0.5), "west": pytest.approx(0.5)}
    assert shares == {"paris": half, "lyon": half}


def test_datacenters_at_the_same_distance_fill_in_proportion_to_their_room() -> None:
    shares = waterfall(
        {"paris": 60.0}, {"big": 100.0, "small": 50.0}, {"paris": {"big": 10.0, "small": 10.0}}
    )

    assert shares == {"paris": {"big": pytest.approx(2 / 3), "small": pytest.approx(1 / 3)}}


def test_room_that_nearer_origins_have_taken_does_not_count() -> None:
    shares = waterfall(
        {"lyon": 60.0, "paris": 60.0},
        {"east": 100.0, "west": 100.0},
        {"lyon": {"east": 5.0}, "paris": {"east": 10.0, "west": 10.0}},
    )

    # After lyon the rooms are 90 − 60 = 30 and 90: paris's 60 are shared 1 : 3.
    assert shares["paris"] == {"east": pytest.approx(0.25), "west": pytest.approx(0.75)}


def test_who_finds_a_datacenter_full_turns_to_its_others_at_the_same_distance() -> None:
    shares = waterfall(
        {"paris": 60.0, "lyon": 60.0},
        {"east": 100.0, "west": 50.0},
        {"paris": {"east": 10.0, "west": 10.0}, "lyon": {"west": 10.0, "east": 20.0}},
    )

    # Rooms 90 and 45.  Paris pours 40 : 20, lyon 60 into the west, where 80 want 45: it is full
    # when everyone has poured 45/80 = 56.25 % of 60 = 33.75.  Then paris, having put a third of
    # its 33.75 there (11.25), pours the rest into the east; lyon's other 26.25 follow.
    assert shares == {
        "paris": {"east": pytest.approx(48.75 / 60), "west": pytest.approx(11.25 / 60)},
        "lyon": {"west": pytest.approx(33.75 / 60), "east": pytest.approx(26.25 / 60)},
    }


@pytest.mark.parametrize(
    ("factor", "east", "expected"),
    [
        pytest.param(1.0, 100.0, {"east": 54.0 + 36.0, "west": 50.0 + 4.0 + 6.0}, id="as it is"),
        pytest.param(3.0, 100.0, {"east": 150.0, "west": 300.0}, id="three times the demand"),
        pytest.param(1.0, 0.0, {"west": 150.0}, id="the east drained"),
    ],
)
def test_the_example_of_the_documentation(
    factor: float, east: float, expected: dict[str, float]
) -> None:
    demand = {"paris": factor * 60.0, "lyon": factor * 40.0, "boston": factor * 50.0}
    shares = waterfall(
        demand,
        {"east": east, "west": 200.0},
        {
            "paris": {"east": 10.0, "west": 80.0},
            "lyon": {"east": 10.0, "west": 70.0},
            "boston": {"east": 90.0, "west": 15.0},
        },
    )

    assert loads(demand, shares) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        pytest.param(270.0, {"near": 90.0, "far": 180.0}, id="every fill room used, no headroom"),
        pytest.param(285.0, {"near": 95.0, "far": 190.0}, id="headroom used evenly: 95 % each"),
        pytest.param(300.0, {"near": 100.0, "far": 200.0}, id="exactly full"),
        pytest.param(450.0, {"near": 150.0, "far": 300.0}, id="overload spread evenly: 150 % each"),
    ],
)
def test_beyond_the_fill_ratio_all_are_equally_full(
    demand: float, expected: dict[str, float]
) -> None:
    shares = waterfall(
        {"paris": demand}, {"near": 100.0, "far": 200.0}, {"paris": {"near": 1.0, "far": 2.0}}
    )

    assert loads({"paris": demand}, shares) == pytest.approx(expected)


@pytest.mark.parametrize(
    "demand",
    [pytest.param(50.0, id="room elsewhere"), pytest.param(500.0, id="overload everywhere")],
)
def test_a_drained_datacenter_gets_nothing(demand: float) -> None:
    shares = waterfall(
        {"paris": demand},
        {"drained": 0.0, "west": 100.0},
        {"paris": {"drained": 1.0, "west": 80.0}},
    )

    assert shares == {"paris": {"west": 1.0}}


def test_an_origin_without_demand_gets_the_shares_of_its_first_request() -> None:
    shares = waterfall(
        {"paris": 90.0, "lyon": 0.0, "nice": 0.0},
        {"east": 100.0, "west": 100.0},
        {
            "paris": {"east": 10.0, "west": 80.0},
            "lyon": {"east": 5.0, "west": 80.0},
            "nice": {"east": 20.0, "west": 80.0},
        },
    )

    # Lyon comes before paris in the east; nice comes after it, and finds it full.
    assert shares["lyon"] == {"east": 1.0}
    assert shares["nice"] == {"west": 1.0}


def test_a_datacenter_that_is_full_but_for_rounding_is_full() -> None:
    shares = waterfall(
        {"paris": 0.7, "lyon": 0.1, "nice": 0.0},  # 0.7 + 0.1 = 0.7999999999999999
        {"east": 0.8, "west": 1.0},
        {
            "paris": {"east": 10.0, "west": 80.0},
            "lyon": {"east": 10.0, "west": 80.0},
            "nice": {"east": 20.0, "west": 80.0},
        },
        config=BOOK,
    )

    assert shares["nice"] == {"west": 1.0}


def test_headroom_elsewhere_is_used_before_anything_is_overloaded() -> None:
    demand = {"captive": 100.0, "paris": 94.0}
    shares = waterfall(
        demand,
        {"east": 100.0, "west": 100.0},
        {"captive": {"east": 10.0}, "paris": {"west": 10.0, "east": 20.0}},
    )

    # Both are filled to 90, with 10 and 4 left for a headroom of 10 each.  Paris pours 2 : 2, so
    # 10 + 2 want the east's 10: full when 10/12 are poured.  Paris's other 4 · 2/12 all go west
    # (90 + 2 · 10/12 + 4 · 2/12 = 92 1/3), and only captive's 10 · 2/12 overload the east.
    assert loads(demand, shares) == pytest.approx({"east": 100 + 10 / 6, "west": 92 + 1 / 3})


def test_an_origin_overloads_only_what_it_reaches() -> None:
    demand = {"captive": 130.0, "paris": 60.0}
    shares = waterfall(
        demand,
        {"east": 100.0, "west": 100.0},
        {"captive": {"east": 10.0}, "paris": {"west": 10.0, "east": 20.0}},
    )

    assert loads(demand, shares) == pytest.approx({"east": 130.0, "west": 60.0})


def test_an_origin_can_be_crowded_out_of_all_it_reaches_by_a_nearer_one() -> None:
    # The stated limit of nearest first: paris could have gone west, and does not.
    demand = {"paris": 90.0, "captive": 30.0}
    shares = waterfall(
        demand,
        {"east": 100.0, "west": 100.0},
        {"paris": {"east": 10.0, "west": 20.0}, "captive": {"east": 50.0}},
    )

    assert loads(demand, shares) == pytest.approx({"east": 120.0})


def test_an_empty_name_is_a_name_like_any_other() -> None:
    shares = waterfall(
        {"a": 3.0, "b": 3.0},
        {"": 2.0, "west": 10.0},
        {"a": {"": 10.0, "west": 10.0}, "b": {"": 10.0, "west": 20.0}},
        config=BOOK,
    )

    # a pours 0.5 : 2.5 and b 3 into "", where 3.5 want 2: full when 2/3.5 are poured.
    assert shares["a"][""] == pytest.approx(0.5 * (2 / 3.5) / 3)
    assert shares["b"][""] == pytest.approx(2 / 3.5)
    assert shares["b"]["west"] == pytest.approx(1.5 / 3.5)


def test_without_origins_there_is_nothing_to_share() -> None:
    assert waterfall({}, {"east": 1.0}, {}) == {}


@pytest.mark.parametrize(
    ("demand", "capacity", "distance", "message"),
    [
        pytest.param(
            -1.0,
            1.0,
            1.0,
            r"demand of origin 'a' must be in \[0, 1e\+15\], not -1",
            id="a negative demand",
        ),
        pytest.param(math.nan, 1.0, 1.0, "demand of origin 'a' must be", id="a demand of NaN"),
        pytest.param(math.inf, 1.0, 1.0, "demand of origin 'a' must be", id="an endless demand"),
        pytest.param(
            1.0, -1.0, 1.0, "capacity of datacenter 'x' must be", id="a negative capacity"
        ),
        pytest.param(1.0, math.nan, 1.0, "capacity of datacenter 'x' must", id="a capacity of NaN"),
        pytest.param(1.0, 1.0, -1.0, "distance from 'a' to 'x' must be", id="a negative distance"),
        pytest.param(
            1.0, 1.0, math.nan, "distance from 'a' to 'x' must be", id="a distance of NaN"
        ),
        pytest.param(1.0, 1.0, math.inf, "distance from 'a' to 'x' must be", id="an endless one"),
        pytest.param(1.0, 0.0, 1.0, "origin 'a' reaches no datacenter that has", id="all drained"),
    ],
)
def test_waterfall_refuses(demand: float, capacity: float, distance: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        waterfall({"a": demand}, {"x": capacity}, {"a": {"x": distance}})


def test_waterfall_refuses_an_unknown_datacenter() -> None:
    with pytest.raises(ConfigError, match="origin 'a' names an unknown datacenter 'y'"):
        waterfall({"a": 1.0}, {"x": 1.0}, {"a": {"x": 1.0, "y": 2.0}})


@pytest.mark.parametrize(
    "distance", [pytest.param({}, id="no line"), pytest.param({"a": {}}, id="an empty line")]
)
def test_waterfall_refuses_an_origin_that_reaches_nothing(
    distance: dict[str, dict[str, float]],
) -> None:
    with pytest.raises(ConfigError, match="origin 'a' reaches no datacenter that has capacity"):
        waterfall({"a": 1.0}, {"x": 1.0}, distance)


@pytest.mark.parametrize(
    ("fill_ratio", "max_step_ratio", "message"),
    [
        pytest.param(1.1, 0.1, r"fill_ratio must be in \[0, 1\], not 1.1", id="fill above 1"),
        pytest.param(math.nan, 0.1, "fill_ratio must be", id="fill NaN"),
        pytest.param(0.9, 0.0, r"max_step_ratio must be in \[0.001, 1\], not 0", id="step of 0"),
        pytest.param(0.9, math.nan, "max_step_ratio must be", id="step NaN"),
    ],
)
def test_config_refuses(fill_ratio: float, max_step_ratio: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatacenterConfig(fill_ratio=fill_ratio, max_step_ratio=max_step_ratio)


def test_approach_moves_one_step_of_the_demand() -> None:
    shares = approach(
        {"paris": {"east": 1.0}}, {"paris": {"east": 0.4, "west": 0.6}}, max_step_ratio=0.1
    )

    assert shares == {"paris": {"east": pytest.approx(0.9), "west": pytest.approx(0.1)}}


def test_approach_moves_all_origins_the_same_part_of_their_way() -> None:
    shares = approach(
        {"paris": {"east": 1.0}, "lyon": {"west": 1.0}},
        {"paris": {"west": 1.0}, "lyon": {"west": 0.5, "east": 0.5}},
        max_step_ratio=0.2,
    )

    # Paris has the longest way, 1.0, and goes 0.2 of it; lyon goes 0.2 of its 0.5.
    assert shares == {
        "paris": {"east": pytest.approx(0.8), "west": pytest.approx(0.2)},
        "lyon": {"west": pytest.approx(0.9), "east": pytest.approx(0.1)},
    }


def test_approach_arrives_exactly() -> None:
    target = {"paris": {"east": 0.4, "west": 0.6}}

    assert approach({"paris": {"east": 0.5, "west": 0.5}}, target, max_step_ratio=0.1) == target


def test_approach_starts_new_origins_at_their_target_and_forgets_old_ones() -> None:
    shares = approach(
        {"old": {"east": 1.0}, "paris": {"east": 1.0}},
        {"paris": {"west": 1.0}, "new": {"west": 1.0}},
        max_step_ratio=0.5,
    )

    assert shares == {"paris": {"east": 0.5, "west": 0.5}, "new": {"west": 1.0}}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        pytest.param({"x": 0.5}, "current shares of origin 'a' must sum to 1, not 0.5", id="half"),
        pytest.param({}, "current shares of origin 'a' must sum to 1, not 0", id="none"),
        pytest.param({"x": 1.5, "y": -0.5}, "current share of origin 'a' in 'x' must", id="beyond"),
        pytest.param({"x": math.nan}, "current share of origin 'a' in 'x' must be", id="NaN"),
    ],
)
def test_approach_refuses_shares_that_are_none(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        approach({"a": shares}, {"a": {"x": 1.0}}, max_step_ratio=0.1)


def test_approach_refuses_a_step_of_nothing() -> None:
    with pytest.raises(ConfigError, match=r"max_step_ratio must be in \[0.001, 1\], not 0"):
        approach({}, {}, max_step_ratio=0.0)


# A story: demand doubles, and everyone learns of it five updates late.
CAPACITY = {"near": 100.0, "far": 100.0}
DISTANCE = {"paris": {"near": 1.0, "far": 2.0}}
UPDATES_LATE = 5


def turns(series: list[float]) -> int:
    """Return how often the series changes its direction."""
    steps = [after - before for before, after in pairwise(series)]
    signs = [step > 0 for step in steps if abs(step) > 1e-9]
    return sum(before != after for before, after in pairwise(signs))


def test_late_news_of_a_step_in_demand_delays_the_waterfall_and_does_not_make_it_swing() -> None:
    known = deque([{"paris": 60.0}] * UPDATES_LATE)
    shares = waterfall(known[0], CAPACITY, DISTANCE)
    demand = {"paris": 120.0}
    near = []
    for _ in range(40):
        known.append(demand)
        target = waterfall(known.popleft(), CAPACITY, DISTANCE)
        shares = approach(shares, target, max_step_ratio=0.05)
        near.append(loads(demand, shares)["near"])

    # 120 while the news travels; then 5 % of 120 = 6 less per update, down to 90, and no turn.
    assert near[:11] == pytest.approx([120.0] * 5 + [114.0, 108.0, 102.0, 96.0, 90.0, 90.0])
    assert near[-1] == pytest.approx(90.0)
    assert turns(near) == 0


def test_late_news_makes_a_balancer_that_looks_at_load_swing() -> None:
    # What the module avoids: the same story, steps and delay, but steered by the load seen.
    share = 1.0
    seen = deque([60.0] * UPDATES_LATE)
    near = []
    for _ in range(80):
        seen.append(120.0 * share)
        share = min(1.0, max(0.0, share + (0.05 if seen.popleft() < 90.0 else -0.05)))
        near.append(120.0 * share)

    assert turns(near) > 5
