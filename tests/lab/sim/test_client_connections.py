"""How a simulated client task has its connections: on demand, in vain, and at rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenly.core.attempt import Attempt
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome
from evenly.lab.sim.fault_config import CrashFault, PartitionFault
from evenly.lab.sim.scenario import (
    ClientsConfig,
    NetworkConfig,
    PhaseConfig,
    Scenario,
    WorkloadConfig,
)
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from evenly.lab.sim.swarm import run_one
from tests.suites.story import Story

QUIET = Scenario(
    title="a client task and its connections",
    seconds=10.0,
    settle_seconds=0.0,
    clients=ClientsConfig(count=1, start_seconds=0.0),
    backends=ServiceConfig(count=10, cores=1, cost=RequestCostConfig(mean_seconds=0.01)),
    network=NetworkConfig(delay_seconds=0.01, jitter_ratio=0.0),
    client_task=ClientTaskConfig(retry=RetryConfig(attempts=1)),
    # A chance burst at one core is refused now and then; this is about connections.
    backend_task=BackendTaskConfig(limits_queue=False),
)
LOAD = 0.3
# All are killed at once and back after a second: whoever is sent to has to be connected to, which
# is refused.
ALL_CRASH = replace(
    QUIET,
    backends=replace(QUIET.backends, down_seconds=1.0),
    faults=(CrashFault(at_seconds=2.0, backends=0),),
)


def told(scenario: Scenario) -> Story:
    story = Story(scenario, policy="round_robin", load=LOAD)
    story.tell()
    return story


def connections(story: Story, begin: int, end: int) -> int:
    return sum(second.connections for second in story.seconds(begin, end))


def test_requests_that_come_before_their_connection_wait_for_it() -> None:
    story = told(replace(QUIET, seconds=3.0))

    assert set(story.seen.outcomes) == {Outcome.OK}
    assert connections(story, 0, 3) == 10  # one for each backend, on demand or within a second
    assert connections(story, 2, 3) == 0


def test_what_was_not_sent_goes_elsewhere_though_retries_are_off() -> None:
    story = told(ALL_CRASH)

    # Each of the ten refuses one request or more, and who gives up has been refused by four: what
    # has no end of another kind.
    not_sent = story.seen.outcomes[Outcome.NOT_SENT]
    assert not_sent >= 10
    ended = story.seen.outcomes.total() - not_sent + len(story.seen.refusals)
    assert 0 <= story.offered(0, 10) - ended <= not_sent / 4
    # What left is an attempt, and nothing else.
    assert story.attempts(0, 10) == len(story.seen.sent) - not_sent


def test_a_request_that_waits_in_vain_is_never_sent() -> None:
    # Cut off before it starts to connect: nobody accepts or refuses.
    scenario = replace(
        QUIET,
        workload=WorkloadConfig(timeout_seconds=0.5),
        faults=(PartitionFault(at_seconds=0.0, seconds=10.0, backends=0),),
    )
    story = told(scenario)

    assert set(story.seen.outcomes) <= {Outcome.TIMEOUT, Outcome.NOT_SENT}
    assert story.attempts(0, 10) == 0
    assert story.succeeded(0, 10) == 0


def test_a_client_task_at_rest_has_no_connections_and_opens_them_again() -> None:
    # Ten seconds of traffic, forty of silence, and ten again; idle after fifteen.
    scenario = replace(
        QUIET,
        phases=(
            PhaseConfig(seconds=10.0, load=LOAD),
            PhaseConfig(seconds=40.0, load=0.0),
            PhaseConfig(seconds=10.0),
        ),
        client_task=replace(
            QUIET.client_task,
            membership=MembershipConfig(health=HealthConfig(idle_seconds=15.0)),
        ),
    )
    story = Story(scenario, policy="round_robin", load=LOAD)
    held: list[tuple[float, int]] = []
    (client,) = story.world.clients
    events = story.world.stage.events
    for at in (9.0, 24.0, 27.0, 49.0, 59.0):
        events.at(at, lambda: held.append((events.now, len(client._open))))
    story.tell()

    # The last request ends at 10 s and a little, and is noted by a check within a second.
    assert held == [(9.0, 10), (24.0, 10), (27.0, 0), (49.0, 0), (59.0, 10)]
    assert connections(story, 10, 50) == 0
    assert connections(story, 50, 60) == 10  # each on demand
    assert set(story.seen.outcomes) == {Outcome.OK}
    # In 20 s of rest two of 20 checks of each of ten are due, and of two in a row one asks.
    assert sum(second.probes for second in story.seconds(28, 48)) == 10


def test_requests_that_were_never_sent_earn_retries_for_those_that_are() -> None:
    # Cut off for 5 s, and then three times what can be served: what was begun in vain has earned
    # retries, which the checker of budgets has to know of, or it would cry wolf.
    scenario = replace(
        QUIET,
        workload=WorkloadConfig(timeout_seconds=0.5),
        faults=(PartitionFault(at_seconds=0.0, seconds=5.0, backends=0),),
        client_task=ClientTaskConfig(
            retry=RetryConfig(initial_balance=0.0), throttle=ThrottleConfig(name="off")
        ),
    )
    story = Story(scenario, policy="round_robin", load=3.0)
    story.tell()

    assert story.attempts(0, 5) == 0
    assert story.attempts(5, 10) > story.seen.outcomes[Outcome.OK]


def test_a_retry_that_waits_for_its_connection_was_paid_when_it_was_begun() -> None:
    # Two retries waited while three requests filled a budget of at most three, and one more would
    # have been allowed than was: by who counts them when they leave.  A swarm found it.
    assert run_one(399) is None


def test_an_attempt_that_counts_on_though_it_was_not_sent_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Attempt.__init__

    def forgetful(self: Attempt, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        previous = args[3]
        if isinstance(previous, Attempt):
            self.number = previous.number + 1

    monkeypatch.setattr(Attempt, "__init__", forgetful)
    story = Story(ALL_CRASH, policy="round_robin", load=LOAD)
    story.world.run(None)

    violations = story.world.stage.checkers.violations()
    assert {violation.partition(":")[0] for violation in violations} == {"attempts"}
