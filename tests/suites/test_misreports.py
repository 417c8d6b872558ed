"""What one backend of ten that misreports can draw to itself, whatever the policy.

A wrong unit is enough: each number of the load report a thousand times too large or too small.
`tests/acceptance/test_misreports.py` has all of them, for all policies and more loads.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome
from evenly.lab.sim.fault_config import FastFailFault, SlowFault
from evenly.lab.sim.scenario import ClientsConfig, NetworkConfig, Scenario
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from tests.suites.story import Story
from tests.suites.test_policies import STEADY, told

BACKENDS = 10
LIAR = "backend-0"
# `boot` and `sequence` say when a report was made, and no more of them is a new process.
NUMBERS = (
    "runnable",
    "active",
    "utilization",
    "qps",
    "eps",
    "latency_seconds",
    "compute_units",
)
# What a policy does not read changes nothing: these are those that read reports here.
READERS = [
    *(("probing", name) for name in NUMBERS),
    *(
        (policy, name)
        for policy in ("weighted_round_robin", "weighted_least_loaded")
        for name in ("utilization", "qps")
    ),
]
LIES = [(policy, name, factor) for policy, name in READERS for factor in (1000.0, 0.001)]
TEN = replace(
    STEADY,
    # The blackout is over at 11.5 s at the latest.
    seconds=16.0,
    clients=ClientsConfig(count=2, start_seconds=0.0),
    backends=replace(STEADY.backends, count=BACKENDS),
)


def lie(name: str, factor: float, report: LoadReport) -> LoadReport:
    told = getattr(report, name)
    return replace(report, **{name: type(told)(told * factor)})


def lied_share(scenario: Scenario, policy: str, name: str, factor: float, *, load: float) -> float:
    """Return how many times its fair share the one that misreports is sent."""
    story = Story(scenario, policy=policy, load=load)
    story.distort(story.world.machines[0], partial(lie, name, factor))
    story.tell()
    shares = []
    for begin, end in ((2.0, 11.0), (11.5, scenario.seconds)):
        sent = story.seen.sent_between(begin, end)
        shares.append(sent[LIAR] / sent.total() * len(story.world.machines))
    return max(shares)


@pytest.mark.parametrize(("policy", "name", "factor"), LIES)
def test_one_of_ten_draws_no_more_than_three_times_its_share(
    policy: str, name: str, factor: float
) -> None:
    assert lied_share(TEN, policy, name, factor, load=0.1) <= 3.0


@pytest.mark.parametrize(
    ("name", "factor"), [("qps", 1000.0), ("utilization", 0.001), ("runnable", 0.001)]
)
def test_in_a_busy_service_neither(name: str, factor: float) -> None:
    assert lied_share(TEN, "probing", name, factor, load=0.85) <= 3.0


# It fails everything, and says that it fails a thousandth of that.
def test_one_that_conceals_its_errors_is_no_sinkhole() -> None:
    fails = replace(TEN, seconds=20.0, faults=(FastFailFault(at_seconds=12.0),))
    story = Story(fails, policy="probing", load=0.5)
    story.distort(story.world.machines[0], partial(lie, "eps", 0.001))
    story.tell()

    sent = story.seen.sent_between(12.0, 20.0)
    assert sent[LIAR] <= sent.total() / BACKENDS


# Four times as fast as the others is no lie.
@pytest.mark.parametrize("policy", ["probing", "weighted_round_robin"])
def test_a_fast_machine_still_gets_what_it_can_do(policy: str) -> None:
    others = SlowFault(at_seconds=0.0, first=1, backends=9, ratio=0.25)
    # Together they can do 1 + 9 / 4 of what one can: 0.2 of ten is 62 % of it.
    story = told(replace(TEN, seconds=40.0, faults=(others,)), policy, load=0.2)

    # All that it can do is 4 / 13 of the requests, 3.08 times a fair share.
    sent = story.seen.sent_between(25.0, 40.0)
    assert sent[LIAR] / sent.total() * BACKENDS > 2.4


# The fleet of `evenly demo`: eight unequal machines, two slots each, requests of 0.1 s.
DEMO = Scenario(
    title="the demo's fleet",
    seconds=26.0,
    settle_seconds=0.0,
    clients=ClientsConfig(count=4, start_seconds=0.0),
    client_task=ClientTaskConfig(retry=RetryConfig(attempts=1)),
    backends=ServiceConfig(
        name="backend",
        count=8,
        cores=2,
        speeds=(0.5, 1.5),
        cost=RequestCostConfig(kind="constant", mean_seconds=0.1),
    ),
    network=NetworkConfig(delay_seconds=0.0003),
)


def test_a_backend_that_begins_to_fail_costs_few_requests() -> None:
    errors = offered = 0
    for index in range(0, 8, 2):
        fails = FastFailFault(at_seconds=14.0, first=index, seconds=12.0)
        story = Story(replace(DEMO, faults=(fails,)), policy="probing", load=0.7)
        story.tell()
        errors += story.seen.outcomes[Outcome.ERROR]
        offered += story.offered(14, 26)

    # 0.5 % where its own rate alone tells of it.
    assert errors / offered < 0.003
    assert math.isclose(offered, 4 * 12 * 112, rel_tol=0.2)  # And that was the demo's load.
