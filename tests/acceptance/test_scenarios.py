"""What the simulator must show, one test for each line, by the shipped scenarios.

That its queues are those of Erlang is in `tests/lab/sim/test_erlang.py`.  Figures of simulated time
are the same wherever they are computed; those of CPU time are medians of three runs.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import pytest

from evenly.lab.sim.batch import run_batch
from evenly.lab.sim.measure import measured_span
from evenly.lab.sim.result import Row
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.simulate import simulate
from evenly.signals.cpu import effective_cores
from tests.lab.sim.shipped import shipped

pytestmark = pytest.mark.acceptance

SEEDS = (1, 2, 3)
SEED = 1
# What the latency under overload is compared with: the same story at this load.
NEAR_CAPACITY = 0.9
OVERLOADS = (1.2, 2.0, 5.0, 10.0)

Show = Callable[[str], None]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print at once: these tests are read for their figures."""

    def print_now(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    return print_now


def run(
    scenario: Scenario,
    *,
    seeds: Sequence[int] = (SEED,),
    policies: Sequence[str] = ("probing",),
    loads: Sequence[float] = (),
) -> list[Row]:
    """Return the rows, after the checkers of all of them; loads are the scenario's own if none."""
    results = run_batch(
        scenario,
        seeds=seeds,
        policies=policies,
        loads=loads or scenario.loads,
        processes=math.ceil(effective_cores()),
        progress=lambda _index, _fraction: None,
    )
    rows = [result.row for result in results]
    assert {row.violations for row in rows} == {()}
    return rows


def shown(row: Row) -> str:
    success = ", ".join(f"{name} {ratio:.4f}" for name, ratio in row.success_by_criticality.items())
    figures = {
        "goodput": row.goodput_ratio,
        "errors": row.errors_ratio,
        "p99": row.p99_seconds,
        "over ideal": row.p99_over_ideal,
        "CPU p95/p5": row.cpu_p95_over_p5,
        "attempts": row.attempts_per_request,
        "probes": row.probes_per_request,
        "recovery": row.recovery_seconds,
    }
    text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if value is not None)
    return f"{row.policy}, load {row.load:g}, seed {row.seed}: {text}; {success}"


# How fast it is.


def requests_per_cpu_second(scenario: Scenario, policy: str) -> list[float]:
    """Return the speed for each seed: here and one after another, so that nothing else shares."""
    rows = [simulate(scenario, policy=policy, load=0.9, seed=seed).row for seed in SEEDS]
    return [row.requests / row.cpu_seconds_spent for row in rows]


@pytest.mark.parametrize(("policy", "least"), [("round_robin", 25_000), ("probing", 12_000)])
def test_requests_per_cpu_second(policy: str, least: int, show: Show) -> None:
    # A third of the time: 430,000 requests a run are enough to measure their cost.
    scenario = shipped("small-fleet", "seconds=20.0", "settle_seconds=10.0")
    speeds = requests_per_cpu_second(scenario, policy)
    show(f"{policy}: {', '.join(f'{speed:,.0f}' for speed in speeds)} requests per CPU second")

    assert median(speeds) >= least


def growth(small: Scenario, large: Scenario) -> list[float]:
    """Return for each seed how many times as dear a request is in the large one."""
    ratios = []
    for seed in SEEDS:
        # One after the other, so that both meet the same machine.
        costs = [
            row.cpu_seconds_spent / row.requests
            for row in (
                simulate(scenario, policy="round_robin", load=0.9, seed=seed).row
                for scenario in (small, large)
            )
        ]
        ratios.append(costs[1] / costs[0])
    return ratios


def test_the_cost_of_a_request_does_not_grow_with_backends_and_clients(show: Show) -> None:
    # Ten times of each, so that every client task sends as much as before, and every backend serves
    # and restarts as often.  What is done per request takes as many steps; but ten times the state
    # is in no cache, and a heap of ten times the events is 3 levels (log₂ 10) deeper.  1.5 allows
    # that, and is far from the 10 of anything that goes through all backends or clients.
    seconds = ("seconds=4.0", "settle_seconds=2.0")
    large = ("clients.count=200", "backends.count=1000", "backends.restarts.every_seconds=0.5")
    ratios = growth(shipped("small-fleet", *seconds), shipped("small-fleet", *seconds, *large))
    show(
        f"10 × the backends and clients: {', '.join(f'{ratio:.2f}' for ratio in ratios)} × as dear"
    )

    assert median(ratios) <= 1.5


def test_the_large_fleet_takes_less_than_five_minutes(show: Show) -> None:
    scenario = shipped("large-fleet")
    assert scenario.total_seconds == 15.0

    began_at = time.perf_counter()
    (row,) = run(scenario)
    seconds = time.perf_counter() - began_at
    show(f"{seconds:.0f} s for {row.requests:,} requests; {shown(row)}")

    assert seconds < 300.0


def test_all_figures_of_the_book_take_less_than_three_minutes(tmp_path: Path, show: Show) -> None:
    began_at = time.perf_counter()
    subprocess.run([sys.executable, "-m", "evenly", "figures", "--out", tmp_path], check=True)
    seconds = time.perf_counter() - began_at
    show(f"{seconds:.0f} s")

    # 20-1 to 20-6, 21-1 and 21-2.
    assert len(list(tmp_path.glob("*.png"))) == 8
    assert seconds < 180.0


# How even it is.


def medians(rows: Iterable[Row], figure: Callable[[Row], float | None]) -> float:
    """Return the median over the seeds of what the default policy had."""
    figures = [figure(row) for row in rows if row.policy == "probing"]
    assert len(figures) == len(SEEDS)
    assert None not in figures
    return median(value for value in figures if value is not None)


@pytest.mark.parametrize("name", ["small-fleet", "many-clients"])
def test_the_default_policy_is_near_the_limit(name: str, show: Show) -> None:
    rows = run(shipped(name), seeds=SEEDS)
    for row in rows:
        show(shown(row))

    assert medians(rows, lambda row: row.p99_over_ideal) <= 1.4
    assert medians(rows, lambda row: row.cpu_p95_over_p5) <= 1.20
    assert medians(rows, lambda row: row.probes_per_request) <= 1.0


# What goes wrong.


def test_the_sinkhole_is_seen_by_less_than_1_in_2000(show: Show) -> None:
    (row,) = run(shipped("sinkhole"))
    show(shown(row))

    assert row.errors_ratio < 0.0005


def test_a_rolling_restart_fails_no_request(show: Show) -> None:
    (row,) = run(shipped("rolling-restart"))
    show(shown(row))

    assert row.errors_ratio == 0.0


def test_the_bottom_of_a_stack_sees_at_most_1_7_attempts_a_request(show: Show) -> None:
    (row,) = run(shipped("deep-stack"))
    show(shown(row))

    assert row.attempts_per_request <= 1.7


# Overload.  All rows are run once, and looked at one by one.


def overload_rows(*changes: str, loads: Sequence[float] = OVERLOADS) -> dict[float, Row]:
    return {row.load: row for row in run(shipped("overload", *changes), loads=loads)}


@pytest.fixture(scope="module")
def overload() -> dict[float, Row]:
    return overload_rows(loads=(NEAR_CAPACITY, *OVERLOADS))


@pytest.mark.parametrize("load", OVERLOADS)
def test_overload_leaves_the_goodput(overload: dict[float, Row], load: float, show: Show) -> None:
    row = overload[load]
    show(shown(row))

    assert row.goodput_ratio >= 0.97


@pytest.mark.parametrize("load", OVERLOADS)
def test_overload_does_not_touch_what_is_most_critical(
    overload: dict[float, Row], load: float
) -> None:
    # A tenth of 10 times the capacity is all of it.
    least = 0.999 if load <= 5.0 else 0.97

    assert overload[load].success_by_criticality["CRITICAL_PLUS"] >= least


@pytest.mark.parametrize("load", OVERLOADS)
def test_overload_at_most_doubles_the_latency(
    overload: dict[float, Row], load: float, show: Show
) -> None:
    p99 = overload[load].p99_seconds
    near_capacity = overload[NEAR_CAPACITY].p99_seconds
    assert p99 is not None
    assert near_capacity is not None
    show(f"p99 {p99:.3f} s, {p99 / near_capacity:.2f} × that at {NEAR_CAPACITY} of capacity")

    assert p99 <= 2.1 * near_capacity


@pytest.mark.parametrize("load", OVERLOADS)
def test_overload_is_refused_by_criticality(overload: dict[float, Row], load: float) -> None:
    success = overload[load].success_by_criticality

    assert list(success) == ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]
    assert list(success.values()) == sorted(success.values(), reverse=True)


@pytest.mark.parametrize("load", OVERLOADS)
def test_overload_is_over_within_five_seconds(overload: dict[float, Row], load: float) -> None:
    seconds = overload[load].recovery_seconds

    assert seconds is not None
    assert seconds <= 5.0


@pytest.mark.parametrize("reject_cost_ratio", [0.01, 0.5])
def test_overload_leaves_most_of_the_goodput_whatever_refusing_costs(
    reject_cost_ratio: float, show: Show
) -> None:
    rows = overload_rows(f"backends.reject_cost_ratio={reject_cost_ratio}")
    for row in rows.values():
        show(f"refusing costs {reject_cost_ratio:.0%}: {shown(row)}")

    assert min(row.goodput_ratio for row in rows.values()) >= 0.85


def test_sporadic_clients_that_ask_first_keep_the_goodput(show: Show) -> None:
    (row,) = run(shipped("sporadic-clients"))
    show(shown(row))

    assert row.goodput_ratio >= 0.90


# Overload of small backends, of slow requests, of client tasks of all kinds: medians of three
# seeds, with the four criticalities at 10/30/30/30 %.


def run_and_show(name: str, load: float, show: Show, *changes: str) -> list[Row]:
    rows = run(shipped(name, *changes), seeds=SEEDS, loads=(load,))
    for row in rows:
        show(shown(row))
    return rows


def success(rows: Iterable[Row], criticality: str) -> float:
    return medians(rows, lambda row: row.success_by_criticality[criticality])


@pytest.mark.parametrize(
    ("name", "load", "goodput", "least"),
    [
        pytest.param("small-backends", 2.0, 0.99, (0.999, 0.99, 0.30), id="small-backends, 2"),
        pytest.param("small-backends", 5.0, 0.97, (0.999, 0.31), id="small-backends, 5"),
        pytest.param("small-backends", 10.0, 0.0, (0.95,), id="small-backends, 10"),
        pytest.param("small-slow", 2.0, 0.98, (0.99, 0.97), id="small-slow, 2"),
        pytest.param("small-slow", 5.0, 0.98, (0.98, 0.32), id="small-slow, 5"),
    ],
)
def test_the_highest_criticality_first(
    name: str, load: float, goodput: float, least: tuple[float, ...], show: Show
) -> None:
    rows = run_and_show(name, load, show)

    assert medians(rows, lambda row: row.goodput_ratio) >= goodput
    order = ("CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS")
    for criticality, ratio in zip(order, least, strict=False):
        assert success(rows, criticality) >= ratio, criticality
    assert success(rows, "SHEDDABLE") <= 0.02
    # Slow requests tell late that there is room again.
    assert medians(rows, lambda row: row.recovery_seconds) <= (5.0 if name == "small-slow" else 2.0)


def test_slow_requests_do_not_wait_for_half_of_their_deadline(show: Show) -> None:
    rows = run_and_show("small-slow", 2.0, show)

    assert medians(rows, lambda row: row.p50_seconds) <= 0.38


def test_what_is_most_critical_does_not_notice_the_first_second_of_an_overload(show: Show) -> None:
    scenario = shipped("step")
    begin, _ = measured_span(scenario)
    ratios = []
    for seed in SEEDS:
        result = simulate(scenario, policy="probing", load=5.0, seed=seed)
        show(shown(result.row))
        series, name = result.series, "CRITICAL_PLUS"
        ratios.append(series.succeeded[name][begin] / series.offered[name][begin])
        assert result.row.violations == ()
    show(f"first second: {', '.join(f'{ratio:.4f}' for ratio in ratios)}")

    assert median(ratios) >= 0.98


@pytest.mark.parametrize(("load", "most"), [(0.9, 0.001), (0.95, 0.006)])
def test_hardly_anything_fails_in_calm(load: float, most: float, show: Show) -> None:
    rows = run_and_show("calm", load, show)

    assert medians(rows, lambda row: row.errors_ratio) <= most
    # None of them is refused.  Of what costs 1.5 s or more, which is (0.0052 / 1.5)^1.5 = 0.02 % of
    # the requests, a backend of half the speed answers nothing within 3 s.
    for criticality in ("CRITICAL_PLUS", "CRITICAL"):
        assert success(rows, criticality) >= 1.0 - 0.0002


@pytest.mark.parametrize("load", [1.1, 1.5])
def test_who_sends_seldom_fares_like_who_sends_often(load: float, show: Show) -> None:
    rows = run_and_show("mixed-clients", load, show)
    for row in rows:
        show(f"seed {row.seed}: {row.success_by_client_rate}")

    for criticality in rows[0].success_by_criticality:
        halves = [row.success_by_client_rate[criticality] for row in rows]
        assert median(abs(half["seldom"] - half["often"]) for half in halves) <= 0.1, criticality


def test_a_third_of_the_users_gets_all_of_four_calls(show: Show) -> None:
    rows = run_and_show("fanout", 2.0, show)
    for row in rows:
        show(f"seed {row.seed}: users {row.users_by_criticality}")

    assert medians(rows, lambda row: row.users_by_criticality["SHEDDABLE_PLUS"]) >= 0.28
