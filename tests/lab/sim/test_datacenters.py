"""Several datacenters: at home while there is room, and next door for exactly what has none."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from evenly.lab.sim.fault_config import CrashFault
from evenly.lab.sim.scenario import (
    ClientsConfig,
    DatacenterShare,
    NetworkConfig,
    Scenario,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from tests.suites.story import Story

# 8 backends of 2 cores at 20 ms serve 800 requests/s, 400 in each of two places.
SCENARIO = Scenario(
    title="two places",
    seconds=30.0,
    settle_seconds=0.0,
    ideal=False,
    clients=ClientsConfig(count=8, start_seconds=0.0),
    backends=ServiceConfig(count=8, cores=2, cost=RequestCostConfig(mean_seconds=0.02)),
    network=NetworkConfig(delay_seconds=0.001, between_seconds=0.05, jitter_ratio=0.0),
    datacenters=(
        DatacenterShare(name="east", clients_ratio=0.75, backends_ratio=0.5),
        DatacenterShare(name="west", clients_ratio=0.25, backends_ratio=0.5),
    ),
)


def told(scenario: Scenario, *, load: float) -> Story:
    story = Story(scenario, policy="probing", load=load)
    story.tell()
    return story


def sent_by_place(story: Story, begin: float, end: float) -> Counter[str]:
    """Return how many attempts went to each datacenter; addresses are service-PLACE-INDEX."""
    places: Counter[str] = Counter()
    for address, count in story.seen.sent_between(begin, end).items():
        places[address.split("-")[1]] += count
    return places


def test_backends_and_clients_stand_where_the_shares_say() -> None:
    story = Story(SCENARIO, policy="probing", load=0.1)

    addresses = [machine.backend.address for machine in story.world.machines]
    assert addresses == [f"service-{place}-{i}" for place in ("east", "west") for i in range(4)]
    # Each client task has one task for each datacenter; six of eight are at home in the east.
    names = [client.name for client in story.world.clients]
    assert names == [f"client-{i}/{place}" for i in range(8) for place in ("east", "west")]


def test_all_requests_stay_at_home_while_there_is_room() -> None:
    # The east wants 0.75 · 0.45 · 800 = 270 requests/s of the 0.9 · 400 = 360 that it takes before
    # anything spills.  The demand of one second has a standard deviation of sqrt(270) = 16.4: 5 of
    # them below.
    story = told(SCENARIO, load=0.45)

    places = sent_by_place(story, 0.0, 30.0)
    assert_poisson(places["east"], 30 * 270)
    assert_poisson(places["west"], 30 * 90)
    assert story.succeeded(0, 30) == story.offered(0, 30)


def test_what_has_no_room_goes_next_door_and_no_more() -> None:
    # The east wants 0.75 · 0.8 · 800 = 480 requests/s and takes 360; 120 go to the west, which has
    # 160 of its own, and room.
    story = told(SCENARIO, load=0.8)

    places = sent_by_place(story, 10.0, 30.0)
    # What stays is 360 whatever the demand, but for what demand changes from one second to the
    # next: both have a deviation of sqrt(480), and what stays has 360 / 480 of their difference.
    one_second = 360 / 480 * math.sqrt(2 * 480)
    assert abs(places["east"] - 20 * 360) < 4.0 * one_second * math.sqrt(20)
    assert_poisson(places.total(), 20 * 640)
    assert story.succeeded(10, 30) > 0.99 * story.offered(10, 30)


def test_shares_move_by_a_tenth_a_second_at_most() -> None:
    story = told(replace(SCENARIO, seconds=10.0), load=0.8)

    # From 0 to a quarter of 480 requests/s, in steps of 48, at 1, 2 and 3 s.
    places = [sent_by_place(story, second, second + 1.0)["west"] for second in range(4)]
    for count, spilled in zip(places, (0, 48, 96, 120), strict=True):
        # Its own 160 are Poisson, and what is spilled is a share of a Poisson demand.
        assert_poisson(count, 160 + spilled)


def test_a_datacenter_that_goes_down_hands_its_requests_over() -> None:
    # All of the east (the first four) crash at 10 s, and come back much later.
    scenario = replace(
        SCENARIO,
        backends=replace(SCENARIO.backends, down_seconds=1_000.0),
        faults=(CrashFault(at_seconds=10.0, backends=4),),
    )
    story = told(scenario, load=0.3)

    # 0.3 · 800 = 240 requests/s fit into the west.  A tenth moves every second: after 11 s all.
    assert sent_by_place(story, 0.0, 10.0)["east"] > 1_000
    assert sent_by_place(story, 22.0, 30.0).keys() == {"west"}
    assert story.succeeded(22, 30) == story.offered(22, 30)
    # Three of four come from the east, two delays of 0.05 s away; of the others, whose costs are 20
    # ms on average and whose queues are as long, few take so long.
    latencies = [x for second in story.seconds(22, 30) for x in second.latencies]
    far = sum(seconds >= 0.1 for seconds in latencies)
    tolerance = 4.0 * math.sqrt(0.75 * 0.25 * len(latencies))
    assert -tolerance < far - 0.75 * len(latencies) < tolerance + 0.1 * 0.25 * len(latencies)


def assert_poisson(count: int, expected: float) -> None:
    assert abs(count - expected) < 4.0 * math.sqrt(expected), (count, expected)
