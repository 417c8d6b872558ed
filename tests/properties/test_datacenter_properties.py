from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evenly.core.balancing.datacenter import DatacenterConfig, Shares, approach, loads, waterfall

# Shares are off by the dust (1e-13) and by some hundred roundings (1e-16 each) of a demand below
# 1e3; the changes tested below are at least 0.01.  1e-9 is far above the one and below the other.
NEAR = 1e-9


@dataclass(frozen=True)
class World:
    demand: dict[str, float]
    capacity: dict[str, float]
    distance: dict[str, dict[str, float]]
    config: DatacenterConfig

    def shares(self) -> dict[str, dict[str, float]]:
        return waterfall(self.demand, self.capacity, self.distance, config=self.config)

    def flows(self) -> dict[tuple[str, str], float]:
        shares = self.shares()
        return {
            (origin, name): wanted * shares[origin].get(name, 0.0)
            for origin, wanted in self.demand.items()
            for name in self.capacity
        }

    def loads(self) -> dict[str, float]:
        return dict.fromkeys(self.capacity, 0.0) | loads(self.demand, self.shares())

    def with_demand(self, origin: str, wanted: float) -> World:
        return replace(self, demand=self.demand | {origin: wanted})

    def with_capacity(self, name: str, most: float) -> World:
        return replace(self, capacity=self.capacity | {name: most})


quantities = st.one_of(
    st.integers(min_value=0, max_value=50).map(float), st.floats(min_value=0.01, max_value=100.0)
)
changes = st.floats(min_value=0.01, max_value=50.0)


@st.composite
def worlds(draw: st.DrawFn, *, everyone_reaches_all: bool = False) -> World:
    origins = [f"origin {i}" for i in range(draw(st.integers(1, 4)))]
    names = [f"datacenter {i}" for i in range(draw(st.integers(1, 4)))]
    capacity = {name: draw(quantities) for name in names}
    # Everyone reaches one that has room: otherwise there is nothing to share out.
    sure = draw(st.sampled_from(names))
    capacity[sure] = capacity[sure] or 1.0
    # Few distances, so that ties are common.
    far = st.integers(min_value=1, max_value=draw(st.sampled_from([1, 3, 100]))).map(float)
    distance = {}
    for origin in origins:
        reached = names if everyone_reaches_all else [sure, *draw(st.lists(st.sampled_from(names)))]
        distance[origin] = {name: draw(far) for name in sorted(reached)}
    return World(
        demand={origin: draw(quantities) for origin in origins},
        capacity=capacity,
        distance=distance,
        config=DatacenterConfig(fill_ratio=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))),
    )


@given(world=worlds())
def test_each_origins_shares_are_positive_and_sum_to_one(world: World) -> None:
    for origin, shares in world.shares().items():
        # At most four shares, each rounded to within 1.1e-16.
        assert math.fsum(shares.values()) == pytest.approx(1.0, rel=0.0, abs=5e-16)
        assert all(share > 0.0 for share in shares.values())
        assert all(name in world.distance[origin] for name in shares)
        assert all(world.capacity[name] > 0.0 for name in shares)


@given(world=worlds(everyone_reaches_all=True))
def test_none_passes_its_fill_ratio_while_there_is_room_and_then_all_are_equally_full(
    world: World,
) -> None:
    wanted = math.fsum(world.demand.values())
    most = math.fsum(world.capacity.values())
    even = max(world.config.fill_ratio, wanted / most)
    for name, load in world.loads().items():
        assert load <= even * world.capacity[name] + NEAR
        if wanted >= world.config.fill_ratio * most:
            assert load == pytest.approx(even * world.capacity[name], abs=NEAR)


@given(world=worlds())
def test_an_origin_goes_beyond_a_datacenters_capacity_only_when_all_that_it_reaches_are_full(
    world: World,
) -> None:
    load = world.loads()
    over = [name for name in load if load[name] > world.capacity[name] + NEAR]
    for name in over:
        # Someone who sends here has no other place left.  (Who came before may have one: see
        # `test_an_origin_can_be_crowded_out_of_all_it_reaches_by_a_nearer_one`.)
        assert any(
            all(load[other] >= world.capacity[other] - NEAR for other in world.distance[origin])
            for origin, shares in world.shares().items()
            if name in shares
        )


@given(world=worlds(everyone_reaches_all=True))
def test_nobody_is_sent_past_a_nearer_datacenter_that_has_room_or_serves_someone_farther(
    world: World,
) -> None:
    fill = {name: world.config.fill_ratio * most for name, most in world.capacity.items()}
    wanted, room = math.fsum(world.demand.values()), math.fsum(fill.values())
    if wanted > room:  # Make it fit: the promise is for demand that finds room.
        smaller = {origin: demand * room / wanted for origin, demand in world.demand.items()}
        world = replace(world, demand=smaller)
    flows, load = world.flows(), world.loads()
    for (origin, name), flow in flows.items():
        if flow <= NEAR:
            continue
        for nearer, far in world.distance[origin].items():
            if far < world.distance[origin][name]:
                assert load[nearer] == pytest.approx(fill[nearer], abs=NEAR)
                assert all(
                    flows[other, nearer] <= NEAR or world.distance[other][nearer] <= far
                    for other in world.demand
                )


@given(
    demand=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    capacity=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    data=st.data(),
)
def test_without_ties_it_is_the_stable_match_of_requests_and_places(
    demand: list[int], capacity: list[int], data: st.DataObject
) -> None:
    capacity[0] += max(0, sum(demand) - sum(capacity)) or (not any(capacity))  # Room for all.
    pairs = [(o, d) for o in range(len(demand)) for d in range(len(capacity))]
    rank = dict(zip(pairs, data.draw(st.permutations(range(len(pairs)))), strict=True))

    # An independent way to the same place (Gale and Shapley): one request after another asks its
    # datacenters in order of distance, and each keeps the nearest that fit and sends others away.
    kept: list[list[int]] = [[] for _ in capacity]
    asking = [(origin, 0) for origin, many in enumerate(demand) for _ in range(many)]
    asked = [
        [d for _, d in sorted((rank[o, d], d) for d in range(len(capacity)))]
        for o in range(len(demand))
    ]
    while asking:
        origin, attempt = asking.pop()
        d = asked[origin][attempt]
        kept[d].append(origin)
        if len(kept[d]) > capacity[d]:
            _, worst = max((rank[o, d], o) for o in kept[d])
            kept[d].remove(worst)
            asking.append((worst, asked[worst].index(d) + 1))

    world = World(
        demand={str(o): float(many) for o, many in enumerate(demand)},
        capacity={str(d): float(most) for d, most in enumerate(capacity)},
        distance={
            str(o): {str(d): float(rank[o, d]) for d in range(len(capacity))}
            for o in range(len(demand))
        },
        config=DatacenterConfig(fill_ratio=1.0),
    )
    expected = {(str(o), str(d)): kept[d].count(o) for o, d in pairs}
    assert world.flows() == pytest.approx(expected, abs=NEAR)


@given(world=worlds(), more=changes, data=st.data())
def test_more_demand_lowers_no_load_and_adds_exactly_itself(
    world: World, more: float, data: st.DataObject
) -> None:
    origin = data.draw(st.sampled_from(sorted(world.demand)))
    before = world.loads()
    after = world.with_demand(origin, world.demand[origin] + more).loads()

    assert all(after[name] >= before[name] - NEAR for name in before)
    # So the loads have moved by `more` in total and no farther: the Lipschitz bound is 1.
    assert math.fsum(abs(after[name] - before[name]) for name in before) == pytest.approx(
        more, abs=NEAR
    )


@given(world=worlds(), more=changes, data=st.data())
def test_more_demand_keeps_what_it_had_within_every_distance_and_displaces_at_most_itself(
    world: World, more: float, data: st.DataObject
) -> None:
    origin = data.draw(st.sampled_from(sorted(world.demand)))
    before = world.flows()
    after = world.with_demand(origin, world.demand[origin] + more).flows()

    for radius in world.distance[origin].values():
        within = [name for name, far in world.distance[origin].items() if far <= radius]
        assert math.fsum(after[origin, name] - before[origin, name] for name in within) >= -NEAR
    for other in world.demand:
        if other != origin:
            lost = [max(0.0, before[other, name] - after[other, name]) for name in world.capacity]
            assert math.fsum(lost) <= more + NEAR


@given(world=worlds(), more=changes, data=st.data())
def test_more_capacity_draws_load_only_to_itself_and_no_more_than_it_adds(
    world: World, more: float, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(world.capacity)))
    assume(world.capacity[name] > 0.0)
    before = world.loads()
    after = world.with_capacity(name, world.capacity[name] + more).loads()

    utilization = before[name] / world.capacity[name]
    # In an overload a CPU more takes its even part of it, which is more than one CPU's worth.
    assert -NEAR <= after[name] - before[name] <= more * max(1.0, utilization) * (1 + NEAR) + NEAR
    assert all(after[other] <= before[other] + NEAR for other in before if other != name)


@given(world=worlds(), part=st.floats(min_value=0.0, max_value=1.0), data=st.data())
def test_origins_with_the_same_distances_have_the_same_shares_however_they_are_cut(
    world: World, part: float, data: st.DataObject
) -> None:
    origin = data.draw(st.sampled_from(sorted(world.demand)))
    whole = world.demand[origin]
    cut = replace(
        world,
        demand=world.demand | {origin: part * whole, "twin": (1.0 - part) * whole},
        distance=world.distance | {"twin": world.distance[origin]},
    )

    shares, expected = cut.shares(), world.shares()
    for name in world.capacity:
        share = pytest.approx(expected[origin].get(name, 0.0), abs=NEAR)
        assert shares["twin"].get(name, 0.0) == share
        assert shares[origin].get(name, 0.0) == share


@given(world=worlds(), part=st.floats(min_value=0.01, max_value=0.99), data=st.data())
def test_a_datacenter_cut_in_two_gets_the_same_in_total(
    world: World, part: float, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(world.capacity)))
    most = world.capacity[name]
    cut = replace(
        world,
        capacity=world.capacity | {name: part * most, "twin": (1.0 - part) * most},
        distance={
            origin: by | ({"twin": by[name]} if name in by else {})
            for origin, by in world.distance.items()
        },
    )

    before, after = world.flows(), cut.flows()
    for origin in world.demand:
        for other in world.capacity:
            flow = after[origin, other] + (after[origin, "twin"] if other == name else 0.0)
            assert flow == pytest.approx(before[origin, other], abs=NEAR)


@given(world=worlds(), factor=st.floats(min_value=1e-3, max_value=1e3))
def test_neither_the_unit_nor_the_order_of_the_input_matters(world: World, factor: float) -> None:
    other = replace(
        world,
        demand={name: factor * wanted for name, wanted in reversed(world.demand.items())},
        capacity={name: factor * most for name, most in reversed(world.capacity.items())},
        distance={
            origin: {name: factor * far for name, far in reversed(by.items())}
            for origin, by in world.distance.items()
        },
    )

    shares, expected = other.shares(), world.shares()
    for origin in world.demand:
        for name in world.capacity:
            share = shares[origin].get(name, 0.0)
            assert share == pytest.approx(expected[origin].get(name, 0.0), abs=NEAR)


@st.composite
def two_shares(draw: st.DrawFn) -> tuple[Shares, Shares]:
    origins = [f"origin {i}" for i in range(draw(st.integers(1, 3)))]

    def shares() -> dict[str, dict[str, float]]:
        result = {}
        for origin in origins:
            parts = draw(st.lists(st.integers(0, 100), min_size=3, max_size=3).filter(any))
            result[origin] = {f"datacenter {i}": p / sum(parts) for i, p in enumerate(parts) if p}
        return result

    return shares(), shares()


def longest_way(current: Shares, target: Shares) -> float:
    return max(
        sum(abs(target[o].get(name, 0.0) - current[o].get(name, 0.0)) for name in names) / 2
        for o in target
        for names in [{**current[o], **target[o]}]
    )


@given(pair=two_shares(), step=st.floats(min_value=0.001, max_value=1.0))
def test_approach_goes_one_step_without_overshoot_and_keeps_the_sum(
    pair: tuple[Shares, Shares], step: float
) -> None:
    current, target = pair
    after = approach(current, target, max_step_ratio=step)

    way = longest_way(current, target)
    assert longest_way(current, after) == pytest.approx(min(step, way), abs=1e-12)
    assert longest_way(after, target) == pytest.approx(max(0.0, way - step), abs=1e-12)
    for origin, shares in after.items():
        assert math.fsum(shares.values()) == pytest.approx(1.0, abs=1e-12)
        for name in {**current[origin], **target[origin]}:
            ends = sorted([current[origin].get(name, 0.0), target[origin].get(name, 0.0)])
            assert ends[0] - 1e-12 <= shares.get(name, 0.0) <= ends[1] + 1e-12


@given(pair=two_shares(), step=st.floats(min_value=0.05, max_value=1.0))
def test_approach_arrives_after_the_longest_way_over_the_step(
    pair: tuple[Shares, Shares], step: float
) -> None:
    current, target = pair
    updates = math.ceil(longest_way(current, target) / step)
    for _ in range(updates + 1):  # one more for rounding
        current = approach(current, target, max_step_ratio=step)

    assert current == target


@given(
    world=worlds(),
    late=st.integers(min_value=0, max_value=6),
    step=st.floats(min_value=0.05, max_value=1.0),
    data=st.data(),
)
def test_a_step_in_demand_known_late_makes_no_load_swing(
    world: World, late: int, step: float, data: st.DataObject
) -> None:
    demand = {origin: data.draw(quantities) for origin in world.demand}
    known = [world.demand] * late + [demand] * 30
    shares: Shares = world.shares()
    history = [loads(demand, shares)]
    for known_demand in known:
        target = replace(world, demand=known_demand).shares()
        shares = approach(shares, target, max_step_ratio=step)
        history.append(loads(demand, shares))

    for name in world.capacity:
        series = [load.get(name, 0.0) for load in history]
        rises = all(after >= before - NEAR for before, after in pairwise(series))
        falls = all(after <= before + NEAR for before, after in pairwise(series))
        assert rises or falls
    assert shares == replace(world, demand=demand).shares()
