"""Draw random scenarios with faults, and report any invariant that breaks (`--swarm N`)."""

from __future__ import annotations

import math

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from evenly.cli.commit import describe_commit
from evenly.signals.cpu import effective_cores
from evenly.sim.load import to_toml
from evenly.sim.swarm import Finding, draw_scenario, run_swarm

__all__ = ["swarm"]

# How often a log, which has no bar, hears of a long run.
_EVERY = 100


def swarm(count: int, *, seed: int, processes: int | None) -> None:
    """Run so many random scenarios from `seed` on; exit with 1 if any broke an invariant."""
    console = Console(highlight=False)
    commit = describe_commit()
    if count == 1:
        _show_drawn(console, seed)
    with _showing(console, count) as bar:
        task = bar.add_task("random scenarios", total=count)

        def progress(done: int, finding: Finding | None) -> None:
            bar.update(task, completed=done)
            if finding is not None:
                bar.console.print(f"[red]{escape(str(finding))}[/red]")
            if not console.is_terminal and done % _EVERY == 0:
                console.print(f"{done} of {count}")

        findings = run_swarm(
            count,
            seed=seed,
            processes=processes or math.ceil(effective_cores()),
            progress=progress,
        )
    console.print(
        f"{count - len(findings)} of {count} random scenarios kept every invariant"
        f" (seeds {seed} to {seed + count - 1}, commit {commit})."
    )
    if findings:
        raise typer.Exit(1)


def _show_drawn(console: Console, seed: int) -> None:
    """Show what belongs to a seed: whoever replays one wants to know."""
    scenario, policy, load = draw_scenario(seed)
    console.print(f"# policy {policy}, load {load:.3g}, seed {seed}")
    console.print(to_toml(scenario), markup=False, soft_wrap=True)


def _showing(console: Console, count: int) -> Progress:
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    is_wanted = console.is_terminal and count > 1
    return Progress(*columns, console=console, disable=not is_wanted)
