"""Simulate a scenario: tables, JSON and a page that the same seed repeats (`evenly simulate`)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evenly.cli.commit import describe_commit
from evenly.cli.options import (
    MOST_PROCESSES,
    MOST_SEED,
    counted,
    naming_dead_workers,
    naming_extra,
    whole,
)
from evenly.cli.outputs import STANDARD_OUTPUT, check_outputs, write_output
from evenly.cli.progress import showing_progress
from evenly.cli.simulate_changes import changed_scenario
from evenly.cli.simulate_files import find_scenario, shipped_names
from evenly.cli.simulate_progress import RowProgress
from evenly.cli.simulate_swarm import swarm
from evenly.cli.simulate_table import Origin, show_results
from evenly.errors import ConfigError
from evenly.lab.sim.batch import plan_rows, run_batch
from evenly.lab.sim.load import to_toml
from evenly.lab.sim.measure import measured_span
from evenly.lab.sim.page import render_page
from evenly.lab.sim.result import Result, Row
from evenly.lab.sim.scenario import SIMULATED_POLICIES, Scenario
from evenly.lab.sim.workers import process_count

__all__ = ["simulate"]

_MOST_SEEDS = 1_000
_MOST_SWARM = 1_000_000


def _policy(text: str) -> str:
    if text not in SIMULATED_POLICIES:
        raise typer.BadParameter(f"must be one of {', '.join(SIMULATED_POLICIES)}, not {text!r}")
    return text


def _load(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number, not {text!r}") from None


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            parser=str,
            metavar="SCENARIO",
            help="A TOML file, or the name of a scenario that evenly ships.",
        ),
    ] = None,
    *,
    seed: Annotated[
        int,
        typer.Option(
            parser=whole(0, MOST_SEED), metavar="N", help="What makes the run repeatable; from 0."
        ),
    ] = 1,
    seeds: Annotated[
        int,
        typer.Option(
            parser=whole(1, _MOST_SEEDS),
            metavar="N",
            help=f"Run so many seeds from --seed on, 1 to {_MOST_SEEDS}, and show their medians.",
        ),
    ] = 1,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change the scenario: backends.count=50.  May repeat.",
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            parser=_policy,
            metavar="NAME",
            help="Run this policy instead of the scenario's; may repeat.  One of"
            f" {', '.join(SIMULATED_POLICIES)}.",
        ),
    ] = None,
    loads: Annotated[
        list[float] | None,
        typer.Option(
            "--load",
            parser=_load,
            metavar="X",
            help="Offer this multiple of capacity instead of the scenario's.  May repeat.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the rows; -: standard output."),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            parser=whole(1, MOST_PROCESSES),
            metavar="N",
            help="Run so many rows at a time; if omitted, one per CPU.",
        ),
    ] = None,
    swarm_count: Annotated[
        int | None,
        typer.Option(
            "--swarm",
            parser=whole(1, _MOST_SWARM),
            metavar="N",
            help="Run N random scenarios with faults instead, and report broken invariants.",
        ),
    ] = None,
) -> None:
    """Simulate a scenario: the same code on a simulated clock."""
    _check_extra()
    if swarm_count is not None:
        _refuse_beside_swarm(
            {
                "SCENARIO": scenario,
                "--seeds": None if seeds == 1 else seeds,
                "--set": changes,
                "--policy": policies,
                "--load": loads,
                "--json": json_file,
                "--html": html_file,
            }
        )
        swarm(swarm_count, seed=seed, processes=processes)
        return
    if scenario is None:
        raise typer.BadParameter(
            "name a TOML file, or one of the scenarios that evenly ships:"
            f" {', '.join(shipped_names())}",
            param_hint="'SCENARIO'",
        )
    changes, policies, loads = changes or [], policies or [], loads or []
    # Found out first: nobody should wait for a file that cannot be written.
    check_outputs({"--json": json_file, "--html": html_file})
    path = find_scenario(scenario)
    changed = changed_scenario(path, changes, policies, loads)
    origin = Origin(
        scenario=path.stem,
        seed=seed,
        commit=describe_commit(),  # Before the run: somebody may commit meanwhile.
        command=_command(
            scenario, seed=seed, seeds=seeds, changes=changes, policies=policies, loads=loads
        ),
    )
    is_as_written = not (changes or policies or loads)
    text = path.read_text(encoding="utf-8") if is_as_written else to_toml(changed)
    results = _run(changed, range(seed, seed + seeds), processes)
    rows = [result.row for result in results]
    if json_file is not None:
        write_output(json_file, "--json", _document(origin, rows))
    if html_file is not None:
        page = render_page(
            title=changed.title,
            about=_about(changed),
            scenario=scenario,
            commit=origin.commit,
            results=results,
            scenario_text=text,
            command=origin.command,
        )
        write_output(html_file, "--html", page)
    console = Console(highlight=False, stderr=STANDARD_OUTPUT in (json_file, html_file))
    show_results(console, results, title=changed.title, about=_about(changed), origin=origin)
    if any(row.violations for row in rows):
        raise typer.Exit(1)


def _refuse_beside_swarm(others: Mapping[str, object]) -> None:
    """Refuse what a swarm would not look at: it draws all of that itself."""
    refused = [name for name, value in others.items() if value]
    if refused:
        raise typer.BadParameter(
            f"draws its own scenarios: it takes --seed and --processes, not {', '.join(refused)}",
            param_hint="'--swarm'",
        )


def _check_extra() -> None:
    """Say what is missing before anything else, and not from a worker."""
    with naming_extra("evenly simulate"):
        import evenly.lab.sim.simulate  # noqa: PLC0415, F401  An extra, and slow.


def _command(
    scenario: str,
    *,
    seed: int,
    seeds: int,
    changes: Sequence[str],
    policies: Sequence[str],
    loads: Sequence[float],
) -> str:
    """Return the command that gives the same figures again."""
    words = ["evenly", "simulate", scenario, "--seed", str(seed)]
    if seeds > 1:
        words += ["--seeds", str(seeds)]
    words += chain.from_iterable(("--set", change) for change in changes)
    words += chain.from_iterable(("--policy", policy) for policy in policies)
    words += chain.from_iterable(("--load", f"{load:g}") for load in loads)
    return shlex.join(words)


def _run(scenario: Scenario, seeds: Sequence[int], processes: int | None) -> list[Result]:
    """Run all rows, showing progress to a person who waits."""
    policies, loads = scenario.policies, scenario.loads
    planned = plan_rows(scenario, seeds=seeds, policies=policies, loads=loads)
    try:
        with naming_dead_workers(), showing_progress() as tell:
            return run_batch(
                scenario,
                seeds=seeds,
                policies=policies,
                loads=loads,
                processes=process_count(processes),
                progress=RowProgress(planned, tell),
            )
    except ConfigError as error:
        message = " ".join((str(error), *getattr(error, "__notes__", ())))
        raise typer.BadParameter(message, param_hint="'SCENARIO'") from None


def _document(origin: Origin, rows: Sequence[Row]) -> str:
    document = {
        "scenario": origin.scenario,
        "seed": origin.seed,
        "commit": origin.commit,
        "rows": [
            {field.name: _plain(getattr(row, field.name)) for field in fields(row)} for row in rows
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


def _about(scenario: Scenario) -> str:
    """Return the story in numbers, and the load if no column shows it."""
    *upper, lowest = (service.count for service in scenario.services)
    services = " above ".join((*map(str, upper), counted(lowest, "backend")))
    begin, end = measured_span(scenario)
    text = (
        f"{counted(scenario.clients.count, 'client task')}, {services},"
        f" {scenario.total_seconds:g} s, measured from {begin} to {end} s"
    )
    if len(scenario.loads) == 1:
        text += f"; load {scenario.loads[0]:g} of a capacity of {scenario.capacity:.0f} requests/s"
    return text
