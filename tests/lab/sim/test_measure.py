"""From counts to figures: literal numbers, and the arithmetic beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evenly.core.criticality import Criticality
from evenly.lab.sim.cpu_samples import CpuSamples, evenness, quantile
from evenly.lab.sim.events import Events
from evenly.lab.sim.fault_config import CrashFault, FaultConfig, LossFault, RestartFault, SlowFault
from evenly.lab.sim.measure import measure_row, measure_series, measured_span
from evenly.lab.sim.recorder import Recorder, Second
from evenly.lab.sim.result import Row
from evenly.lab.sim.scenario import PhaseConfig, Scenario
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig
from tests.lab.sim.small import Listener, new_machine, new_stage

# 2 · 1 / 0.02: 100 requests per second.
SCENARIO = Scenario(
    title="measured",
    seconds=10.0,
    settle_seconds=2.0,
    backends=ServiceConfig(count=2, cores=1, cost=RequestCostConfig(mean_seconds=0.02)),
)
NOBODY = CpuSamples(Events(), [])


def second(offered: int, succeeded: int, criticality: Criticality = Criticality.CRITICAL) -> Second:
    each = Second()
    each.offered[criticality] = offered
    each.succeeded[criticality] = succeeded
    each.completed = succeeded
    return each


def row_of(scenario: Scenario, seconds: Sequence[Second], samples: CpuSamples = NOBODY) -> Row:
    return measure_row(
        scenario,
        seconds,
        samples,
        policy="probing",
        seed=1,
        load=0.7,
        cpu_seconds_spent=0.0,
        violations=(),
    )


# What is measured.


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        pytest.param(SCENARIO, (2, 10), id="all after settling"),
        pytest.param(replace(SCENARIO, settle_seconds=10.0), (10, 11), id="at least one second"),
        pytest.param(
            replace(
                SCENARIO,
                phases=(
                    PhaseConfig(seconds=5.0, load=0.5),
                    PhaseConfig(seconds=7.0),
                    PhaseConfig(seconds=5.0, load=0.5),
                ),
            ),
            (5, 12),
            id="the phase at the row's load",
        ),
        pytest.param(
            replace(SCENARIO, settle_seconds=0.5), (1, 10), id="no second is measured in part"
        ),
    ],
)
def test_the_measured_span(scenario: Scenario, expected: tuple[int, int]) -> None:
    assert measured_span(scenario) == expected


def test_a_recorder_has_one_entry_per_second() -> None:
    events = Events()
    recorder = Recorder(events)
    for at in (0.0, 0.5, 0.999, 1.5, 3.25):
        events.at(at, lambda: setattr(recorder.second, "probes", recorder.second.probes + 1))

    events.run(3.5)

    assert [each.probes for each in recorder.seconds] == [3, 1, 0, 1]


# Ratios of requests.


def test_goodput_is_of_what_could_have_succeeded() -> None:
    settling = [second(1_000, 0)] * 2
    # Below capacity all could have: 8 · 45 of 8 · 50.
    below = row_of(SCENARIO, settling + [second(50, 45)] * 8)
    assert below.goodput_ratio == pytest.approx(0.9)
    assert below.errors_ratio == pytest.approx(0.1)
    # Above, 100 per second: 8 · 90 of 8 · 100, while 8 · 110 of 8 · 200 did not succeed.
    above = row_of(SCENARIO, settling + [second(200, 90)] * 8)
    assert above.goodput_ratio == pytest.approx(0.9)
    assert above.errors_ratio == pytest.approx(0.55)
    assert above.requests == 2 * 1_000 + 8 * 200


def test_a_run_without_requests_has_no_errors_and_no_latencies() -> None:
    row = row_of(SCENARIO, [Second() for _ in range(10)])

    assert (row.goodput_ratio, row.errors_ratio) == (1.0, 0.0)
    assert (row.p50_seconds, row.p99_seconds, row.success_by_criticality) == (None, None, {})
    assert (row.attempts_per_request, row.probes_per_request) == (0.0, 0.0)


def test_what_succeeds_is_told_by_criticality_the_highest_first() -> None:
    seconds = [Second() for _ in range(10)]
    seconds[2].offered[:] = [10, 0, 30, 5]
    seconds[2].succeeded[:] = [1, 0, 24, 5]
    seconds[3].offered[:] = [10, 0, 10, 0]
    seconds[3].succeeded[:] = [2, 0, 10, 0]
    row = row_of(SCENARIO, seconds)

    assert list(row.success_by_criticality.items()) == [
        ("CRITICAL_PLUS", 1.0),
        ("CRITICAL", pytest.approx(34 / 40)),
        ("SHEDDABLE", pytest.approx(3 / 20)),
    ]


def test_attempts_and_probes_are_per_request_of_the_measured_part() -> None:
    seconds = [second(10, 10) for _ in range(10)]
    for each in seconds:
        each.attempts, each.probes = 12, 5
    seconds[0].attempts = seconds[0].probes = 1_000
    row = row_of(SCENARIO, seconds)

    assert (row.attempts_per_request, row.probes_per_request) == pytest.approx((1.2, 0.5))


# Quantiles and latencies.


@pytest.mark.parametrize(
    ("ordered", "ratio", "expected"),
    [
        pytest.param([5.0], 0.99, 5.0, id="one value is every quantile"),
        pytest.param([1.0, 2.0, 3.0], 0.5, 2.0, id="the middle one"),
        pytest.param([1.0, 2.0, 3.0, 4.0], 0.5, 2.5, id="between the two middle ones"),
        pytest.param([0.0, 10.0], 0.25, 2.5, id="a quarter of the way"),
        pytest.param([float(i) for i in range(101)], 0.99, 99.0, id="place 0.99 * 100"),
        pytest.param([1.0, 2.0, 3.0], 0.0, 1.0, id="the least"),
        pytest.param([1.0, 2.0, 3.0], 1.0, 3.0, id="the most"),
    ],
)
def test_quantile(ordered: list[float], ratio: float, expected: float) -> None:
    assert quantile(ordered, ratio) == pytest.approx(expected)


def test_latencies_are_those_of_the_measured_seconds_in_any_order() -> None:
    seconds = [second(1, 1) for _ in range(10)]
    seconds[0].latencies.append(1_000.0)
    seconds[2].latencies.extend([3.0, 1.0])
    seconds[9].latencies.extend([2.0])
    row = row_of(SCENARIO, seconds)
    assert row.p50_seconds == 2.0
    # Place 0.99 · 2 = 1.98: 2 + 0.98 · (3 - 2).
    assert row.p99_seconds == pytest.approx(2.98)

    series = measure_series(SCENARIO, seconds, NOBODY)
    assert series.p50_seconds == (1_000.0, None, 2.0, *[None] * 6, 2.0)
    # Place 0.99 · 1: 1 + 0.99 · (3 - 1).
    assert series.p99_seconds[2] == pytest.approx(2.98)


# Recovery.

OVERLOAD = replace(
    SCENARIO,
    phases=(PhaseConfig(seconds=4.0), PhaseConfig(seconds=16.0, load=0.5)),
)


def recovery(scenario: Scenario, succeeded: list[int]) -> float | None:
    """Return the figure of a story with 1,000 requests per second, of which so many succeed."""
    return row_of(scenario, [second(1_000, count) for count in succeeded]).recovery_seconds


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param([1_000] * 16, 0.0, id="at once"),
        pytest.param([0, 500, 989, 990, 990, *[1_000] * 11], 3.0, id="99 % is enough"),
        pytest.param([1_000, 0, 1_000, 1_000, *[0] * 12], 2.0, id="two seconds in a row"),
        pytest.param([*[0] * 14, 1_000, 1_000], 14.0, id="in the last two seconds"),
        pytest.param([*[0] * 15, 1_000], 16.0, id="one second is not enough: all there was"),
        pytest.param([0] * 16, 16.0, id="never"),
    ],
)
def test_recovery_from_overload(after: list[int], expected: float) -> None:
    assert recovery(OVERLOAD, [0, 0, 0, 0, *after]) == expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(CrashFault(at_seconds=5.0), 5.0, id="a crash is one moment"),
        pytest.param(SlowFault(ratio=0.5, at_seconds=3.0, seconds=4.5), 2.5, id="from its end"),
        pytest.param(SlowFault(ratio=0.5, at_seconds=3.0), None, id="one that never ends"),
        pytest.param(
            RestartFault(at_seconds=2.0, backends=2, every_seconds=3.0),
            5.0,
            id="from the last backend's restart",
        ),
        pytest.param(
            RestartFault(at_seconds=2.0, backends=0, every_seconds=3.0),
            5.0,
            id="of all backends: there are two",
        ),
        pytest.param(
            RestartFault(at_seconds=2.0, first=1, backends=0, every_seconds=3.0),
            8.0,
            id="of all from the second on: one",
        ),
        pytest.param(LossFault(at_seconds=2.0, seconds=18.0, ratio=0.5), None, id="to the end"),
    ],
)
def test_recovery_from_a_fault(fault: FaultConfig, expected: float | None) -> None:
    scenario = replace(SCENARIO, seconds=20.0, faults=(fault,))

    # All is well again from second 10 on.
    assert recovery(scenario, [0] * 10 + [1_000] * 10) == expected


def test_recovery_is_from_the_last_trouble() -> None:
    faults = tuple(CrashFault(at_seconds=at) for at in (6.0, 2.0))
    scenario = replace(SCENARIO, seconds=20.0, faults=faults)

    assert recovery(scenario, [0] * 10 + [1_000] * 10) == 4.0


def test_a_calm_story_has_nothing_to_recover_from() -> None:
    assert recovery(SCENARIO, [1_000] * 10) is None


# Evenness.


def test_evenness() -> None:
    # 11 values, so that p5 and p95 lie half way between the outermost two at either end.
    cpu = [0.5, 1.0, *[0.75] * 7, 0.6, 0.9]
    found = evenness(cpu)

    assert found is not None
    assert found.p95_over_p5 == pytest.approx((0.9 + 1.0) / 2 / ((0.5 + 0.6) / 2))
    assert found.max_over_min == pytest.approx(2.0)
    # Σ(1.0 − CPU[i]) = 0.5 + 7 · 0.25 + 0.4 + 0.1 of 11 · 1.0
    assert found.wasted_ratio == pytest.approx(2.75 / 11)


@pytest.mark.parametrize("cpu", [[], [0.5]])
def test_evenness_needs_two(cpu: list[float]) -> None:
    assert evenness(cpu) is None


def test_a_ratio_to_an_idle_backend_is_unknown_and_its_capacity_wasted() -> None:
    # p95 and p5 of 0.0 and 0.5 lie at 0.95 and 0.05 between them; Σ(0.5 − CPU[i]) = 0.5 of 2 · 0.5.
    found = evenness([0.5, 0.0])
    assert found is not None
    assert found.p95_over_p5 == pytest.approx(19.0)
    assert found[1:] == (None, 0.5)
    assert evenness([0.0, 0.0]) == (None, None, None)


def test_all_alike_waste_nothing() -> None:
    assert evenness([0.7, 0.7, 0.7]) == (1.0, 1.0, 0.0)


def test_cpu_is_sampled_by_machine_and_second() -> None:
    stage = new_stage()
    two_cores = ServiceConfig(cores=2, down_seconds=1.0, warm_up_seconds=1.0)
    machines = [new_machine(stage, two_cores, index=i) for i in range(3)]
    samples = CpuSamples(stage.events, machines)
    caller = Listener(stage)
    caller.send(machines[0], 2.5, at=0.25)  # 0.75, 1 and 0.75 s of one of two cores
    caller.send(machines[1], 0.5, at=0.0)
    caller.send(machines[1], 0.5, at=0.0)
    caller.send(machines[1], 0.75, at=2.0)
    caller.send(machines[2], 4.0, at=0.0)
    stage.events.at(1.5, machines[2].crash)

    stage.events.run(8.0)

    assert samples.used[0] == pytest.approx([0.375, 0.5, 0.375, *[0.0] * 5])
    assert samples.used[1] == pytest.approx([0.5, 0.0, 0.375, *[0.0] * 5])
    assert samples.used[2] == pytest.approx([0.5, 0.25, *[0.0] * 6])
    # All three were healthy in the first second; then the third is gone, and does not count.
    first = samples.over(0, 1)
    assert first is not None
    assert first.max_over_min == pytest.approx(0.5 / 0.375)
    both = samples.over(0, 3)
    assert both is not None
    assert both.max_over_min == pytest.approx((0.375 + 0.5 + 0.375) / (0.5 + 0.375))
    idle = samples.over(1, 2)
    assert idle is not None
    assert idle.max_over_min is None  # One of the two was idle.


def test_evenness_is_the_median_of_windows_of_ten_seconds() -> None:
    stage = new_stage()
    machines = [new_machine(stage, ServiceConfig(cores=1), index=i) for i in range(2)]
    samples = CpuSamples(stage.events, machines)
    caller = Listener(stage)
    # The first works 5 s in each of three windows, the second 1, 4 and 2 s; then there is half of a
    # window, which does not count.
    for window, cost in enumerate((1.0, 4.0, 2.0, 0.1)):
        caller.send(machines[0], 5.0, at=10.0 * window)
        caller.send(machines[1], cost, at=10.0 * window)

    stage.events.run(35.0)

    found = samples.windows(0, 35)
    assert found is not None
    assert found.max_over_min == pytest.approx(5.0 / 2.0)
    # Σ(CPU[0] − CPU[i]) of n · CPU[0]: 3 of 10.
    assert found.wasted_ratio == pytest.approx(0.3)
    # Less than a window is one.
    short = samples.windows(30, 35)
    assert short is not None
    assert short.max_over_min == pytest.approx(50.0)


# Series.


def test_series_have_one_entry_per_whole_second() -> None:
    seconds = [second(10 + i, i) for i in range(13)]  # With what came after the end.
    for i, each in enumerate(seconds):
        each.attempts, each.probes, each.throttled = i, 2 * i, 3 * i
        each.rejected, each.connections = 4 * i, 5 * i
    series = measure_series(SCENARIO, seconds, NOBODY)

    assert series.capacity == pytest.approx(100.0)
    assert series.offered == {"CRITICAL": tuple(range(10, 20))}
    assert series.succeeded == {"CRITICAL": tuple(range(10))}
    assert series.attempts == tuple(range(10))
    assert series.probes == tuple(range(0, 20, 2))
    assert series.throttled == tuple(range(0, 30, 3))
    assert series.rejected == tuple(range(0, 40, 4))
    assert series.connections == tuple(range(0, 50, 5))
    assert len(series.spread) == len(series.wasted_ratio) == 10
