"""What chapter 21 promises, shown by both façades against one another.

Every story is told with one seed, which stands here and so replays exactly.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from evenly.core.attempt import Attempt
from evenly.core.backend_task import BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Next, Outcome, Rejection, Request
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import (
    ClientsConfig,
    NetworkConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.testing import ManualClock
from tests.suites.story import SEED, Story

POLICIES = ("round_robin", "probing")
MIX = {
    Criticality.SHEDDABLE: 0.2,
    Criticality.SHEDDABLE_PLUS: 0.3,
    Criticality.CRITICAL: 0.4,
    Criticality.CRITICAL_PLUS: 0.1,
}
# Refusing a request costs a tenth of serving it, which is the simulator's default.
NETWORK = NetworkConfig(delay_seconds=0.001)


def busy(
    *phases: tuple[float, float | None], policy: str, load: float, clients: int = 10, cores: int = 8
) -> Result:
    """Offer loads one after another, each for some seconds; `None` is `load`, and is measured."""
    scenario = Scenario(
        title="four backends",
        settle_seconds=0.0,
        phases=tuple(PhaseConfig(seconds=seconds, load=part) for seconds, part in phases),
        workload=WorkloadConfig(criticalities=MIX),
        clients=ClientsConfig(count=clients),
        backends=ServiceConfig(
            count=4, cores=cores, cost=RequestCostConfig(mean_seconds=0.005 * cores)
        ),
        network=NETWORK,
    )
    result = simulate(scenario, policy=policy, load=load, seed=SEED)
    assert result.row.violations == ()
    return result


def success_ratio(result: Result, begin: int, end: int) -> float:
    """Return which part of the requests that began in these seconds succeeded."""
    series = result.series
    offered = sum(sum(counts[begin:end]) for counts in series.offered.values())
    return sum(sum(counts[begin:end]) for counts in series.succeeded.values()) / offered


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", [2.0, 5.0])
def test_overload_costs_little_goodput_and_hits_the_lowest_criticality_first(
    policy: str, load: float
) -> None:
    # In the first 6 s the throttles find their balance.
    row = busy((6.0, load), (10.0, None), policy=policy, load=load).row

    assert row.goodput_ratio >= 0.9, row
    ratios = [row.success_by_criticality[criticality.name] for criticality in Criticality]
    # 1,600 requests or more of each criticality: a ratio near 0 or 1 is good to 0.01 (4 sigma of
    # sqrt(0.01 · 0.99 / 1600) = 0.0025), and that is all by which equals may be out of order.
    assert all(lower <= higher + 0.01 for lower, higher in pairwise(ratios)), row
    assert ratios[Criticality.SHEDDABLE] < ratios[Criticality.CRITICAL], row
    assert ratios[Criticality.CRITICAL_PLUS] >= 0.99, row


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", [2.0, 5.0])
def test_everything_passes_again_soon_after_the_load_has_fallen(policy: str, load: float) -> None:
    result = busy((16.0, load), (10.0, 0.7), (5.0, None), policy=policy, load=0.7)

    assert 1.0 - result.row.errors_ratio >= 0.99, result.row


@pytest.mark.parametrize("policy", POLICIES)
def test_backends_of_one_core_keep_their_goodput_and_recover_too(policy: str) -> None:
    result = busy((6.0, 2.0), (10.0, None), (15.0, 0.7), policy=policy, load=2.0, cores=1)

    assert result.row.goodput_ratio >= 0.9, result.row
    assert success_ratio(result, 26, 31) >= 0.99


@pytest.mark.parametrize(
    ("policy", "clients"),
    [
        ("probing", 1),
        ("probing", 2),
        ("probing", 100),
        ("weighted_round_robin", 1),
        ("weighted_least_loaded", 1),
    ],
)
def test_few_and_many_client_tasks_keep_the_goodput_and_recover(policy: str, clients: int) -> None:
    phases = ((10.0, 5.0), (5.0, None), (15.0, 0.7))
    result = busy(*phases, policy=policy, load=5.0, clients=clients)

    assert result.row.goodput_ratio >= 0.9, result.row
    assert success_ratio(result, 25, 30) >= 0.99


# Nobody hears of a backend but by sending or asking.
SELDOM = MembershipConfig(health=HealthConfig(check_seconds=1e6))


def sporadic(throttle: ThrottleConfig, membership: MembershipConfig) -> Story:
    # 2,000 clients at 0.1 requests/s each are 200/s; two backends of 2 cores serve 20/s.
    scenario = Scenario(
        title="sporadic clients",
        seconds=60.0,
        settle_seconds=30.0,
        workload=WorkloadConfig(criticalities=MIX),
        clients=ClientsConfig(count=2_000),
        backends=ServiceConfig(count=2, cores=2, cost=RequestCostConfig(mean_seconds=0.2)),
        network=NETWORK,
        client_task=ClientTaskConfig(throttle=throttle, membership=membership),
    )
    story = Story(scenario, policy="round_robin", load=10.0)
    story.tell()
    return story


def reached_and_goodput(story: Story) -> tuple[float, float]:
    """Return what arrives at the backends in the second half, and what succeeds, of capacity."""
    capacity = 30.0 * 20.0
    reached = sum(second.attempts for second in story.seconds(30, 60))
    return reached / capacity, story.succeeded(30, 60) / capacity


def test_sporadic_clients_bury_the_backends_if_nobody_asks() -> None:
    reached, goodput = reached_and_goodput(sporadic(ThrottleConfig(name="off"), SELDOM))

    # All that is offered, and retries: refusing 10 × at a tenth of the cost is all that is done.
    assert reached >= 10.0
    assert goodput <= 0.1


# Health checks bring a report each second: a client that seldom sends must ask all the same.
@pytest.mark.parametrize(
    "membership",
    [pytest.param(SELDOM, id="no checks"), pytest.param(MembershipConfig(), id="health checks")],
)
def test_asking_keeps_the_load_near_capacity(membership: MembershipConfig) -> None:
    story = sporadic(ThrottleConfig(), membership)
    reached, goodput = reached_and_goodput(story)

    # What is refused, a tenth as dear, must leave most of the capacity: at 1.5 × it takes 5 %.
    assert reached <= 1.5
    assert goodput >= 0.85
    assert len(story.seen.asks) <= story.offered(0, 60)  # Two probes each, at most once.


# Retries: no CPU and no time is needed to count attempts.


class Layer:
    """Be one task of a service in the middle: serve by calling the layer below."""

    def __init__(self, below: Layer | None, config: ClientTaskConfig, clock: ManualClock) -> None:
        self.clock = clock
        self.attempts = 0
        self.is_refusing = False
        self.lets_overload_through = False
        self._below = below
        self._backend_task = BackendTask(
            BackendTaskConfig(), clock=clock, rng=random.Random(SEED), boot=1
        )
        self._backend_task.announce_healthy()
        self._client_task = ClientTask(config, clock=clock, rng=random.Random(SEED))
        if below is not None:
            backends = [Backend("a:1"), Backend("b:1"), Backend("c:1")]
            self._client_task.update(backends)
            self._client_task.take_connections()
            for backend in backends:
                self._client_task.record_connection(backend, ConnectionEvent.OPENED)

    def receive(self, request: Request, number: int) -> Outcome:
        self.attempts += 1
        if self.is_refusing:
            self._backend_task.record_signal("memory", 2.0)
        decision = self._backend_task.admit(request, number)
        if isinstance(decision, Rejection):
            return decision.outcome
        outcome = self.send(request)
        if outcome is Outcome.OVERLOADED and not self.lets_overload_through:
            return self._backend_task.pass_on(decision).outcome
        decision.finish(outcome)
        return outcome

    def send(self, request: Request) -> Outcome:
        """Be a handler that has nothing to say when the layer below refuses."""
        assert self._below is not None
        answer = self._client_task.begin(request)
        while isinstance(answer, Attempt):
            outcome = self._below.receive(request, answer.number)
            if answer.finish(outcome) is not Next.RETRY:
                break
            answer = self._client_task.begin(request, answer)
        return Outcome.OVERLOADED


class AlwaysOverloaded(Layer):
    """Be the book's worst case: a backend that never says "don't retry"."""

    def receive(self, request: Request, number: int) -> Outcome:
        self.attempts += 1
        return Outcome.OVERLOADED


def run_requests(top: Layer, count: int) -> None:
    for _ in range(count):
        top.clock.advance(0.01)
        top.send(Request())


def config_of(*, throttle: str, budget_ratio: float = 0.1) -> ClientTaskConfig:
    retry = RetryConfig(budget_ratio=budget_ratio)
    if budget_ratio == 1.0:
        # Two retries a request, for ever: no budget.
        retry = RetryConfig(budget_ratio=1.0, initial_balance=1e6, max_balance=1e6)
    return ClientTaskConfig(
        policy=PolicyConfig(name="round_robin"), throttle=ThrottleConfig(name=throttle), retry=retry
    )


def test_without_a_budget_rejected_requests_are_tried_three_times() -> None:
    clock = ManualClock()
    config = config_of(throttle="off", budget_ratio=1.0)
    bottom = AlwaysOverloaded(None, config, clock)
    run_requests(Layer(bottom, config, clock), 10_000)

    assert bottom.attempts == 30_000


def test_with_the_budget_retries_add_a_tenth() -> None:
    clock = ManualClock()
    config = config_of(throttle="off")
    bottom = AlwaysOverloaded(None, config, clock)
    run_requests(Layer(bottom, config, clock), 10_000)

    # 3 at the start, and 0.1 a request: the last of them exactly affordable.
    assert bottom.attempts == 10_000 + 3 + 1_000
    assert bottom.attempts / 10_000 <= 1.11


def test_backends_that_reject_all_soon_say_not_to_retry() -> None:
    clock = ManualClock()
    config = config_of(throttle="off")
    bottom = Layer(None, config, clock)
    bottom.is_refusing = True
    run_requests(Layer(bottom, config, clock), 10_000)

    # Retries stop where they are 5 % of arrivals, 1/19 of first attempts; so over any 1,000 first
    # attempts there are 52 at most, plus those before the 100th arrival: 3 + 10.
    assert bottom.attempts <= 10_000 * (1 + 1 / 19) + 13


def test_throttled_clients_send_much_less_than_they_are_asked() -> None:
    clock = ManualClock()
    config = config_of(throttle="responsive")
    bottom = AlwaysOverloaded(None, config, clock)
    run_requests(Layer(bottom, config, clock), 10_000)

    # At 100 requests a second for 100 s: 10,000 · 0.001 = 10 by chance, 100 / 2 = 50 sent anyway,
    # and until q is there ln(1000) / 0.227 = 30 rejections; with retries about 100.  Twice that.
    assert bottom.attempts < 200


@pytest.mark.parametrize(
    ("lets_overload_through", "most"),
    [
        # 1.1 · 1.1 · 1.1 = 1.331, and 3 retries to begin with at each layer
        pytest.param(True, 1.34, id="every layer retries"),
        pytest.param(False, 1.11, id="only the layer right above does"),
    ],
)
def test_retries_do_not_multiply_over_three_layers(
    lets_overload_through: bool, most: float
) -> None:
    clock = ManualClock()
    config = config_of(throttle="off")
    bottom = AlwaysOverloaded(None, config, clock)
    third = Layer(bottom, config, clock)
    second = Layer(third, config, clock)
    first = Layer(second, config, clock)
    for layer in (second, third):
        layer.lets_overload_through = lets_overload_through

    run_requests(first, 10_000)

    assert bottom.attempts / 10_000 <= most  # and so below the 1.4 that is asked for
    if not lets_overload_through:
        assert (second.attempts, third.attempts) == (10_000, 10_000)
