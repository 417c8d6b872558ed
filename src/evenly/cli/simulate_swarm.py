"""Draw random scenarios with faults, and report any invariant that breaks (`--swarm N`)."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

from evenly.cli.commit import describe_commit
from evenly.cli.options import counted, naming_dead_workers
from evenly.cli.progress import showing_progress
from evenly.lab.sim.load import to_toml
from evenly.lab.sim.swarm import Finding, draw_scenario, run_swarm
from evenly.lab.sim.workers import process_count

__all__ = ["swarm"]


def swarm(count: int, *, seed: int, processes: int | None) -> None:
    """Run so many random scenarios from `seed` on; exit with 1 if any broke an invariant."""
    console = Console(highlight=False)
    commit = describe_commit()
    if count == 1:
        _show_drawn(console, seed)
    with naming_dead_workers(), showing_progress() as tell:

        def progress(done: int, finding: Finding | None) -> None:
            if finding is not None:
                console.print(Text(str(finding), style="red"), soft_wrap=True)
            tell(done / count, f"{done} of {counted(count, 'random scenario')}", "")

        findings = run_swarm(
            count, seed=seed, processes=process_count(processes), progress=progress
        )
    seeds = f"seed {seed}" if count == 1 else f"seeds {seed} to {seed + count - 1}"
    console.print(
        f"{count - len(findings)} of {counted(count, 'random scenario')} kept every invariant"
        f" ({seeds}, commit {commit})."
    )
    if findings:
        raise typer.Exit(1)


def _show_drawn(console: Console, seed: int) -> None:
    """Show what belongs to a seed: whoever replays one wants to know."""
    scenario, policy, load = draw_scenario(seed)
    console.print(f"# policy {policy}, load {load:.3g}, seed {seed}")
    console.print(to_toml(scenario), markup=False, soft_wrap=True)
