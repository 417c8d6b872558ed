"""What every policy must survive: one behaviour suite for all of them.

Each case prints its seed by its name: the worlds are seeded with 1 and replay exactly.
"""

from __future__ import annotations

import pytest

from evenly.core.balancing.health import State
from evenly.core.balancing.policies.catalogue import POLICIES
from evenly.core.request import Outcome, Reason
from tests.suites.world import ROUND_TRIP_SECONDS, World

BACKENDS = 18  # More than Prequal's pool holds: with fewer it is least loaded.
CLIENTS = 6
# 18 backends serve 100 requests/s each; 6 clients send 180 requests/s each: 60 % of capacity.
REQUESTS_PER_SECOND = 180.0

# These look at load or at what the backends report; the other two take turns or draw lots.
AWARE = [name for name in POLICIES if name not in ("random", "round_robin")]


def steady_world(policy: str, *, backends: int = BACKENDS, subset_size: int = 20) -> World:
    world = World(policy=policy, subset_size=subset_size)
    world.start_backends(range(backends))
    world.publish()
    world.start_clients(range(CLIENTS), requests_per_second=REQUESTS_PER_SECOND)
    world.run(1.0)
    return world


def assert_every_request_succeeded(world: World) -> None:
    assert world.rejections == []
    assert set(world.outcomes) == {Outcome.OK}


def assert_active_counts_return_to_zero(world: World) -> None:
    clients = list(world.clients.values())
    world.stop_clients(list(world.clients))
    world.run(5.0)
    assert [client.snapshot().active for client in clients] == [0] * len(clients)


def sent_since(world: World, seconds: float) -> dict[str, int]:
    before = world.sent.copy()
    world.run(seconds)
    return {address: world.sent[address] - before[address] for address in world.backends}


@pytest.mark.parametrize("policy", POLICIES)
def test_steady_load_reaches_every_backend(policy: str) -> None:
    world = steady_world(policy)

    sent = sent_since(world, 4.0)

    # 1,080 requests/s for 4 s over 18 backends: 240 each.  Drawn at random they have a standard
    # deviation of sqrt(240) = 15.5; half and double the mean are 7 or more of them away.
    assert min(sent.values()) > 120
    assert max(sent.values()) < 480
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_clients_deploy(policy: str) -> None:
    world = steady_world(policy)

    for index in range(CLIENTS):
        world.stop_clients([index])
        world.start_clients([index], requests_per_second=REQUESTS_PER_SECOND)
        world.run(0.3)

    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_backends_deploy_in_batches(policy: str) -> None:
    world = steady_world(policy)

    for batch in (range(6), range(6, 12), range(12, 18)):
        for index in batch:
            world.enter_lame_duck(index)
        world.drain(batch)
        for index in batch:
            world.stop(index)
        world.run(0.2)
        world.start_backends(batch)
        world.run(2.5)  # The back-off after a refused connection is 1 s, then 1.6 s.

    assert_every_request_succeeded(world)
    states = {b.state for client in world.clients.values() for b in client.snapshot().backends}
    assert states == {State.HEALTHY}
    # Only what was on its way before the notice arrived: a third of 1,080 requests/s for one
    # millisecond, three times, is about 1 request; 12 leaves room for bursts.
    assert world.sent_to_lame_ducks <= 12
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_service_shrinks(policy: str) -> None:
    world = steady_world(policy)

    world.publish(range(14))
    sent = sent_since(world, 2.0)

    assert sum(sent[f"backend-{index}"] for index in range(14, BACKENDS)) == 0
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_service_grows(policy: str) -> None:
    world = steady_world(policy)

    world.start_backends(range(BACKENDS, 20))
    world.publish()
    world.run(12.0)  # Past slow start and the weights' blackout.
    sent = sent_since(world, 3.0)

    # 1,080 requests/s for 3 s over 20 backends: 162 each.
    newcomers = sum(sent[f"backend-{index}"] for index in range(BACKENDS, 20))
    assert newcomers > 0.5 * 2 * 162
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_slow_backend(policy: str) -> None:
    world = steady_world(policy)
    world.run(9.0)  # Weights count after a blackout of 10 s.
    # 60 requests/s would be all it can take at 16 ms, were it sent a fair share.
    world.fake(0).service_seconds = 0.016

    world.run(4.0)
    sent = sent_since(world, 4.0)

    if policy in AWARE:
        # The other seventeen are faster, so a fair share is too much.
        assert sent["backend-0"] < sum(sent.values()) / BACKENDS
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", AWARE)
def test_one_backend_fails_fast(policy: str) -> None:
    world = steady_world(policy)
    world.run(9.0)  # Weights count after a blackout of 10 s.
    world.fake(0).fails_fast = True

    sent = sent_since(world, 4.0)

    fair = sum(sent.values()) / BACKENDS
    assert sent["backend-0"] <= fair
    assert world.rejections == []
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_lame_duck_is_left_alone(policy: str) -> None:
    world = steady_world(policy)

    world.enter_lame_duck(3)
    world.run(2 * ROUND_TRIP_SECONDS)
    sent = sent_since(world, 2.0)

    assert sent["backend-3"] == 0
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_lame_ducks_still_serve(policy: str) -> None:
    world = steady_world(policy)

    for index in range(BACKENDS):
        world.enter_lame_duck(index)
    sent = sent_since(world, 1.0)

    assert sum(sent.values()) > 750  # Of about 1,080.
    assert_every_request_succeeded(world)
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_backend_is_a_rejection_at_once(policy: str) -> None:
    world = steady_world(policy)

    world.publish([])
    sent = sent_since(world, 1.0)

    assert sum(sent.values()) == 0
    assert {rejection.reason for rejection in world.rejections} == {Reason.NO_BACKEND}
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_refuse_and_return(policy: str) -> None:
    world = steady_world(policy)
    for index in range(BACKENDS):
        world.enter_lame_duck(index)
    world.run(0.001)
    world.stop_clients(range(CLIENTS))
    world.run(2.0)
    for index in range(BACKENDS):
        world.stop(index)
    world.start_clients(range(CLIENTS), requests_per_second=REQUESTS_PER_SECOND)

    while_gone = sum(sent_since(world, 1.0).values())
    world.start_backends(range(BACKENDS))
    world.run(5.0)  # At the longest 1 s + 1.6 s + 2.56 s of back-off, less what has passed.
    after = sum(sent_since(world, 1.0).values())

    assert while_gone == 0
    assert {rejection.reason for rejection in world.rejections} == {Reason.NO_BACKEND}
    assert after > 750  # Of about 1,080.
    assert_active_counts_return_to_zero(world)


@pytest.mark.parametrize("answering", [0, 1, BACKENDS // 2, BACKENDS])
@pytest.mark.parametrize("policy", ["probing", "prequal"])
def test_probes_that_get_no_answer_do_no_harm(policy: str, answering: int) -> None:
    world = World(policy=policy)
    world.start_backends(range(BACKENDS))
    for index in range(answering, BACKENDS):
        world.fake(index).answers_probes = False
    world.publish()
    world.start_clients(range(CLIENTS), requests_per_second=REQUESTS_PER_SECOND)

    world.run(10.0)

    assert_every_request_succeeded(world)
    # Half a second of waiting 50 ms in vain, of ten seconds, is 2.5 ms a request; the rest is rare.
    assert world.waited_seconds / sum(world.outcomes.values()) < 0.0025
    assert_active_counts_return_to_zero(world)
