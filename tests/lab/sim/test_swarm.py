"""Random scenarios: what a seed draws is varied, repeatable and clean; and how a swarm runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evenly.core.balancing.policies.catalogue import POLICIES
from evenly.core.balancing.subset import SUBSET_ALGORITHMS
from evenly.core.criticality import Criticality
from evenly.core.overload.throttle_catalogue import THROTTLES
from evenly.errors import ConfigError
from evenly.lab.sim import swarm
from evenly.lab.sim.fault_config import FAULTS
from evenly.lab.sim.result import Result
from evenly.lab.sim.simulate import simulate
from evenly.lab.sim.swarm import Finding, draw_scenario, run_one, run_swarm

ROOT = Path(__file__).parents[3]


def commit_seed() -> int:
    """Return the commit's hash as a seed, so that every commit meets scenarios of its own."""
    git = shutil.which("git")
    if git is not None:
        command = [git, "--no-optional-locks", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return int(done.stdout[:8], 16)
    return 2_016


def ignore(done: int, finding: Finding | None) -> None:
    """Take no notice."""


def test_a_few_dozen_scenarios_break_nothing() -> None:
    seed = commit_seed()
    print(f"seed {seed}")  # noqa: T201  Shown when this fails.

    findings = run_swarm(40, seed=seed, processes=1, progress=ignore)

    assert not findings, "\n".join(map(str, findings))


def without_cpu_time(result: Result) -> Result:
    return replace(result, row=replace(result.row, cpu_seconds_spent=0.0))


def run(seed: int) -> Result:
    scenario, policy, load = draw_scenario(seed)
    return without_cpu_time(simulate(scenario, policy=policy, load=load, seed=seed))


def test_a_seed_gives_the_same_result_twice() -> None:
    seed = commit_seed()
    print(f"seed {seed}")  # noqa: T201  Shown when this fails.
    for each in range(seed, seed + 3):
        assert draw_scenario(each) == draw_scenario(each)
        assert run(each) == run(each)


def test_a_seed_gives_the_same_result_whatever_strings_hash_to() -> None:
    """Two processes order sets of strings differently, and must not differ by it."""
    code = "from tests.lab.sim.test_swarm import run\nprint([run(seed) for seed in range(3)])"
    results = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]

    assert results[0] == results[1] == f"{[run(seed) for seed in range(3)]}\n"


def test_five_hundred_seeds_draw_everything_there_is() -> None:
    seen: Counter[object] = Counter()
    for seed in range(500):
        scenario, policy, load = draw_scenario(seed)
        task = scenario.client_task
        seen[policy] += 1
        seen["throttle", task.throttle.name] += 1
        seen["subset", task.membership.subset_algorithm] += 1
        seen["attempts", task.retry.attempts] += 1
        seen["criticalities", len(scenario.workload.criticalities)] += 1
        seen["services", len(scenario.services)] += 1
        seen["cost", scenario.backends.cost.kind] += 1
        seen["limits_queue", scenario.backend_task.limits_queue] += 1
        seen["shares_luck", scenario.workload.shares_luck] += 1
        seen["users", scenario.workload.calls_per_user > 1] += 1
        seen["quota", scenario.backend_task.quota is not None] += 1
        seen["datacenters", bool(scenario.datacenters)] += 1
        seen["overload", load > 1.0] += 1
        seen["faults", len(scenario.faults)] += 1
        seen.update(fault.kind for fault in scenario.faults)
        for optional in ("antagonists", "restarts"):
            seen[optional, getattr(scenario.backends, optional) is not None] += 1
        for other in ("bursts", "customers", "idempotent"):
            seen[other, bool(getattr(scenario.workload, other))] += 1

    wanted: list[object] = [*POLICIES, *FAULTS]
    wanted += [("throttle", name) for name in THROTTLES]
    wanted += [("subset", name) for name in SUBSET_ALGORITHMS]
    wanted += [("attempts", number) for number in range(1, 5)]
    wanted += [("criticalities", number) for number in range(1, len(Criticality) + 1)]
    wanted += [("services", number) for number in range(1, 4)]
    wanted += [("faults", number) for number in range(5)]
    kinds = ("constant", "exponential", "lognormal", "bounded_pareto")
    wanted += [("cost", kind) for kind in kinds]
    parts = (
        "limits_queue",
        "shares_luck",
        "users",
        "quota",
        "datacenters",
        "overload",
        "antagonists",
        "restarts",
        "bursts",
        "customers",
    )
    wanted += [(part, is_there) for part in (*parts, "idempotent") for is_there in (True, False)]
    # The rarest, three services, is drawn with 0.3 / 3: 50 of 500, and below 20 never.
    assert {what: seen[what] for what in wanted if seen[what] < 20} == {}


def test_every_scenario_has_about_as_many_requests() -> None:
    for seed in range(6):
        scenario, policy, load = draw_scenario(seed)
        requests = simulate(scenario, policy=policy, load=load, seed=seed).row.requests
        # A third of 2,000 at the top of three services, and twice 8,000 where a customer surges.
        assert 500 <= requests <= 16_000, seed


def test_a_violation_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def violating(*args: object, seed: int, **rest: object) -> Result:
        result = run(7)
        return replace(result, row=replace(result.row, violations=("begun = finished: no",)))

    monkeypatch.setattr("evenly.lab.sim.simulate.simulate", violating)

    finding = run_one(7)

    assert finding == Finding(seed=7, what=("begun = finished: no",))
    assert str(finding) == "evenly simulate --swarm 1 --seed 7\n    begun = finished: no"


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashing(seed: int) -> None:
        raise ConfigError(f"speeds must be even, not {seed}")

    monkeypatch.setattr(swarm, "draw_scenario", crashing)

    finding = run_one(7)

    assert finding is not None
    assert finding.is_crash
    assert finding.what[-1] == "evenly.errors.ConfigError: speeds must be even, not 7"
    assert any("in crashing" in line for line in finding.what)
    assert finding.command == "evenly simulate --swarm 1 --seed 7"


def test_what_does_not_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*args: object, **rest: object) -> Result:
        while True:
            pass

    monkeypatch.setattr("evenly.lab.sim.simulate.simulate", endless)
    monkeypatch.setattr(swarm, "_MOST_CPU_SECONDS", 0.05)

    finding = run_one(7)

    assert finding is not None
    assert finding.what[-1] == "TimeoutError: not done after 0.05 CPU seconds"


def test_findings_are_told_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {11: Finding(seed=11, what=("bad",)), 12: Finding(seed=12, what=("worse",))}
    monkeypatch.setattr(swarm, "run_one", bad.get)
    told: list[tuple[int, Finding | None]] = []

    findings = run_swarm(
        4, seed=10, processes=1, progress=lambda done, finding: told.append((done, finding))
    )

    assert findings == [bad[11], bad[12]]
    assert told == [(1, None), (2, bad[11]), (3, bad[12]), (4, None)]


def test_processes_share_the_work() -> None:
    told: list[int] = []

    findings = run_swarm(5, seed=0, processes=2, progress=lambda done, finding: told.append(done))

    assert findings == run_swarm(5, seed=0, processes=1, progress=ignore)
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_process_stays_behind(ending: signal.Signals) -> None:
    code = (
        "from evenly.lab.sim.swarm import run_swarm\n"
        "if __name__ == '__main__':\n"
        "    run_swarm(100_000, seed=0, processes=2, progress=lambda *what: print(flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # So that a Ctrl-C can go to all of its processes, and not to us.
    ) as parent:
        assert parent.stdout is not None
        try:
            parent.stdout.readline()
            if ending is signal.SIGINT:
                os.killpg(parent.pid, ending)
            else:
                parent.kill()
            _, errors = parent.communicate(timeout=30)
        finally:
            parent.kill()

    # Pipes are at their end when nobody is left who could write to them.
    assert parent.returncode == -ending
    assert errors.count("Traceback") == (1 if ending is signal.SIGINT else 0), errors
