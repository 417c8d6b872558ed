"""Many rows at once: their order, their comparison with the limit, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from evenly.errors import ConfigError
from evenly.lab.sim.batch import plan_rows, run_batch
from evenly.lab.sim.result import Result, Row, Series
from evenly.lab.sim.scenario import Scenario

SCENARIO = Scenario(title="rows", policies=("round_robin", "probing"))


def fake(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Return a row whose p99 is 1 s for the limit, and 1 s + load + seed for everybody else."""
    if progress is not None:
        progress(0.5)
        progress(1.0)
    row = Row(
        policy=policy,
        seed=seed,
        load=load,
        requests=os.getpid(),
        cpu_seconds_spent=0.0,
        goodput_ratio=1.0,
        errors_ratio=0.0,
        p50_seconds=None,
        p99_seconds=1.0 if policy == "omniscient" else 1.0 + load + seed,
        p99_over_ideal=None,
        cpu_p95_over_p5=None,
        cpu_max_over_min=None,
        wasted_ratio=None,
        success_by_criticality={},
        attempts_per_request=1.0,
        probes_per_request=0.0,
        recovery_seconds=None,
        violations=(),
    )
    return Result(row=row, series=SERIES)


SERIES = Series(
    measured=(0, 1),
    has_recovered=True,
    capacity=1.0,
    cpu=(),
    spread=(),
    wasted_ratio=(),
    offered={},
    succeeded={},
    p50_seconds=(),
    p99_seconds=(),
    attempts=(),
    probes=(),
    throttled=(),
    rejected=(),
    connections=(),
)


def held_at_first(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Hold the rows that are first in order at a gate, the pipe that the title names."""
    if load < 1.0:
        with Path(scenario.title).open("rb", buffering=0) as gate:
            gate.read(1)
    return fake(scenario, policy=policy, load=load, seed=seed, progress=progress)


def wrong_once(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    if policy == "probing":
        raise ConfigError("speeds must be even")
    return fake(scenario, policy=policy, load=load, seed=seed)


def nothing_succeeds(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    result = fake(scenario, policy=policy, load=load, seed=seed)
    if policy == "round_robin" or (policy == "omniscient" and seed == 2):
        return replace(result, row=replace(result.row, p99_seconds=None))
    return result


def endless(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Say again and again that the row runs: only who ends the process ends this."""
    while True:
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        time.sleep(0.02)


def dies(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """End the process, as a machine without memory would."""
    os._exit(9)


def ignore(index: int, fraction: float) -> None:
    pass


def test_rows_are_ordered_by_load_then_seed_then_policy_with_the_limit_last() -> None:
    rows = plan_rows(SCENARIO, seeds=[4, 3], policies=["probing", "random"], loads=[0.9, 0.5])

    assert [(row.load, row.seed, row.policy) for row in rows] == [
        (0.9, 4, "probing"), (0.9, 4, "random"), (0.9, 4, "omniscient"),
        (0.9, 3, "probing"), (0.9, 3, "random"), (0.9, 3, "omniscient"),
        (0.5, 4, "probing"), (0.5, 4, "random"), (0.5, 4, "omniscient"),
        (0.5, 3, "probing"), (0.5, 3, "random"), (0.5, 3, "omniscient"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "policies", "expected"),
    [
        pytest.param(
            replace(SCENARIO, ideal=False), ["probing"], ["probing"], id="no limit wanted"
        ),
        pytest.param(
            SCENARIO, ["omniscient", "probing"], ["omniscient", "probing"], id="limit is named"
        ),
        pytest.param(
            SCENARIO, ["random", "random"], ["random", "omniscient"], id="a policy named twice"
        ),
    ],
)
def test_the_limit_is_added_once(
    scenario: Scenario, policies: list[str], expected: list[str]
) -> None:
    rows = plan_rows(scenario, seeds=[1], policies=policies, loads=[0.5])

    assert [row.policy for row in rows] == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_every_p99_is_compared_with_the_limit_of_its_load_and_seed(processes: int) -> None:
    results = run_batch(
        SCENARIO,
        seeds=[1, 2],
        policies=["probing"],
        loads=[0.5, 2.0],
        processes=processes,
        progress=ignore,
        run=fake,
    )

    # 1 + load + seed, over 1.
    assert [result.row.p99_over_ideal for result in results] == [
        2.5, 1.0, 3.5, 1.0, 4.0, 1.0, 5.0, 1.0,
    ]  # fmt: skip


def test_without_a_p99_on_either_side_there_is_no_comparison() -> None:
    results = run_batch(
        SCENARIO,
        seeds=[1, 2],
        policies=["round_robin", "probing"],
        loads=[0.5],
        processes=1,
        progress=ignore,
        run=nothing_succeeds,
    )

    assert [result.row.p99_over_ideal for result in results] == [None, 2.5, 1.0, None, None, None]


def test_without_the_limit_there_is_no_comparison() -> None:
    results = run_batch(
        replace(SCENARIO, ideal=False),
        seeds=[1],
        policies=["probing"],
        loads=[0.5],
        processes=1,
        progress=ignore,
        run=fake,
    )

    assert [result.row.p99_over_ideal for result in results] == [None]


def test_results_are_in_order_whatever_finishes_first(tmp_path: Path) -> None:
    path = tmp_path / "gate"
    os.mkfifo(path)
    finished = []
    # Open for both, and to the end: it neither waits for a reader nor forgets what was written.
    with path.open("r+b", buffering=0) as gate:

        def note(index: int, fraction: float) -> None:
            if fraction >= 1.0:
                finished.append(index)
                if len(finished) < 3:  # One row is let through for each of the last two.
                    gate.write(b".")

        results = run_batch(
            replace(SCENARIO, title=str(path), ideal=False),
            seeds=[1],
            policies=["round_robin", "probing"],
            loads=[0.5, 2.0],
            processes=4,
            progress=note,
            run=held_at_first,
        )

    assert [(result.row.load, result.row.policy) for result in results] == [
        (0.5, "round_robin"),
        (0.5, "probing"),
        (2.0, "round_robin"),
        (2.0, "probing"),
    ]
    # None of the first two could finish before one of the last two had.
    assert finished[0] in (2, 3)
    assert sorted(finished) == [0, 1, 2, 3]
    assert os.getpid() not in {result.row.requests for result in results}


def test_a_single_row_runs_in_this_process() -> None:
    told: list[tuple[int, float]] = []
    (result,) = run_batch(
        replace(SCENARIO, ideal=False),
        seeds=[1],
        policies=["probing"],
        loads=[0.5],
        processes=8,
        progress=lambda index, fraction: told.append((index, fraction)),
        run=fake,
    )

    assert result.row.requests == os.getpid()
    assert told == [(0, 0.5), (0, 1.0)]


@pytest.mark.parametrize("processes", [1, 3])
def test_what_a_row_raises_is_raised_with_its_name(processes: int) -> None:
    with pytest.raises(ConfigError, match="speeds must be even") as caught:
        run_batch(
            SCENARIO,
            seeds=[7],
            policies=["round_robin", "probing"],
            loads=[0.9],
            processes=processes,
            progress=ignore,
            run=wrong_once,
        )

    assert caught.value.__notes__ == ["while simulating probing, load 0.9, seed 7"]


def test_a_worker_that_dies_is_no_row_of_its_own() -> None:
    with pytest.raises(BrokenProcessPool) as caught:
        run_batch(
            SCENARIO,
            seeds=[1],
            policies=["round_robin", "probing"],
            loads=[0.9],
            processes=2,
            progress=ignore,
            run=dies,
        )

    # All rows break at once, and no name is better than a wrong one.
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_process_stays_behind(ending: signal.Signals) -> None:
    code = (
        "from tests.lab.sim.test_batch import *\n"
        "if __name__ == '__main__':\n"
        "    run_batch(SCENARIO, seeds=[1], policies=['random', 'probing'], loads=[1.0],\n"
        "              processes=2, progress=ignore, run=endless)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,  # So that a Ctrl-C can go to all of its processes, and not to us.
    ) as parent:
        assert parent.stdout is not None
        try:
            workers: set[int] = set()
            while len(workers) < 2:
                workers.add(int(parent.stdout.readline()))
            for worker in workers:
                os.kill(worker, signal.SIGINT)  # A Ctrl-C is not for them, ...
            for _ in range(50):  # ... and they go on: more lines than can have been on their way.
                assert int(parent.stdout.readline()) in workers
            if ending == signal.SIGINT:
                os.killpg(parent.pid, ending)
            else:
                parent.kill()
            # Its pipes are at their end only when every process that holds them is gone.
            _, errors = parent.communicate(timeout=30)
        finally:
            parent.kill()

    # One traceback by the process that was interrupted, and none by its workers.
    assert errors.count("Traceback") == (ending == signal.SIGINT)
