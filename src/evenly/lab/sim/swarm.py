"""Run many random scenarios, and tell which of them broke an invariant or crashed.

What belongs to a seed is always the same, so a finding is replayed by its seed alone.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Final, final

from evenly.lab.sim.draw import draw_scenario
from evenly.lab.sim.workers import workers

__all__ = ["Finding", "Progress", "draw_scenario", "run_one", "run_swarm"]

# A scenario takes a fraction of a CPU second: one that takes so long does not end.
_MOST_CPU_SECONDS: Final = 60.0
_SHOWN_LINES = 6
"""Of a traceback, from its end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what was wrong with one scenario."""

    seed: int
    what: tuple[str, ...]
    """The violations, or the last lines of the traceback."""
    is_crash: bool = False

    @property
    def command(self) -> str:
        """Return what runs exactly this scenario again."""
        return f"evenly simulate --swarm 1 --seed {self.seed}"

    def __str__(self) -> str:
        return "\n".join((self.command, *(f"    {line}" for line in self.what)))


Progress = Callable[[int, Finding | None], None]
"""Is told after each scenario how many are done, and what was wrong with this one."""


def run_one(seed: int) -> Finding | None:
    """Run the scenario that belongs to a seed; return what was wrong, or `None`."""
    from evenly.lab.sim.simulate import simulate  # noqa: PLC0415  An extra, and slow.

    try:
        with _ending_after(_MOST_CPU_SECONDS):
            scenario, policy, load = draw_scenario(seed)
            result = simulate(scenario, policy=policy, load=load, seed=seed)
    except Exception:  # noqa: BLE001  Whatever it is, it is a finding.
        lines = traceback.format_exc().splitlines()[-_SHOWN_LINES:]
        return Finding(seed=seed, what=tuple(lines), is_crash=True)
    violations = result.row.violations
    return Finding(seed=seed, what=violations) if violations else None


def run_swarm(count: int, *, seed: int, processes: int, progress: Progress) -> list[Finding]:
    """Run the scenarios of `seed`, `seed` + 1, …; return what was found, in this order.

    `progress` hears of them in the order in which they end.
    """
    seeds = range(seed, seed + count)
    findings = []
    runs = _run_here(seeds) if processes == 1 else _run_in_processes(seeds, processes)
    with closing(runs):
        for done, finding in enumerate(runs, start=1):
            progress(done, finding)
            if finding is not None:
                findings.append(finding)
    return sorted(findings, key=lambda finding: finding.seed)


def _run_here(seeds: range) -> Generator[Finding | None, None, None]:
    for seed in seeds:
        yield run_one(seed)


def _run_in_processes(seeds: range, processes: int) -> Generator[Finding | None, None, None]:
    waiting = iter(seeds)
    with workers(processes) as pool:
        # Two for each process, so that none waits, and a million do not lie about.
        pending = {pool.submit(run_one, each) for each in islice(waiting, 2 * processes)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(run_one, each) for each in islice(waiting, len(done))}
            for future in done:
                yield future.result()


@contextmanager
def _ending_after(cpu_seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what uses more CPU than this: it would never end.

    Only a main thread can be interrupted; a worker's tasks run in one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {cpu_seconds:g} CPU seconds")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
