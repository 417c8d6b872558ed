"""Several processes behind one address, as gunicorn has them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from evenly.core.balancing.backend import Backend, BackendSnapshot
from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.testing import ManualClock

HEALTHY = State.HEALTHY
LAME_DUCK = State.LAME_DUCK
START = 1_000.0
LATER = START + 5.0  # What a former process says by then was on its way.
ONE, TWO, THREE = 5_001, 5_002, 5_003
A, B = Backend("a:1"), Backend("b:1")


def connected() -> Health:
    health = Health(HealthConfig(), now=START, rng=random.Random(1))
    health.opened(START)
    return health


def shared() -> Health:
    """Return an address whose three processes have spoken in turn for five seconds."""
    health = connected()
    for now in (START, LATER):
        for boot in (ONE, TWO, THREE):
            health.said(boot, 1, now, lame_duck=False)
    return health


def test_a_former_process_that_speaks_on_shows_that_there_are_several() -> None:
    health = connected()
    assert health.said(ONE, 1, START, lame_duck=False)
    assert health.said(TWO, 1, START, lame_duck=False)

    assert not health.said(ONE, 1, LATER - 0.01, lame_duck=False)
    assert not health.is_shared
    assert health.said(ONE, 1, LATER, lame_duck=False)
    assert health.is_shared


def test_one_that_booted_before_the_first_who_was_heard_shows_it_too() -> None:
    health = connected()
    health.said(TWO, 1, START, lame_duck=False)
    assert not health.said(ONE, 1, START, lame_duck=False)

    assert health.said(ONE, 1, LATER, lame_duck=False)
    assert health.is_shared


def test_a_former_process_that_finishes_what_it_has_does_not() -> None:
    health = connected()
    health.said(ONE, 1, START, lame_duck=False)
    health.said(TWO, 1, START, lame_duck=False)

    assert not health.said(ONE, 2, START + 60.0, lame_duck=True)
    assert not health.is_shared
    assert health.state is HEALTHY


def test_a_process_that_followed_after_a_clock_was_set_back_is_no_former_one() -> None:
    health = connected()
    health.said(TWO, 1, START, lame_duck=False)
    health.said(ONE, 0, START, lame_duck=False)  # By UDP, before its connection stands.
    health.lost(START + 60.0)
    health.opened(START + 61.0)
    health.said(ONE, 0, START + 61.0, lame_duck=False)

    assert health.said(ONE, 1, START + 70.0, lame_duck=False)
    assert not health.is_shared


def test_every_process_is_heard() -> None:
    health = shared()

    words = [health.said(boot, 1, LATER, lame_duck=False) for boot in (ONE, THREE, TWO, ONE)]
    assert words == [True] * 4


def test_the_order_is_that_of_each_process() -> None:
    health = shared()

    assert health.said(ONE, 9, LATER, lame_duck=False)
    assert not health.said(ONE, 8, LATER, lame_duck=False)
    assert health.said(TWO, 2, LATER, lame_duck=False)


def test_one_that_leaves_speaks_for_itself() -> None:
    health = shared()

    assert not health.said(THREE, 2, LATER, lame_duck=True)  # Nor is its load the address's.
    assert health.state is HEALTHY
    assert not health.said(THREE, 1, LATER, lame_duck=False)  # Overtaken on its way.
    assert health.said(ONE, 1, LATER, lame_duck=False)
    assert health.state is HEALTHY


def test_the_address_leaves_with_the_last_of_those_who_spoke_lately() -> None:
    health = shared()
    health.said(ONE, 2, LATER, lame_duck=True)
    health.said(TWO, 2, LATER, lame_duck=True)
    assert health.state is HEALTHY
    assert health.said(THREE, 2, LATER, lame_duck=True)
    assert health.state is LAME_DUCK

    assert health.said(THREE + 1, 1, LATER, lame_duck=False)  # A new one takes their place.
    assert health.state is HEALTHY


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(30.0, HEALTHY, id="of thirty seconds ago"),
        pytest.param(30.001, LAME_DUCK, id="of longer ago: it may have died"),
    ],
)
def test_what_others_said_counts_for_thirty_seconds(after: float, expected: State) -> None:
    health = shared()
    health.said(ONE, 2, LATER + after, lame_duck=True)

    assert health.state is expected


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(Health.refused, id="refused"),
        pytest.param(Health.lost, id="lost"),
    ],
)
def test_who_listens_after_nobody_did_is_a_new_process(
    end: Callable[[Health, float], None],
) -> None:
    health = shared()
    end(health, LATER + 10.0)
    health.opened(LATER + 12.0)
    assert not health.is_shared

    assert health.said(THREE + 1, 0, LATER + 12.0, lame_duck=True)  # It warms up.
    assert health.state is LAME_DUCK


def test_not_serving_was_the_word_of_one_of_them() -> None:
    health = shared()
    health.watched(serving=False)
    assert health.state is LAME_DUCK
    health.said(TWO, 2, LATER, lame_duck=True)
    assert health.state is LAME_DUCK
    health.said(ONE, 1, LATER, lame_duck=False)

    assert health.state is HEALTHY


@pytest.mark.parametrize("count", [64, 200])
def test_however_many_there_are_it_shows(count: int) -> None:
    health = connected()
    for turn in range(3):
        for boot in range(1, count + 1):
            health.said(boot, 1, START + 5.0 * turn, lame_duck=False)

    assert health.is_shared


def test_one_process_after_the_other_is_not_several() -> None:
    health = connected()
    for life in range(200):
        now = START + 30.0 * life
        for second in range(30):
            assert health.said(life + 1, 1, now + second, lame_duck=False)

    assert not health.is_shared


# The client task.


def client_task(clock: ManualClock, policy: str) -> ClientTask:
    config = ClientTaskConfig(
        policy=PolicyConfig(name=policy), membership=MembershipConfig(subset_size=2)
    )
    task = ClientTask(config, clock=clock, rng=random.Random(1))
    task.update([A, B])
    for backend in (A, B):
        task.record_connection(backend, ConnectionEvent.OPENED)
    return task


@pytest.mark.parametrize("policy", ["probing", "weighted_round_robin", "weighted_least_loaded"])
def test_a_shared_address_keeps_its_share_while_its_processes_come_and_go(policy: str) -> None:
    clock = ManualClock(START)
    task = client_task(clock, policy)
    for tenth in range(900):
        clock.advance(0.1)
        # Three workers in turn.  Each lives for 30 s, and one of them leaves every ten seconds.
        worker = tenth % 3
        life, age = divmod(tenth + 100 * worker, 300)
        report = LoadReport(
            boot=ONE + 3 * life + worker,
            sequence=1 + (age >= 290),
            lame_duck=age >= 290,
            qps=10.0,
            utilization=0.5,
        )
        task.record_report(A, report)
        task.record_report(B, LoadReport(boot=ONE, sequence=1, qps=10.0, utilization=0.5))
        task.wake()
        if tenth > 300:  # What it met anew at its start has faded.
            at_a = shown(task, A)
            assert at_a.state is HEALTHY
            assert at_a.weight == pytest.approx(1.0, rel=0.02)


def shown(task: ClientTask, backend: Backend) -> BackendSnapshot:
    [found] = [at for at in task.snapshot().backends if at.address == backend.address]
    return found
