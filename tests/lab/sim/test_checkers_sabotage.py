"""Whole runs around a façade that was sabotaged on purpose: the checkers must see each of them.

The scenario has all that they watch: overload with all criticalities, and backends that restart.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import evenly.lab.sim.client
from evenly.core.attempt import Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.balancing import candidates
from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.health import Health
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.level import TOP
from evenly.core.overload.quota import QuotaConfig, Reservation
from evenly.core.overload.responsive_throttle import ResponsiveThrottle
from evenly.core.overload.retry import RetryBudget
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.report import LoadReport
from evenly.core.request import Outcome
from evenly.lab.sim.client import Client
from evenly.lab.sim.fault_config import CrashFault, FastFailFault, PartitionFault, RestartFault
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.scenario import (
    ClientsConfig,
    NetworkConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.world import World

BUSY = Scenario(
    title="busy",
    seconds=6.0,
    settle_seconds=1.0,
    ideal=False,
    workload=WorkloadConfig(
        criticalities=dict.fromkeys(Criticality, 1.0), timeout_seconds=1.0, idempotent=True
    ),
    clients=ClientsConfig(count=8),
    backends=ServiceConfig(count=6, cores=2, cost=RequestCostConfig(mean_seconds=0.01)),
    faults=(
        RestartFault(at_seconds=1.0, backends=3, every_seconds=0.5),
        CrashFault(at_seconds=3.0),
    ),
)

UNTHROTTLED = replace(BUSY, client_task=ClientTaskConfig(throttle=ThrottleConfig(name="off")))


def broken(
    scenario: Scenario = BUSY, *, policy: str = "least_loaded", load: float = 1.5
) -> set[str]:
    """Return which invariants a run of the scenario broke."""
    violations = simulate(scenario, policy=policy, load=load, seed=1).row.violations
    return {violation.partition(":")[0] for violation in violations}


def make_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no client task listen to lame ducks."""
    said = Health.said

    def deaf(self: Health, boot: int, sequence: int, now: float, *, lame_duck: bool) -> bool:
        return said(self, boot, sequence, now, lame_duck=False)

    monkeypatch.setattr(Health, "said", deaf)


@pytest.mark.parametrize("policy", ["least_loaded", "probing"])
def test_nothing_is_broken_without_sabotage(policy: str) -> None:
    assert broken(policy=policy) == set()


def test_a_budget_that_pays_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryBudget, "take", lambda self: True)

    # Who has a line retries little.
    assert broken(UNTHROTTLED, load=3.0) == {"retry budget"}


def test_a_task_that_does_not_count_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(config: ClientTaskConfig, **rest: object) -> ClientTask:
        retry = replace(config.retry, attempts=10)
        return ClientTask(replace(config, retry=retry), **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(evenly.lab.sim.client, "ClientTask", careless)

    assert broken() == {"attempts"}


def test_an_attempt_that_calls_itself_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Attempt.__init__

    def modest(self: Attempt, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        self.number = 1

    monkeypatch.setattr(Attempt, "__init__", modest)

    assert broken() == {"attempts"}


def test_a_task_that_does_not_listen_to_lame_ducks(monkeypatch: pytest.MonkeyPatch) -> None:
    make_deaf(monkeypatch)

    assert broken(load=0.5) == {"lame duck"}


def test_the_only_backend_may_be_a_lame_duck_that_nobody_listens_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_deaf(monkeypatch)
    alone = replace(BUSY, backends=replace(BUSY.backends, count=1), faults=BUSY.faults[1:])

    assert broken(alone, load=0.5) == set()


def test_candidates_that_take_lame_ducks_for_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    tier_of = candidates._tier_of
    lame_duck, healthy = candidates._LAME_DUCK, candidates._HEALTHY

    def blind(view: BackendView) -> int:
        tier = tier_of(view)
        return healthy if tier == lame_duck else tier

    monkeypatch.setattr(candidates, "_tier_of", blind)

    assert broken(load=0.5) == {"lame duck"}


def test_a_transport_that_keeps_the_word_of_lame_ducks_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody hears of them, though two round trips have passed."""
    record = Client._record

    def secretive(
        self: Client, machine: Machine, report: LoadReport, *, is_probe: bool = False
    ) -> None:
        if not report.lame_duck:
            record(self, machine, report, is_probe=is_probe)

    monkeypatch.setattr(Client, "_record", secretive)

    assert broken(load=0.5) == {"lame duck"}


def test_what_was_heard_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make_deaf(monkeypatch)
    slow = replace(BUSY, network=NetworkConfig(delay_seconds=0.1, jitter_ratio=0.0))
    world = World(slow, policy="round_robin", load=0.5, seed=1)

    # The lame duck says so at 1.0, and is heard at 1.1; two round trips are over at 1.4.
    world.stage.events.run(1.1)
    assert world.stage.checkers.violations() == ()
    world.stage.events.run(1.3)
    assert world.stage.checkers.violations() != ()


@pytest.mark.parametrize(
    ("restarting", "task", "load"),
    [
        pytest.param(4, ClientTaskConfig(), 0.3, id="because nobody else is there"),
        pytest.param(2, ClientTaskConfig(active_limit=1), 0.5, id="because all are at the limit"),
    ],
)
def test_a_lame_duck_may_be_sent_to(restarting: int, task: ClientTaskConfig, load: float) -> None:
    service = replace(BUSY.backends, count=4, warm_up_seconds=2.0)
    restarts = (RestartFault(at_seconds=1.0, backends=restarting),)
    scenario = replace(BUSY, backends=service, faults=restarts, client_task=task)

    assert broken(scenario, load=load) == set()


def test_a_client_task_that_forgets_to_count_out(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = BackendView.finish

    def forgetful(self: BackendView) -> None:
        if self.active > 1:  # The last one is counted, so that it goes on sending.
            finish(self)

    monkeypatch.setattr(BackendView, "finish", forgetful)

    assert broken() == {"active counts"}


def test_counts_that_are_wrong_by_the_same_in_both_directions() -> None:
    """Sums would hide it: one backend's count is one too high, another's one too low."""
    world = World(BUSY, policy="random", load=0.5, seed=1)

    def sabotage() -> None:
        one, another, *_ = world.clients[0].task._membership.views  # Nobody else reaches in.
        one.begin()
        another.finish()

    world.stage.events.at(2.0, sabotage)
    world.run(None)

    assert world.clients[0].task.snapshot().active == 0
    violations = world.stage.checkers.violations()
    assert [violation.partition(" at ")[0] for violation in violations] == [
        "active counts: client-0",
        "active counts: client-0",
    ]


def test_a_backend_that_forgets_to_count_out(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = BackendTask.finish

    def forgetful(self: BackendTask, admission: Admission, outcome: Outcome, cpu: float) -> None:
        if outcome is Outcome.OK:
            finish(self, admission, outcome, cpu)

    monkeypatch.setattr(BackendTask, "finish", forgetful)
    failing = replace(BUSY, faults=(FastFailFault(at_seconds=2.0, seconds=1.0),))

    assert broken(failing) == {"active counts"}


def test_a_quota_that_keeps_its_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservation, "cancel", lambda self, now: None)
    quota = QuotaConfig(limits={}, default_limit=100.0)
    metered = replace(BUSY, backend_task=BackendTaskConfig(quota=quota))

    assert broken(metered) == {"active counts"}


# The higher level goes first.


def test_a_backend_that_looks_at_levels_upside_down(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BackendTask._is_too_much

    def mirrored(self: BackendTask, level: float, deadline_at: float | None, now: float) -> bool:
        return right(self, TOP - level, deadline_at, now)

    monkeypatch.setattr(BackendTask, "_is_too_much", mirrored)

    assert broken(UNTHROTTLED, load=3.0) == {"order"}


def test_a_backend_that_refuses_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BackendTask._is_too_much
    rng = random.Random(1)

    def moody(self: BackendTask, level: float, deadline_at: float | None, now: float) -> bool:
        return right(self, level, deadline_at, now) or rng.random() < 0.01

    monkeypatch.setattr(BackendTask, "_is_too_much", moody)

    assert broken(UNTHROTTLED, load=3.0) == {"order"}


def test_a_backend_that_lets_one_in_a_hundred_slip_through(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BackendTask._is_too_much
    rng = random.Random(1)

    def lax(self: BackendTask, level: float, deadline_at: float | None, now: float) -> bool:
        return right(self, level, deadline_at, now) and rng.random() < 0.99

    monkeypatch.setattr(BackendTask, "_is_too_much", lax)

    assert broken(UNTHROTTLED, load=3.0) == {"order"}


def test_a_throttle_that_refuses_what_matters_most(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = ResponsiveThrottle.admit

    def unjust(self: ResponsiveThrottle, level: float, *rest: object) -> bool:
        return level < Criticality.CRITICAL_PLUS and admit(self, level, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ResponsiveThrottle, "admit", unjust)

    assert broken(load=3.0) == {"order"}


def test_a_throttle_that_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResponsiveThrottle, "admit", lambda *_: True)

    assert broken(load=3.0) == {"order"}


def test_a_throttle_that_does_not_do_as_the_backends_say(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_asked = ResponsiveThrottle.admit_asked

    def stubborn(
        self: ResponsiveThrottle,
        level: float,
        customer: str,
        cut: float | None,
        *rest: float,
        **_: bool,
    ) -> bool:
        admit_asked(self, level, customer, cut, *rest)
        return level < (cut or 0.0)

    monkeypatch.setattr(ResponsiveThrottle, "admit_asked", stubborn)
    # So many that each sends seldom, and asks first.
    sporadic = replace(BUSY, clients=ClientsConfig(count=2_000), faults=())

    assert broken(sporadic, load=3.0) == {"order"}


def test_a_task_that_retries_what_any_backend_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientTask, "_is_below_line", lambda *_: False)

    assert broken(load=3.0) == {"order"}


def test_a_transport_that_forgets_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_watch", lambda self, call, deadline_at: None)
    cut = replace(BUSY, faults=(PartitionFault(at_seconds=2.0, backends=0),))

    # What never ends stays active, too.
    assert broken(cut) == {"begun = finished", "active counts"}
