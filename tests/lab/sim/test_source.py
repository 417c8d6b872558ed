"""Where requests come from: how many, when, whose and how critical."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import final

import pytest

from evenly.core.criticality import Criticality
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.fault_config import SurgeFault
from evenly.lab.sim.job import Call
from evenly.lab.sim.scenario import (
    BurstConfig,
    ClientsConfig,
    CustomerConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.source import Mix, Profile, Source
from evenly.lab.sim.stage import Stage

SEED = 1
PHASES = (
    PhaseConfig(seconds=10.0, load=0.5),
    PhaseConfig(seconds=20.0),
    PhaseConfig(seconds=5.0, load=0.0),
    PhaseConfig(seconds=15.0, load=2.0),
)


@final
class Arrivals:
    """Write down what is sent, and when."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.requests: list[tuple[float, Request]] = []

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        self.requests.append((self._stage.events.now, request))

    def between(self, begin: float, end: float) -> list[Request]:
        return [request for at, request in self.requests if begin <= at < end]


def arrivals(
    scenario: Scenario,
    *,
    load: float = 1.0,
    rate: float = 1_000.0,
    surges: tuple[tuple[float, str, float], ...] = (),
) -> Arrivals:
    """Run one source of so many requests per second at load 1."""
    stage = Stage(scenario, SEED)
    sent = Arrivals(stage)
    mix = Mix(scenario.workload)
    source = Source(
        stage,
        sent,
        name="client-0",
        requests_per_second=rate,
        profile=Profile(scenario, load),
        mix=mix,
    )
    source.start()
    for at, customer, ratio in surges:
        stage.events.at(at, lambda c=customer, r=ratio: mix.surge(c, r))  # type: ignore[misc]
    stage.events.run(scenario.total_seconds + 100.0)
    return sent


def assert_near(count: int, expected: float) -> None:
    """Compare a Poisson count with its mean: 4 standard deviations are 4 · sqrt(mean)."""
    assert abs(count - expected) <= 4.0 * math.sqrt(expected), (count, expected)


def workload_of(**shares: float) -> WorkloadConfig:
    return WorkloadConfig(
        customers=tuple(CustomerConfig(name=name, share=share) for name, share in shares.items())
    )


# How many, and when.


def test_every_phase_has_its_own_rate_and_the_row_its_load() -> None:
    sent = arrivals(Scenario(title="phases", phases=PHASES), load=0.8)

    assert_near(len(sent.between(0.0, 10.0)), 0.5 * 1_000 * 10)
    assert_near(len(sent.between(10.0, 30.0)), 0.8 * 1_000 * 20)
    assert len(sent.between(30.0, 35.0)) == 0
    assert_near(len(sent.between(35.0, 50.0)), 2.0 * 1_000 * 15)
    assert sent.between(50.0, math.inf) == []


def test_requests_come_as_a_poisson_stream() -> None:
    sent = arrivals(Scenario(title="one load", seconds=100.0))

    times = [at for at, _ in sent.requests]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    n = len(gaps)
    mean = sum(gaps) / n
    # Gaps are exponential: their variance is the mean squared.  Of n exponentials the variance has
    # a relative standard deviation of sqrt(8 / n) (their fourth central moment is 9 · mean^4).
    variance = sum((gap - mean) ** 2 for gap in gaps) / n
    assert variance == pytest.approx(mean**2, rel=4.0 * math.sqrt(8.0 / n))
    # And 1 - 1 / e of them are shorter than the mean: 4 deviations of a binomial ratio.
    short = sum(gap < mean for gap in gaps) / n
    ratio = 1.0 - math.exp(-1.0)
    assert abs(short - ratio) < 4.0 * math.sqrt(ratio * (1.0 - ratio) / n)
    # Gaps know nothing of one another: the correlation of neighbours is 0 with deviation 1/sqrt(n).
    along = sum((a - mean) * (b - mean) for a, b in pairwise(gaps))
    assert abs(along / (n * variance)) < 4.0 / math.sqrt(n)


def test_bursts_multiply_the_load_for_their_time() -> None:
    bursts = BurstConfig(every_seconds=10.0, seconds=2.0, factor=3.0)
    scenario = Scenario(title="bursts", seconds=35.0, workload=WorkloadConfig(bursts=bursts))
    profile = Profile(scenario, 0.5)

    # The first comes after one whole interval.
    pieces = {at: profile.piece(at) for at in (0.0, 9.9, 10.0, 11.9, 12.0, 20.0, 22.0, 30.0, 32.0)}
    assert pieces == {
        0.0: (0.5, 10.0),
        9.9: (0.5, 10.0),
        10.0: (1.5, 12.0),
        11.9: (1.5, 12.0),
        12.0: (0.5, 20.0),
        20.0: (1.5, 22.0),
        22.0: (0.5, 30.0),
        30.0: (1.5, 32.0),
        32.0: (0.5, 35.0),
    }
    sent = arrivals(scenario, load=0.5)
    assert_near(len(sent.between(10.0, 12.0)), 3_000)
    assert_near(len(sent.between(12.0, 20.0)), 4_000)


def test_bursts_multiply_whatever_the_phase_has() -> None:
    workload = WorkloadConfig(bursts=BurstConfig(every_seconds=6.0, seconds=4.0, factor=2.0))
    profile = Profile(Scenario(title="both", phases=PHASES[:2], workload=workload), 1.0)

    # 6 to 10 s is a burst that ends with the phase, 12 to 16 s one in the next.
    instants = (0.0, 6.0, 10.0, 12.0, 16.0)
    assert [profile.piece(at) for at in instants] == [
        (0.5, 6.0),
        (1.0, 10.0),
        (1.0, 12.0),
        (2.0, 16.0),
        (1.0, 18.0),
    ]


@pytest.mark.parametrize("every", [0.1, 0.3, 0.7])
def test_bursts_whose_instants_are_no_whole_numbers_are_not_lost_to_rounding(every: float) -> None:
    bursts = BurstConfig(every_seconds=every, seconds=every / 2.0, factor=3.0)
    scenario = Scenario(title="bursts", seconds=30.0, workload=WorkloadConfig(bursts=bursts))
    profile = Profile(scenario, 1.0)

    middles = [(i + 0.25) * every for i in range(1, int(29.0 / every))]
    assert {profile.piece(at)[0] for at in middles} == {3.0}
    assert {profile.piece(at + every / 2.0)[0] for at in middles} == {1.0}


# Whose, and how critical.


def test_criticalities_and_customers_have_their_shares() -> None:
    workload = WorkloadConfig(
        criticalities={
            Criticality.SHEDDABLE: 1.0,
            Criticality.CRITICAL: 2.0,
            Criticality.CRITICAL_PLUS: 1.0,
        },
        customers=(CustomerConfig(name="a", share=3.0), CustomerConfig(name="b", share=1.0)),
    )
    sent = arrivals(Scenario(title="mix", seconds=40.0, workload=workload))

    requests = [request for _, request in sent.requests]
    counts = Counter((request.criticality, request.customer) for request in requests)
    # Both are drawn for themselves, so the shares of pairs are products.
    for criticality, share in {0: 0.25, 2: 0.5, 3: 0.25}.items():
        assert_near(counts[Criticality(criticality), "a"], 40_000 * share * 0.75)
        assert_near(counts[Criticality(criticality), "b"], 40_000 * share * 0.25)
    assert counts[Criticality.SHEDDABLE_PLUS, "a"] == 0


def test_a_surge_adds_to_one_customer_and_takes_from_nobody() -> None:
    scenario = Scenario(title="surge", seconds=30.0, workload=workload_of(noisy=1.0, quiet=3.0))
    sent = arrivals(scenario, surges=((10.0, "noisy", 9.0), (20.0, "noisy", 1.0)))

    for begin, noisy in ((0.0, 2_500), (10.0, 22_500), (20.0, 2_500)):
        counts = Counter(request.customer for request in sent.between(begin, begin + 10.0))
        assert_near(counts["noisy"], noisy)
        assert_near(counts["quiet"], 7_500)


def test_a_surge_reaches_clients_that_seldom_send_at_once() -> None:
    # One request in 1,000 s, drawn anew when the surge begins: a thousand times as many.
    scenario = Scenario(title="surge", seconds=2_000.0, workload=workload_of(noisy=1.0, quiet=0.0))
    sent = arrivals(scenario, rate=0.001, surges=((100.0, "noisy", 1_000.0),))

    assert_near(len(sent.between(100.0, 1_100.0)), 1_000)


def test_a_customer_that_is_silent_for_a_while_comes_back() -> None:
    scenario = Scenario(title="silence", seconds=30.0, workload=workload_of(only=1.0))
    sent = arrivals(scenario, surges=((10.0, "only", 0.0), (20.0, "only", 1.0)))

    assert_near(len(sent.between(0.0, 10.0)), 10_000)
    assert sent.between(10.0, 20.0) == []
    assert_near(len(sent.between(20.0, 30.0)), 10_000)
    assert {request.customer for _, request in sent.requests} == {"only"}


def test_a_request_carries_its_deadline_and_whether_it_may_be_repeated() -> None:
    workload = WorkloadConfig(timeout_seconds=2.5, idempotent=True)
    sent = arrivals(Scenario(title="carried", seconds=15.0, workload=workload), rate=1.0)

    assert sent.requests
    for at, request in sent.requests:
        assert request == Request(deadline_at=at + 2.5, idempotent=True)


def users_of(*, shares_luck: bool) -> list[list[Request]]:
    """Return what users send, four calls each."""
    workload = WorkloadConfig(calls_per_user=4, shares_luck=shares_luck)
    sent = arrivals(Scenario(title="users", seconds=30.0, workload=workload))
    assert_near(len(sent.requests), 30_000)
    calls: dict[float, list[Request]] = {}
    for at, request in sent.requests:
        calls.setdefault(at, []).append(request)
    assert {len(group) for group in calls.values()} == {4}
    return list(calls.values())


def test_all_calls_of_a_user_come_at_once_and_have_the_same_luck() -> None:
    users = users_of(shares_luck=True)

    assert all(len({request.luck for request in calls}) == 1 for calls in users)
    assert len({calls[0].luck for calls in users}) == 64


def test_without_a_users_luck_each_call_has_one_of_its_own() -> None:
    assert {request.luck for calls in users_of(shares_luck=False) for request in calls} == {None}


def test_a_surge_in_a_scenario_begins_and_ends() -> None:
    scenario = Scenario(
        title="surge",
        seconds=15.0,
        settle_seconds=0.0,
        workload=workload_of(noisy=1.0, quiet=1.0),
        clients=ClientsConfig(count=4),
        backends=ServiceConfig(count=4),
        faults=(SurgeFault(at_seconds=5.0, seconds=5.0, customer="noisy", ratio=3.0),),
    )
    series = simulate(scenario, policy="round_robin", load=0.2, seed=SEED).series

    offered = series.offered["CRITICAL"]
    per_second = 0.2 * series.capacity
    assert_near(sum(offered[1:5]), 4 * per_second)  # In the first second the clients start.
    assert_near(sum(offered[5:10]), 5 * 2 * per_second)
    assert_near(sum(offered[10:]), 5 * per_second)
