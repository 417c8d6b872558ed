"""The stories that evenly ships: they are the agreed ones, and told small nothing is violated.

Each is run with fewer client tasks, backends and seconds, its troubles moved into the shorter time.
What it shows in full is in `tests/acceptance/test_scenarios.py`.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import asdict, replace

import pytest

from evenly.core.criticality import Criticality
from evenly.lab.sim.fault_config import FastFailFault, RestartFault
from evenly.lab.sim.measure import measured_span
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import OMNISCIENT, PhaseConfig, Scenario
from evenly.lab.sim.simulate import simulate
from tests.lab.sim.shipped import FOLDER, shipped

SEED = 1

SMALL = {
    "book-load-spread": (
        "clients.count=10",
        "backends.count=20",
        "seconds=16.0",
        "settle_seconds=5.0",
    ),
    "small-fleet": (  # Four client tasks to a backend, as in the file.
        "clients.count=10",
        "client_task.membership.subset_size=8",
        "backends.count=20",
        "backends.cores=2",
        "backends.restarts.every_seconds=3.0",
        "seconds=8.0",
        "settle_seconds=4.0",
    ),
    "many-clients": (
        "clients.count=200",
        "client_task.membership.subset_size=5",
        "backends.count=20",
        "backends.cores=2",
        "backends.restarts.every_seconds=3.0",
        "seconds=8.0",
        "settle_seconds=4.0",
    ),
    "large-fleet": (
        "clients.count=15",
        "client_task.membership.subset_size=15",
        "backends.count=75",
        "backends.cores=1",
        "backends.restarts.every_seconds=1.0",
        "seconds=6.0",
        "settle_seconds=3.0",
    ),
    "sinkhole": (
        "clients.count=10",
        "backends.count=20",
        "faults.0.at_seconds=5.0",
        "faults.0.first=7",
        "seconds=15.0",
        "settle_seconds=4.0",
    ),
    "rolling-restart": (
        "clients.count=10",
        "backends.count=5",
        "faults.0.at_seconds=4.0",
        "faults.0.backends=5",
        "seconds=22.0",
        "settle_seconds=3.0",
    ),
    "cold-start": (
        "clients.count=15",
        "backends.count=10",
        "backends.cold_seconds=4.0",
        "faults.0.at_seconds=4.0",
        "faults.0.backends=2",
        "seconds=14.0",
        "settle_seconds=2.0",
    ),
    "io-bound": (
        "clients.count=20",
        "backends.count=8",
        "seconds=12.0",
        "settle_seconds=4.0",
    ),
    "overload": (
        "loads=[5.0]",
        "clients.count=10",
        "backends.count=4",
        "phases.0.seconds=5.0",
        "phases.1.seconds=12.0",
        "phases.2.seconds=8.0",
    ),
    "retry-storm": (
        "clients.count=10",
        "backends.count=4",
        "faults.0.at_seconds=5.0",
        "faults.0.seconds=6.0",
        "faults.0.backends=4",
        "seconds=24.0",
        "settle_seconds=5.0",
    ),
    "deep-stack": (
        "clients.count=4",
        "backends.count=4",
        "below.0.count=4",
        "below.1.count=2",
        "seconds=12.0",
        "settle_seconds=4.0",
    ),
    "noisy-customer": (  # A fifth of the backends, and of the quotas.
        "clients.count=8",
        "backends.count=4",
        "backend_task.quota.limits={ mail = 8.0, calendar = 6.0, photos = 4.0, indexer = 2.0 }",
        "faults.0.at_seconds=8.0",
        "faults.0.seconds=6.0",
        "seconds=20.0",
        "settle_seconds=6.0",
    ),
    "sporadic-clients": (  # 5 / 0.2 · 10 / 2500: still 0.1 requests per second each.
        "clients.count=2500",
        "backends.count=5",
        "phases.0.seconds=4.0",
        "phases.1.seconds=8.0",
        "phases.2.seconds=6.0",
    ),
    "connection-storm": (
        "clients.count=200",
        "clients.start_seconds=2.0",
        "backends.count=8",
        "faults.0.at_seconds=6.0",
        "seconds=12.0",
        "settle_seconds=3.0",
    ),
    "two-datacenters": (
        "clients.count=10",
        "backends.count=8",
        "faults.0.at_seconds=6.0",
        "faults.0.first=4",
        "faults.0.backends=1",
        "seconds=12.0",
        "settle_seconds=4.0",
    ),
    "partition": (
        "clients.count=8",
        "backends.count=8",
        "faults.0.at_seconds=4.0",
        "faults.0.seconds=5.0",
        "faults.0.backends=2",
        "faults.0.clients=4",
        "seconds=16.0",
        "settle_seconds=2.0",
    ),
    "small-backends": (
        "loads=[2.0]",
        "backends.count=8",
        "settle_seconds=0.0",
        "phases.0.seconds=3.0",
        "phases.1.seconds=5.0",
        "phases.2.seconds=3.0",
    ),
    "small-slow": (
        "loads=[2.0]",
        "phases.0.seconds=4.0",
        "phases.1.seconds=12.0",
        "phases.2.seconds=4.0",
    ),
    "mixed-clients": (
        "loads=[1.5]",
        "clients.count=200",
        "client_task.membership.subset_size=5",
        "backends.count=8",
        "phases.0.seconds=4.0",
        "phases.1.seconds=10.0",
        "phases.2.seconds=4.0",
    ),
    "step": (
        "backends.count=8",
        "settle_seconds=0.0",
        "phases.0.seconds=3.0",
        "phases.1.seconds=3.0",
        "phases.2.seconds=5.0",
    ),
    "fanout": (
        "clients.count=10",
        "backends.count=5",
        "settle_seconds=0.0",
        "phases.0.seconds=3.0",
        "phases.1.seconds=8.0",
        "phases.2.seconds=3.0",
    ),
    "calm": (
        "loads=[0.9]",
        "seconds=10.0",
        "settle_seconds=3.0",
    ),
    "large-backends": (
        "loads=[2.0]",
        "clients.count=4",
        "backends.count=1",
        "settle_seconds=0.0",
        "phases.0.seconds=3.0",
        "phases.1.seconds=5.0",
        "phases.2.seconds=3.0",
    ),
    "sporadic-mild": (
        "loads=[1.1]",
        "clients.count=1000",
        "backends.count=10",
        "phases.0.seconds=5.0",
        "phases.1.seconds=15.0",
        "phases.2.seconds=5.0",
    ),
}


def run(name: str, policy: str) -> Result:
    scenario = shipped(name, *SMALL[name])
    (load,) = scenario.loads
    return simulate(scenario, policy=policy, load=load, seed=SEED)


@functools.cache
def told(name: str, policy: str = "probing") -> Result:
    """Return how a story went when it was told small."""
    return run(name, policy)


# What is in the files.


def test_the_shipped_stories_are_the_agreed_ones() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.toml" for name in SMALL}
    assert len(SMALL) == 24


@pytest.mark.parametrize("name", SMALL)
def test_a_file_opens_with_its_story(name: str) -> None:
    lines = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    story = lines[: next(place for place, line in enumerate(lines) if not line.startswith("#"))]

    # A sentence, an empty line, and what it is about.
    assert len(story) >= 3
    assert story[0].startswith("# ")
    assert story.index("#") <= 2
    assert lines[len(story)].startswith("title = ")


@pytest.mark.parametrize(
    ("name", "clients", "backends", "subset_size"),
    [
        ("small-fleet", 20, 100, 20),
        ("many-clients", 1000, 100, 20),
        ("large-fleet", 200, 1000, 50),
    ],
)
def test_the_fleets_are_of_the_agreed_sizes(
    name: str, clients: int, backends: int, subset_size: int
) -> None:
    scenario = shipped(name)

    assert (scenario.clients.count, scenario.backends.count) == (clients, backends)
    assert scenario.client_task.membership.subset_size == subset_size
    assert scenario.loads == (0.9,)
    # Heavy-tailed costs, unequal machines, antagonists, restarts.
    service = scenario.backends
    assert (service.cost.kind, service.speeds) == ("bounded_pareto", (0.5, 1.5))
    assert service.antagonists is not None
    assert service.restarts is not None


@pytest.mark.parametrize("name", ["small-fleet", "many-clients"])
def test_the_fleets_compare_the_policies_with_the_limit(name: str) -> None:
    book = {"round_robin", "least_loaded", "weighted_round_robin"}

    assert {*book, "power_of_two", "prequal", "probing", OMNISCIENT} <= {*shipped(name).policies}
    assert shipped(name).ideal


def test_the_overload_is_the_agreed_one() -> None:
    scenario = shipped("overload")

    assert (scenario.backends.count, scenario.backends.cores) == (20, 4)
    assert scenario.backends.reject_cost_ratio == 0.1
    assert [phase.load for phase in scenario.phases] == [0.7, None, 0.7]
    assert scenario.phases[1] == PhaseConfig(seconds=120.0)
    assert scenario.loads == (1.2, 2.0, 5.0, 10.0)
    assert dict(scenario.workload.criticalities) == {
        Criticality.CRITICAL_PLUS: 0.1,
        Criticality.CRITICAL: 0.4,
        Criticality.SHEDDABLE_PLUS: 0.3,
        Criticality.SHEDDABLE: 0.2,
    }


@pytest.mark.parametrize("changes", [(), SMALL["sporadic-clients"]], ids=["shipped", "small"])
def test_sporadic_clients_send_a_request_every_ten_seconds(changes: tuple[str, ...]) -> None:
    scenario = shipped("sporadic-clients", *changes)

    assert scenario.loads == (10.0,)
    assert scenario.capacity * 10.0 / scenario.clients.count == pytest.approx(0.1)
    assert shipped("sporadic-clients").clients.count == 10_000


def test_one_backend_of_a_hundred_fails_fast_in_mid_run_and_nothing_is_retried() -> None:
    scenario = shipped("sinkhole")
    (fault,) = scenario.faults

    assert isinstance(fault, FastFailFault)
    assert (fault.backends, scenario.backends.count) == (1, 100)
    begin, end = measured_span(scenario)
    assert begin <= fault.at_seconds < end
    assert scenario.client_task.retry.attempts == 1


def test_every_backend_is_restarted_one_after_another_and_nothing_is_retried() -> None:
    scenario = shipped("rolling-restart")
    (fault,) = scenario.faults

    assert isinstance(fault, RestartFault)
    assert fault.backends == scenario.backends.count
    assert fault.every_seconds > 0.0
    assert fault.at_seconds + fault.backends * fault.every_seconds < scenario.total_seconds
    assert scenario.client_task.retry.attempts == 1


def test_the_bottom_of_the_deep_stack_is_what_is_overloaded() -> None:
    scenario = shipped("deep-stack")

    assert len(scenario.services) == 3
    assert scenario.capacity == scenario.services[-1].capacity
    assert scenario.loads == (3.0,)
    assert min(service.capacity for service in scenario.services[:-1]) > 3.0 * scenario.capacity


# What happens.


@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_violated(name: str) -> None:
    scenario = shipped(name, *SMALL[name])
    # The story is still the file's: the same faults, and all of them in time.
    assert [fault.kind for fault in scenario.faults] == [f.kind for f in shipped(name).faults]
    assert all(
        fault.at_seconds + getattr(fault, "seconds", 0.0) < scenario.seconds
        for fault in scenario.faults
    )

    row = told(name).row
    print(f"{name}: seed {SEED}, {row.requests} requests")  # noqa: T201 -- the seed

    assert row.violations == ()
    assert row.requests > 1_000


def test_the_same_seed_writes_the_same_json() -> None:
    first, again = (
        json.dumps(asdict(replace(result, row=replace(result.row, cpu_seconds_spent=0.0))))
        for result in (told("two-datacenters"), run("two-datacenters", "probing"))
    )

    assert first == again


def test_even_load_wastes_less_than_half() -> None:
    # Round robin: backends at 0.7 / speed, for speeds from 0.6 to 1.4, and at most 1.  On average
    # that is (0.1 + 0.7 · ln(1.4 / 0.7)) / 0.8 = 0.73; so 0.27 of the fullest one's is wasted.
    # Probing: chance.  700 requests to a backend in 10 s, whose CPU varies by
    # √(e / 700) = 6 % (lognormal, σ = 1), and the fullest of twenty is two such above the mean.
    bad = told("book-load-spread", "round_robin").row.wasted_ratio
    good = told("book-load-spread").row.wasted_ratio

    assert bad is not None
    assert good is not None
    assert bad == pytest.approx(0.27, abs=0.06)
    assert good < bad / 2.0


@pytest.mark.parametrize("name", ["small-fleet", "many-clients"])
def test_probing_keeps_the_load_more_even_than_round_robin(name: str) -> None:
    # Round robin: from 0.9 / 1.5 at the fastest to 1 at those that cannot keep up: 1.5 or so.
    bad = told(name, "round_robin").row.cpu_p95_over_p5
    good = told(name).row.cpu_p95_over_p5

    assert bad is not None
    assert good is not None
    assert good - 1.0 < (bad - 1.0) / 2.0


def failed(name: str, policy: str = "probing") -> int:
    """Return how many requests of the measured part failed."""
    series = told(name, policy).series
    begin, end = series.measured
    offered = sum(sum(counts[begin:end]) for counts in series.offered.values())
    return offered - sum(sum(counts[begin:end]) for counts in series.succeeded.values())


def test_the_sinkhole_gets_a_few_requests_of_each_client_task() -> None:
    clients = 10
    # 1,400 requests/s for 10 s after the fault, of which a twentieth would be fair.
    fair = 1_400 * 10 / 20

    # The first error tells; another request can be on its way meanwhile.  When the rates that it
    # reports have decayed, 5 s after the last error, it is tried again: twice in 10 s.
    assert failed("sinkhole") <= (2 + 2) * clients < fair / 10
    # Who sends everybody the same gets the whole share, and more is refused by the slow ones.
    assert failed("sinkhole", "round_robin") > fair - 4.0 * math.sqrt(fair)


def test_a_rolling_restart_fails_no_request() -> None:
    assert told("rolling-restart").row.errors_ratio == 0.0


def test_cold_processes_get_what_they_can_serve() -> None:
    cold, fair = told("cold-start").row, told("cold-start", "round_robin").row

    assert cold.p99_seconds is not None
    assert fair.p99_seconds is not None
    assert cold.p99_seconds < fair.p99_seconds
    assert cold.errors_ratio < fair.errors_ratio


def test_slow_cpus_are_not_overlooked_behind_io() -> None:
    # At 0.85 of capacity the slowest of eight, at half speed, is sent 1.7 times what it can do.
    assert failed("io-bound") < failed("io-bound", "round_robin") / 5


def test_overload_is_refused_by_criticality() -> None:
    row = told("overload").row
    success = row.success_by_criticality

    assert list(success) == ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]
    assert list(success.values()) == sorted(success.values(), reverse=True)
    # A tenth of 5 times the capacity: there is twice the room for it, from the first second on.
    assert success["CRITICAL_PLUS"] >= 0.99
    # What is left, half of the capacity, is a quarter of all that is CRITICAL (0.4 · 5 = 2);
    # a tenth of the capacity, which refusing may cost, is 0.05 of it.
    assert success["CRITICAL"] == pytest.approx(0.25, abs=0.05)
    # One of 12 seconds to notice, and 4 standard deviations of the 6,400 requests served: 5 %.
    assert row.goodput_ratio >= 1.0 - 1 / 12 - 0.05


def test_what_an_ideal_system_gives_stands_beside_the_result() -> None:
    row = told("fanout").row

    assert [*row.ideal_by_criticality.values()] == pytest.approx([1.0, 1.0, 1 / 3, 0.0])
    # 8 s of 1,333 · 0.3 = 400 requests/s in groups of 4: 4 standard deviations of a ratio are 7 %.
    for name, ideal in row.ideal_by_criticality.items():
        assert row.success_by_criticality[name] == pytest.approx(ideal, abs=0.1)


def test_users_are_served_wholly_where_their_calls_share_their_luck() -> None:
    shared = told("fanout").row.users_by_criticality["SHEDDABLE_PLUS"]
    scenario = shipped("fanout", *SMALL["fanout"], "workload.shares_luck=false")
    alone = simulate(scenario, policy="probing", load=2.0, seed=SEED).row

    # A third of the calls, and of the users if it is those of the same users; otherwise 0.33⁴.
    assert shared >= 0.2
    assert alone.users_by_criticality["SHEDDABLE_PLUS"] <= 0.1


def test_after_overload_all_is_well_within_five_seconds() -> None:
    for name in ("overload", "retry-storm"):
        seconds = told(name).row.recovery_seconds

        assert told(name).series.has_recovered
        assert seconds is not None
        assert seconds <= 5.0


def test_retries_do_not_feed_on_themselves() -> None:
    series = told("retry-storm").series
    # From 5 to 11 s the backends can do only a third of it.
    offered = sum(sum(counts[5:11]) for counts in series.offered.values())

    # The budget: a tenth of the requests, and three at the start for each of ten client tasks.
    assert sum(series.attempts[5:11]) <= 1.1 * offered + 3 * 10


def test_only_the_layer_above_the_bottom_of_a_stack_retries() -> None:
    # At most a tenth of what it sends, at three times what can be served; if the layer above it did
    # so too, the bottom would see 1.1 · 1.1 attempts a request.
    assert 1.0 < told("deep-stack").row.attempts_per_request < 1.1 * 1.1


def test_only_the_noisy_customer_notices() -> None:
    success = dict(told("noisy-customer").series.success_by_customer)

    # 48 requests/s, and for 6 of the 14 s 960, of which its quota of 2 CPUs serves 100:
    # (8 · 48 + 6 · 100) / (8 · 48 + 6 · 960) = 0.16; a quota may be a second late: 0.07 more.
    assert success.pop("indexer") <= 0.23
    assert [*success] == ["mail", "calendar", "photos"]
    # Quotas are shared out once a second, so that one second of the 14 may be lost.
    assert min(success.values()) >= 1.0 - 1 / 14


def test_sporadic_clients_that_ask_first_keep_the_backends_busy() -> None:
    # The agreed 0.90; of 8 s · 25 requests/s = 200, √200 = 7 % is chance, and twice that allowed.
    assert told("sporadic-clients").row.goodput_ratio >= 0.90 - 2 * 0.07


def test_who_sends_seldom_fares_like_who_sends_often() -> None:
    success = told("mixed-clients").row.success_by_client_rate

    # The agreed 10 points, and 4 standard deviations of a criticality's 0.3 · 8,000 / 2 requests,
    # of which about half are served: 4 · √(0.25 / 1200) = 6 %.
    assert [*success] == ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]
    for name, halves in success.items():
        assert halves["seldom"] == pytest.approx(halves["often"], abs=0.16), name


def test_a_storm_of_connections_costs_no_more_than_accepting_them() -> None:
    series = told("connection-storm").series

    # 200 client tasks, each with all 8 backends, soon after 6 s.
    assert sum(series.connections[6:9]) >= 200 * 8
    # A backend's 4 cores accept 200 of them, 2 ms each, in 0.1 s of the 9 that are measured.
    assert told("connection-storm").row.errors_ratio <= 0.1 / 9


def test_what_a_datacenter_cannot_serve_is_served_by_the_other() -> None:
    # East alone would be at 0.7 · 0.8 / 0.5 = 1.12; 0.12 / 1.12 of 70 % of the requests: 7.5 %.
    assert told("two-datacenters").row.errors_ratio < 0.075 / 4


def test_a_partition_is_found_out_within_two_seconds() -> None:
    # Half of the client tasks send a quarter of their requests into the void; for 2 s of 14.
    assert told("partition").row.errors_ratio <= 0.5 * 0.25 * 2 / 14


def test_small_stories_keep_their_proportions() -> None:
    def clients_per_backend(scenario: Scenario) -> float:
        connections = scenario.clients.count * scenario.client_task.membership.subset_size
        return connections / scenario.backends.count

    small = shipped("small-fleet", *SMALL["small-fleet"])
    assert clients_per_backend(small) == clients_per_backend(shipped("small-fleet")) == 4.0
