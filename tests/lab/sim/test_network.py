"""What a network does to messages: delay, jitter, loss and partitions."""

from __future__ import annotations

import math
from typing import final

import pytest

from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome
from evenly.lab.sim.fault_config import LossFault, PartitionFault
from evenly.lab.sim.network import Network
from evenly.lab.sim.probe import Probe
from evenly.lab.sim.scenario import (
    ClientsConfig,
    NetworkConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.world import World
from tests.lab.sim.small import Listener, new_machine, new_stage
from tests.suites.story import Story

SEED = 1
DRAWS = 20_000


@final
class Heard:
    """Count the probes whose answers arrive."""

    def __init__(self) -> None:
        self.count = 0

    def answer_probe(self, probe: Probe) -> None:
        raise AssertionError(f"nobody asked for this: {probe!r}")

    def probe_came_back(self, probe: Probe) -> None:
        self.count += 1


def small_world(network: NetworkConfig) -> World:
    scenario = Scenario(
        title="a network",
        settle_seconds=0.0,
        clients=ClientsConfig(count=1),
        backends=ServiceConfig(count=2),
        network=network,
    )
    return World(scenario, policy="round_robin", load=0.0, seed=SEED)


def delays(network: NetworkConfig) -> list[float]:
    (client,) = small_world(network).clients
    return [client.delay() for _ in range(DRAWS)]


def assert_share(count: int, whole: int, share: float) -> None:
    """Compare a part with its share of the whole: 4 standard deviations of a binomial count."""
    tolerance = 4.0 * math.sqrt(whole * share * (1.0 - share))
    assert abs(count - whole * share) < tolerance, (count, whole, share)


# Single messages.


def test_without_jitter_every_message_takes_as_long() -> None:
    assert set(delays(NetworkConfig(delay_seconds=0.01, jitter_ratio=0.0))) == {0.01}


def test_jitter_only_adds_and_is_uniform() -> None:
    seconds = delays(NetworkConfig(delay_seconds=0.01, jitter_ratio=0.5))

    assert 0.01 <= min(seconds) < 0.0101
    assert 0.0149 < max(seconds) < 0.015
    # A uniform number from [0, 1) has a standard deviation of sqrt(1 / 12): 4 of them over sqrt(n).
    tolerance = 4.0 * 0.01 * 0.5 * math.sqrt(1.0 / 12.0 / DRAWS)
    assert abs(sum(seconds) / DRAWS - 0.0125) < tolerance


@pytest.mark.parametrize("loss_ratio", [0.1, 0.5, 0.9])
def test_a_lost_message_is_sent_again_until_it_arrives(loss_ratio: float) -> None:
    network = NetworkConfig(delay_seconds=0.0, loss_ratio=loss_ratio, resend_seconds=1.0)
    resent = delays(network)

    # The times that it was lost: geometric, with mean p / (1 - p) and variance p / (1 - p)^2.
    mean = loss_ratio / (1.0 - loss_ratio)
    deviation = math.sqrt(loss_ratio) / (1.0 - loss_ratio)
    assert all(seconds == int(seconds) for seconds in resent)
    assert abs(sum(resent) / DRAWS - mean) < 4.0 * deviation / math.sqrt(DRAWS)


def test_a_lost_datagram_is_gone_and_others_are_not_late() -> None:
    network = NetworkConfig(
        delay_seconds=0.01, jitter_ratio=0.0, loss_ratio=0.3, resend_seconds=9.0
    )
    world = small_world(network)
    (client,) = world.clients
    heard = Heard()
    for _ in range(DRAWS):
        client.answer_probe(Probe(heard, world.machines[0], None))

    world.stage.events.run(0.011)

    assert_share(heard.count, DRAWS, 0.7)
    assert client.probe_delay() == 0.01


# Partitions.


def test_two_partitions_of_one_pair_need_two_mendings() -> None:
    network = Network(NetworkConfig())
    assert network.passes(1, "a")
    network.cut(1, "a")
    network.cut(1, "a")
    network.cut(2, "b")

    assert [network.passes(1, "a"), network.passes(2, "b")] == [False, False]
    assert [network.passes(1, "b"), network.passes(2, "a")] == [True, True]
    network.mend(1, "a", 1.0)
    assert not network.passes(1, "a")
    network.mend(1, "a", 2.0)
    assert network.passes(1, "a")
    assert network.is_cut  # The other pair still is.
    network.mend(2, "b", 3.0)
    assert not network.is_cut


def test_a_request_that_a_partition_stops_is_never_seen_by_its_backend() -> None:
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=1))
    cut_off, other = Listener(stage, index=1), Listener(stage, index=2)
    stage.network.cut(1, "backend-0")
    stage.events.at(5.0, lambda: stage.network.mend(1, "backend-0", 5.0))
    cut_off.send(machine, 1.0, at=1.0)
    passed = other.send(machine, 1.0, at=1.5)
    afterwards = cut_off.send(machine, 1.0, at=6.0)

    stage.events.run(10.0)

    assert other.ends() == {passed: 2.5}
    assert cut_off.ends() == {afterwards: 7.0}
    assert machine.busy_seconds() == pytest.approx(2.0)


def partitioned(clients: int) -> Story:
    """Cut 2 of 4 backends off from 5 to 15 s, for so many of the 4 clients."""
    scenario = Scenario(
        title="partition",
        seconds=25.0,
        settle_seconds=0.0,
        workload=WorkloadConfig(timeout_seconds=2.0),
        clients=ClientsConfig(count=4, start_seconds=0.0),
        # Timeouts look like overload, and throttle; here everything is to be sent.
        client_task=ClientTaskConfig(throttle=ThrottleConfig(name="off")),
        backends=ServiceConfig(count=4, cost=RequestCostConfig(mean_seconds=0.02)),
        faults=(
            PartitionFault(at_seconds=5.0, seconds=10.0, first=2, backends=2, clients=clients),
        ),
    )
    story = Story(scenario, policy="round_robin", load=0.3)
    story.tell()
    return story


def test_nothing_passes_a_partition_and_nobody_hears_why() -> None:
    story = partitioned(clients=4)

    # What is sent there is neither lost nor refused: whoever waits for it waits in vain.  There is
    # a health check a second: before the first, something may have been heard; three go unanswered;
    # the next one finds them so, at 10 s at the latest.  Two are half of a subset: so many may be.
    assert set(story.seen.outcomes) == {Outcome.OK, Outcome.TIMEOUT}
    sent = story.seen.sent_between(10.5, 15.0)
    assert sent["service-2"] + sent["service-3"] == 0
    assert story.succeeded(11, 15) == story.offered(11, 15)
    # Until then half of the requests went there.
    assert_share(story.offered(5, 9) - story.succeeded(5, 9), story.offered(5, 9), 1 / 2)
    # Silent ones are tried again with growing pauses; every answer to a check brings them back.
    after = story.seen.sent_between(23.0, 25.0)
    assert min(after.values()) > 0.5 * max(after.values())
    assert len(after) == 4
    assert story.succeeded(17, 25) == story.offered(17, 25)


def test_a_partition_may_hit_some_clients_only() -> None:
    story = partitioned(clients=1)

    # A quarter of the requests come from client 0, and half of these went behind the partition.
    assert_share(story.offered(5, 9) - story.succeeded(5, 9), story.offered(5, 9), 1 / 8)
    sent = story.seen.sent_between(10.5, 15.0)
    # Half of a quarter has moved over to the other two: 3/16 each instead of 1/4.
    for address in ("service-2", "service-3"):
        assert_share(sent[address], sent.total(), 3 / 16)


def test_loss_for_a_while_makes_requests_late_and_no_more() -> None:
    scenario = Scenario(
        title="loss",
        seconds=15.0,
        settle_seconds=0.0,
        clients=ClientsConfig(count=4, start_seconds=0.0),
        backends=ServiceConfig(count=4, cost=RequestCostConfig(mean_seconds=0.01)),
        faults=(LossFault(at_seconds=5.0, seconds=5.0, ratio=0.1),),
    )
    story = Story(scenario, policy="round_robin", load=0.3)
    story.tell()

    assert set(story.seen.outcomes) == {Outcome.OK}

    def late_ratio(begin: int, end: int) -> float:
        latencies = [x for second in story.seconds(begin, end) for x in second.latencies]
        return sum(seconds >= 0.2 for seconds in latencies) / len(latencies)

    # One of two messages is lost with 1 - 0.9^2 = 0.19, and sent again 0.2 s later.
    assert late_ratio(0, 4) == late_ratio(10, 15) == 0.0
    n = story.offered(5, 10)
    assert_share(round(late_ratio(5, 10) * n), n, 0.19)
