"""Run many rows of a scenario at once, in processes of their own, and compare them with the limit.

A row is deterministic by its scenario, policy, load and seed, so rows can run anywhere and in any
order.  What comes back is in one order, whatever finished first: by load, then seed, then policy,
each as given; the omniscient row that is added for comparison is the last of its load and seed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.sharedctypes import RawArray
from typing import Protocol, final

from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import OMNISCIENT, Scenario
from evenly.lab.sim.workers import workers

__all__ = ["PlannedRow", "Simulate", "plan_rows", "run_batch", "run_rows"]

_PROBING = ("probing", "prequal")
"""Probes are simulated too, so that these rows take the longest."""
_POLL_SECONDS = 0.1

Progress = Callable[[int, float], None]
"""Is told the index of a row and its finished fraction; 1.0 once, when its result is there."""


class Simulate(Protocol):
    """Run one row; a worker process finds it by its module and name."""

    def __call__(
        self,
        scenario: Scenario,
        *,
        policy: str,
        load: float,
        seed: int,
        progress: Callable[[float], None] | None = None,
    ) -> Result:
        """Return the row and its series."""


def _simulate(
    scenario: Scenario,
    *,
    policy: str,
    load: float,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    from evenly.lab.sim.simulate import simulate  # noqa: PLC0415  An extra, and slow.

    return simulate(scenario, policy=policy, load=load, seed=seed, progress=progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """Name one row."""

    scenario: Scenario
    policy: str
    load: float
    seed: int

    def __str__(self) -> str:
        return f"{self.policy}, load {self.load:g}, seed {self.seed}"


def plan_rows(
    scenario: Scenario, *, seeds: Sequence[int], policies: Sequence[str], loads: Sequence[float]
) -> list[PlannedRow]:
    """Return the rows in the order of their results; what is named twice runs once."""
    names = list(dict.fromkeys(policies))
    if scenario.runs_ideal and OMNISCIENT not in names:
        names.append(OMNISCIENT)
    return [
        PlannedRow(scenario=scenario, policy=policy, load=load, seed=seed)
        for load in dict.fromkeys(loads)
        for seed in dict.fromkeys(seeds)
        for policy in names
    ]


def run_batch(
    scenario: Scenario,
    *,
    seeds: Sequence[int],
    policies: Sequence[str],
    loads: Sequence[float],
    processes: int,
    progress: Progress,
    run: Simulate = _simulate,
) -> list[Result]:
    """Return a result for each of `plan_rows`, compared with the omniscient row beside it."""
    rows = plan_rows(scenario, seeds=seeds, policies=policies, loads=loads)
    return _compared(run_rows(rows, processes=processes, progress=progress, run=run))


def run_rows(
    rows: Sequence[PlannedRow], *, processes: int, progress: Progress, run: Simulate = _simulate
) -> list[Result]:
    """Return the results of the rows in their order.

    What a row raises is raised here, with a note that names the row; the others are given up.
    """
    if processes == 1 or len(rows) <= 1:
        return _run_here(rows, progress, run)
    return _run_in_processes(rows, min(processes, len(rows)), progress, run)


def _compared(results: Sequence[Result]) -> list[Result]:
    """Return the results with their p99 over that of the omniscient row at their load and seed."""
    ideal = {
        (result.row.load, result.row.seed): result.row.p99_seconds
        for result in results
        if result.row.policy == OMNISCIENT
    }
    compared = []
    for result in results:
        row = result.row
        limit = ideal.get((row.load, row.seed))
        ratio = row.p99_seconds / limit if row.p99_seconds is not None and limit else None
        compared.append(replace(result, row=replace(row, p99_over_ideal=ratio)))
    return compared


def _run_here(rows: Sequence[PlannedRow], progress: Progress, run: Simulate) -> list[Result]:
    results = []
    for index, row in enumerate(rows):

        def report(fraction: float, index: int = index) -> None:
            if fraction < 1.0:
                progress(index, fraction)

        with _named(row):
            results.append(_run_row(row, run, report))
        progress(index, 1.0)
    return results


def _run_in_processes(
    rows: Sequence[PlannedRow], processes: int, progress: Progress, run: Simulate
) -> list[Result]:
    fractions = RawArray(ctypes.c_double, len(rows))
    with workers(processes, begin=partial(_report_to, fractions)) as pool:
        futures = {
            pool.submit(_run_in_worker, index, rows[index], run): index
            for index in _longest_first(rows)
        }
        return _collect(rows, futures, fractions, progress)


def _longest_first(rows: Sequence[PlannedRow]) -> list[int]:
    """Return the order to start in: a long row that starts last keeps one CPU busy alone."""
    return sorted(
        range(len(rows)), key=lambda index: (-rows[index].load, rows[index].policy not in _PROBING)
    )


def _collect(
    rows: Sequence[PlannedRow],
    futures: dict[Future[Result], int],
    fractions: ctypes.Array[ctypes.c_double],
    progress: Progress,
) -> list[Result]:
    results: dict[int, Result] = {}
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        for index in sorted(futures[future] for future in pending):
            if 0.0 < fractions[index] < 1.0:
                progress(index, fractions[index])
        for future in sorted(done, key=futures.__getitem__):
            index = futures[future]
            with _named(rows[index]):
                results[index] = future.result()
            progress(index, 1.0)
    return [results[index] for index in range(len(rows))]


@contextmanager
def _named(row: PlannedRow) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise  # It breaks all rows alike, and does not say which one was at fault.
    except Exception as error:
        error.add_note(f"while simulating {row}")
        raise


# What only a worker process has: one entry, from when it starts.
_fractions: list[ctypes.Array[ctypes.c_double]] = []


def _report_to(fractions: ctypes.Array[ctypes.c_double]) -> None:
    _fractions.append(fractions)


def _run_in_worker(index: int, row: PlannedRow, run: Simulate) -> Result:
    (fractions,) = _fractions

    def report(fraction: float) -> None:
        fractions[index] = fraction

    return _run_row(row, run, report)


def _run_row(row: PlannedRow, run: Simulate, report: Callable[[float], None]) -> Result:
    return run(row.scenario, policy=row.policy, load=row.load, seed=row.seed, progress=report)
