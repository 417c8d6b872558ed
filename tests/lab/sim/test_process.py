"""One process: who is on a CPU when, to the instant."""

from __future__ import annotations

import random

import pytest

from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.request import Outcome, Request
from evenly.lab.sim.service import AntagonistConfig, RequestCostConfig, ServiceConfig
from tests.lab.sim.queueing import completions
from tests.lab.sim.small import SEED, Listener, new_machine, new_stage

# Costs are given with each request; the mean is the measure of refusals and errors.
ONE_CORE = ServiceConfig(
    cores=1, cost=RequestCostConfig(mean_seconds=1.0), connect_cost_seconds=0.0
)
TWO_CORES = ServiceConfig(cores=2, cost=RequestCostConfig(mean_seconds=1.0))


def test_one_core_serves_first_come_first_served() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    first = caller.send(machine, 1.0, at=0.0)
    second = caller.send(machine, 2.0, at=0.1)
    third = caller.send(machine, 0.5, at=0.2)
    late = caller.send(machine, 1.0, at=10.0)

    stage.events.run(20.0)

    assert caller.ends() == {first: 1.0, second: 3.0, third: 3.5, late: 11.0}
    assert {outcome for _, outcome in caller.outcomes()} == {Outcome.OK}
    assert machine.busy_seconds() == pytest.approx(4.5)
    assert second.cpu_seconds == pytest.approx(2.0)  # Waiting costs nothing.


def test_cores_share_one_queue() -> None:
    stage = new_stage()
    machine = new_machine(stage, TWO_CORES)
    caller = Listener(stage)
    long, short, third, fourth = (caller.send(machine, cost) for cost in (3.0, 1.0, 1.5, 1.0))

    stage.events.run(10.0)

    # The second core is free at 1.0 and takes the third; it is free again at 2.5, before the first.
    assert caller.ends() == {long: 3.0, short: 1.0, third: 2.5, fourth: 3.5}
    assert machine.busy_seconds() == pytest.approx(6.5)


@pytest.mark.parametrize("cores", [1, 4])
def test_thousands_of_requests_end_when_the_recursion_says(cores: int) -> None:
    rng = random.Random(SEED)
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=cores))
    caller = Listener(stage)
    arrivals: list[tuple[float, float]] = []
    at = 0.0
    for _ in range(5_000):
        at += rng.expovariate(0.85 * cores)  # 85 % of capacity at a mean cost of 1 s
        arrivals.append((at, rng.expovariate(1.0)))
    jobs = [caller.send(machine, cost, at=at) for at, cost in arrivals]

    stage.events.run(2.0 * at)

    ends = caller.ends()
    # Sums in another order: a millionth of a second is far above what rounding does.
    assert [ends[job] for job in jobs] == pytest.approx(
        list(completions(arrivals, cores)), abs=1e-6
    )


def test_a_machine_of_twice_the_speed_takes_half_the_time() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE, speed=2.0)
    caller = Listener(stage)
    first, second = caller.send(machine, 1.0), caller.send(machine, 3.0)

    stage.events.run(10.0)

    assert caller.ends() == {first: 0.5, second: 2.0}
    assert second.cpu_seconds == pytest.approx(1.5)  # CPU time, as its clock shows it


def test_a_change_of_speed_reaches_what_is_running() -> None:
    stage = new_stage()
    machine = new_machine(stage, TWO_CORES)
    caller = Listener(stage)
    slowed = caller.send(machine, 2.0)
    over = caller.send(machine, 0.5)
    queued = caller.send(machine, 1.0)
    stage.events.at(1.0, lambda: machine.set_speed_ratio("slow", 0.5))
    stage.events.at(2.5, lambda: machine.set_speed_ratio("slow", 1.0))

    stage.events.run(10.0)

    # `slowed`: 1 done at 1.0, 0.75 more at 2.5, 0.25 at full speed.  `queued` begins at 0.5: half
    # done at 1.0, and the other half takes twice as long.
    assert caller.ends() == {over: 0.5, queued: 2.0, slowed: 2.75}
    assert machine.busy_seconds() == pytest.approx(0.5 + 1.5 + 2.75)


def test_many_changes_of_speed_change_nothing_but_the_speed() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    first, second = caller.send(machine, 5.0), caller.send(machine, 5.0)
    # Up and down every tenth of a second: 1 and 2 in turn, 1.5 on average.
    for i in range(100):
        ratio = 2.0 if i % 2 else 1.0
        stage.events.at(0.1 * i, lambda ratio=ratio: machine.set_speed_ratio("fast", ratio))  # type: ignore[misc]

    stage.events.run(20.0)

    # 15 pairs of 0.2 s make 4.5, and 0.5 more are 0.1 s at 1, 0.1 s at 2 and 0.2 s at 1.
    ends = caller.ends()
    assert ends[first] == pytest.approx(3.35)
    assert ends[second] == pytest.approx(6.7)
    assert len(caller.answers) == 2


def test_causes_of_slowness_multiply() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    job = caller.send(machine, 3.0)
    stage.events.at(1.0, lambda: machine.set_speed_ratio("slow", 0.5))
    stage.events.at(2.0, lambda: machine.set_speed_ratio("antagonist", 0.5))
    stage.events.at(4.0, lambda: machine.set_speed_ratio("slow", 1.0))

    stage.events.run(10.0)

    # 1 + 0.5 + 2 · 0.25 = 2 at 4.0, and the last second at half speed.
    assert caller.ends() == {job: 6.0}


def test_antagonists_slow_down_what_is_running_while_they_are_there() -> None:
    stage = new_stage()
    antagonists = AntagonistConfig(quiet_seconds=2.0, episode_seconds=1.0, speed_ratio=0.25)
    config = ServiceConfig(cores=1, antagonists=antagonists)
    machine = new_machine(stage, config)
    caller = Listener(stage)
    job = caller.send(machine, 100.0)

    stage.events.run(200.0)

    # The machine's own luck, drawn once more: quiet, episode, quiet, episode, ...
    rng = random.Random(f"{SEED}/backend-0/antagonist")
    at = done = 0.0
    is_on = False
    while True:
        seconds = rng.expovariate(1.0 / (1.0 if is_on else 2.0))
        speed = 0.25 if is_on else 1.0
        if done + seconds * speed >= 100.0:
            at += (100.0 - done) / speed
            break
        at += seconds
        done += seconds * speed
        is_on = not is_on
    assert caller.ends()[job] == pytest.approx(at)
    assert at > 110.0  # About a third of the time at a quarter of the speed.


# Stopped, and gone.


def test_a_stall_holds_everything_up_and_loses_nothing() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    running = caller.send(machine, 2.0, at=0.0)
    queued = caller.send(machine, 1.0, at=0.25)
    stage.events.at(0.5, machine.stall)
    first = caller.send(machine, 1.0, at=1.0)
    second = caller.send(machine, 1.0, at=2.0)
    stage.events.at(3.0, machine.go_on)

    stage.events.run(10.0)

    # 1.5 of the first were left at 0.5, and are at 3.0.
    assert caller.ends() == {running: 4.5, queued: 5.5, first: 6.5, second: 7.5}
    # A process that is stopped uses no CPU, whoever asks and whenever.
    assert running.cpu_seconds == pytest.approx(2.0)
    assert machine.busy_seconds() == pytest.approx(5.0)


def test_cpu_that_is_sampled_during_a_stall_does_not_grow() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    Listener(stage).send(machine, 2.0)
    stage.events.at(0.5, machine.stall)
    samples: list[float] = []
    for at in (0.5, 1.0, 2.0):
        stage.events.at(at, lambda: samples.append(machine.busy_seconds()))

    stage.events.run(2.0)

    assert samples == [0.5, 0.5, 0.5]


def test_a_speed_that_changes_during_a_stall_counts_afterwards() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    job = caller.send(machine, 2.0)
    stage.events.at(1.0, machine.stall)
    stage.events.at(2.0, lambda: machine.set_speed_ratio("slow", 0.5))
    stage.events.at(3.0, machine.go_on)

    stage.events.run(10.0)

    assert caller.ends() == {job: 5.0}


def test_a_stopped_process_accepts_no_connection_and_answers_no_probe() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage, delay_seconds=0.25)
    machine.stall()
    machine.connect(caller)
    assert machine.process is not None
    assert machine.process.answer_probe() is None
    stage.events.at(2.0, machine.go_on)

    stage.events.run(1.0)
    assert caller.connections == []
    stage.events.run(10.0)
    assert caller.connections == [(2.25, ConnectionEvent.OPENED)]
    assert machine.process.answer_probe() is not None


def test_a_crash_loses_what_is_running_queued_and_waiting_elsewhere() -> None:
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=1, io_seconds=100.0, down_seconds=5.0))
    caller = Listener(stage, delay_seconds=0.25)
    machine.connect(caller)
    away = caller.send(machine, 1.0)
    running = caller.send(machine, 4.0)
    queued = caller.send(machine, 1.0)
    stage.events.at(1.0, machine.crash)
    to_nobody = caller.send(machine, 1.0, at=2.0)
    afterwards = caller.send(machine, 0.0, at=6.5)

    stage.events.run(1_000.0)

    lost = {job: at for at, job in caller.answers if job.outcome is Outcome.LOST}
    assert lost == {away: 1.25, running: 1.25, queued: 1.25, to_nobody: 2.25}
    assert afterwards.outcome is Outcome.OK
    assert len(caller.answers) == 5
    assert caller.connections[-1] == (1.25, ConnectionEvent.LOST)


def test_a_crash_of_a_stopped_process_loses_what_the_kernel_kept_for_it() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage, delay_seconds=0.25)
    stage.events.at(0.5, machine.stall)
    kept = caller.send(machine, 1.0, at=1.0)
    stage.events.at(1.5, lambda: machine.connect(caller))
    stage.events.at(2.0, machine.crash)

    stage.events.run(10.0)

    assert caller.answers == [(2.25, kept)]
    assert kept.outcome is Outcome.LOST
    assert caller.connections == [(2.25, ConnectionEvent.REFUSED)]


# What a request does beside running.


def test_a_request_waits_elsewhere_after_half_of_its_work() -> None:
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=1, io_seconds=3.0))
    caller = Listener(stage)
    first = caller.send(machine, 2.0)
    second = caller.send(machine, 4.0)

    stage.events.run(100.0)

    # The machine's own luck, drawn once more, in the order in which they go.
    rng = random.Random(f"{SEED}/backend-0/io")
    first_back = 1.0 + rng.expovariate(1.0 / 3.0)
    second_back = 3.0 + rng.expovariate(1.0 / 3.0)
    # The CPU is free from 3.0 on, where the second goes; whoever is back first goes on first.
    halves = sorted(
        [(first_back, 1.0, first), (second_back, 2.0, second)], key=lambda half: half[0]
    )
    arrivals = [(max(3.0, back), cost) for back, cost, _ in halves]
    expected = dict(zip([job for _, _, job in halves], completions(arrivals, cores=1), strict=True))
    assert caller.ends() == pytest.approx(expected)
    assert (first.cpu_seconds, second.cpu_seconds) == pytest.approx((2.0, 4.0))
    assert machine.busy_seconds() == pytest.approx(6.0)


def test_a_second_half_queues_behind_what_came_meanwhile() -> None:
    stage = new_stage()
    # Away for about a millionth of a second: back while the other one runs.
    machine = new_machine(stage, ServiceConfig(cores=1, io_seconds=1e-6))
    caller = Listener(stage)
    first = caller.send(machine, 2.0)
    second = caller.send(machine, 4.0)

    stage.events.run(100.0)

    # First half of the first, first half of the second, then the second halves in this order.
    ends = caller.ends()
    assert ends[first] == pytest.approx(1.0 + 2.0 + 1.0, abs=1e-4)
    assert ends[second] == pytest.approx(1.0 + 2.0 + 1.0 + 2.0, abs=1e-4)


def test_a_refusal_goes_before_the_queue_and_costs_its_part() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    running = caller.send(machine, 1.0)
    queued = caller.send(machine, 1.0)
    expired = caller.send(machine, 5.0, at=0.5, request=Request(deadline_at=0.25))

    stage.events.run(10.0)

    assert caller.ends() == pytest.approx({running: 1.0, expired: 1.1, queued: 2.1})
    assert expired.outcome is Outcome.TIMEOUT


def test_a_backend_that_fails_fast_answers_errors_before_all_else() -> None:
    stage = new_stage()
    machine = new_machine(stage, ONE_CORE)
    caller = Listener(stage)
    before = caller.send(machine, 1.0)
    queued = caller.send(machine, 1.0)
    stage.events.at(0.25, lambda: machine.set_fast_fail(fails_fast=True))
    failed = caller.send(machine, 1.0, at=0.5)
    stage.events.at(3.0, lambda: machine.set_fast_fail(fails_fast=False))
    after = caller.send(machine, 1.0, at=4.0)

    stage.events.run(10.0)

    # An error costs a hundredth of a request; what was admitted before is served.
    assert caller.ends() == pytest.approx({before: 1.0, failed: 1.01, queued: 2.01, after: 5.0})
    assert failed.outcome is Outcome.ERROR
    assert [job.outcome for job in (before, queued, after)] == [Outcome.OK] * 3


def test_answering_probes_takes_its_time_from_what_runs_next() -> None:
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=1, probe_cost_seconds=0.25))
    caller = Listener(stage)
    assert machine.process is not None
    machine.process.answer_probe()
    machine.process.answer_probe()
    first, second = caller.send(machine, 1.0), caller.send(machine, 1.0)

    stage.events.run(10.0)

    assert caller.ends() == {first: 1.5, second: 2.5}


# Connections.


def test_connections_beyond_the_backlog_are_refused() -> None:
    stage = new_stage()
    config = ServiceConfig(cores=1, connect_cost_seconds=1.0, accept_backlog=2)
    machine = new_machine(stage, config)
    callers = [Listener(stage, delay_seconds=0.25) for _ in range(4)]
    for caller in callers[:3]:
        machine.connect(caller)
    # At 1.5 the first has left the backlog.
    stage.events.at(1.5, lambda: machine.connect(callers[3]))

    stage.events.run(10.0)

    assert [caller.connections for caller in callers] == [
        [(1.25, ConnectionEvent.OPENED)],
        [(2.25, ConnectionEvent.OPENED)],
        [(0.25, ConnectionEvent.REFUSED)],
        [(3.25, ConnectionEvent.OPENED)],
    ]
    # A connection begins with the backend's state.
    assert [len(caller.reports) for caller in callers] == [1, 1, 0, 1]
    assert machine.busy_seconds() == pytest.approx(3.0)


def test_connections_are_accepted_before_the_queue() -> None:
    stage = new_stage()
    machine = new_machine(stage, ServiceConfig(cores=1, connect_cost_seconds=0.5))
    caller = Listener(stage)
    running, queued = caller.send(machine, 1.0), caller.send(machine, 1.0)
    stage.events.at(0.5, lambda: machine.connect(caller))

    stage.events.run(10.0)

    assert caller.connections == [(1.5, ConnectionEvent.OPENED)]
    assert caller.ends() == {running: 1.0, queued: 2.5}
