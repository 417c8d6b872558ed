"""Customers' limits in a whole service: a noisy one is held to its own, the others lose nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import final

import pytest

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.quota import QuotaConfig
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.scenario import ClientsConfig, CustomerConfig, Scenario, WorkloadConfig
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.world import World

SEED = 1
# 8 · 2 = 16 CPUs, of which the noisy customer asks for 6 and the quiet one for 2 at half load.
SCENARIO = Scenario(
    title="customers",
    seconds=30.0,
    settle_seconds=0.0,
    workload=WorkloadConfig(
        customers=(CustomerConfig(name="noisy", share=3.0), CustomerConfig(name="quiet"))
    ),
    clients=ClientsConfig(count=8, start_seconds=0.0),
    backends=ServiceConfig(count=8, cores=2, cost=RequestCostConfig(mean_seconds=0.02)),
)


@final
class Accounts(Observer):
    """Add up what customers use, and why they are refused."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {"noisy": 0.0, "quiet": 0.0}
        self.refused: Counter[tuple[str, Reason]] = Counter()

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        self.used[request.customer] += cost

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.refused[request.customer, reason] += 1

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.refused[request.customer, reason] += 1


def told(scenario: Scenario, *, load: float, **limits: float) -> tuple[World, Accounts]:
    quota = QuotaConfig(limits=limits, default_limit=0.0) if limits else None
    accounts = Accounts()
    world = World(
        replace(scenario, backend_task=BackendTaskConfig(quota=quota)),
        policy="probing",
        load=load,
        seed=SEED,
        observer=accounts,
    )
    world.run(None)
    assert world.stage.checkers.violations() == ()
    return world, accounts


def test_without_limits_everyone_gets_what_it_asks() -> None:
    _, accounts = told(SCENARIO, load=0.5)

    # 9,000 and 3,000 requests of 0.02 s: costs and counts vary by 1 / sqrt(n) each, together by
    # sqrt(2 / n), of which 4 are 6 % and 10 %.
    assert accounts.used["noisy"] == pytest.approx(6.0 * 30.0, rel=0.06)
    assert accounts.used["quiet"] == pytest.approx(2.0 * 30.0, rel=0.10)
    assert not accounts.refused


def test_a_noisy_customer_is_held_to_its_limit_and_nobody_else_is_touched() -> None:
    _, accounts = told(SCENARIO, load=0.5, noisy=2.0, quiet=4.0)

    # At most 2 CPUs for 30 s, the bucket's one second more, and at each backend one request beyond,
    # which costs more than 0.2 s once in e^10 times.
    assert accounts.used["noisy"] <= 2.0 * 31.0 + 8 * 0.2
    # A twentieth of a short grant is spread evenly, wherever the demand is; as much again is for
    # limits that follow the demand a second late.
    assert accounts.used["noisy"] >= 0.9 * 2.0 * 30.0
    assert accounts.used["quiet"] == pytest.approx(2.0 * 30.0, rel=0.10)
    # Refused by the backends for its quota, and for that soon throttled where it comes from.
    assert set(accounts.refused) == {
        ("noisy", Reason.OUT_OF_QUOTA),
        ("noisy", Reason.THROTTLED),
    }
    assert accounts.refused["noisy", Reason.OUT_OF_QUOTA] > 0


def test_a_limit_is_the_whole_services_wherever_its_customer_sends() -> None:
    # One client task that knows one backend of eight sends it all that its customer asks for: 0.02
    # of 800 requests/s are 0.32 CPUs.  An eighth of its limit would be 0.1; but limits go where the
    # demand is: 0.32 + (0.8 − 0.32) · (1 + 1/8) / 2 = 0.59.
    scenario = replace(
        SCENARIO,
        workload=WorkloadConfig(customers=(CustomerConfig(name="noisy"),)),
        clients=ClientsConfig(count=1, start_seconds=0.0),
        client_task=ClientTaskConfig(membership=MembershipConfig(subset_size=1)),
    )
    world, accounts = told(scenario, load=0.02, noisy=0.8)

    seconds = world.stage.recorder.seconds
    # Before demand is known, an eighth is what there is; from then on nobody is refused.
    assert sum(sum(second.succeeded) for second in seconds[10:]) == sum(
        sum(second.offered) for second in seconds[10:]
    )
    limits = {
        machine.backend.address: machine.process.task.snapshot().customers["noisy"].limit_per_second
        for machine in world.machines
        if machine.process is not None
    }
    assert len(limits) == 8
    assert sum(limits.values()) == pytest.approx(0.8)
    assert sum(used > 0.4 for used in limits.values()) == 1
    # 480 requests: 4 · sqrt(2 / n), as above.
    assert accounts.used["noisy"] == pytest.approx(0.32 * 30.0, rel=0.26)
