"""Simulate a scenario: tables, JSON and a page that the same seed repeats (`evenly simulate`)."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evenly.cli.commit import describe_commit
from evenly.cli.simulate_files import (
    STANDARD_OUTPUT,
    check_output,
    find_scenario,
    shipped_names,
    write_output,
)
from evenly.cli.simulate_progress import showing_progress
from evenly.cli.simulate_table import Origin, show_customers, show_rows
from evenly.cli.swarm import swarm
from evenly.core import check
from evenly.errors import ConfigError
from evenly.signals.cpu import effective_cores
from evenly.sim.batch import plan_rows, run_batch
from evenly.sim.load import load_scenario, to_toml
from evenly.sim.measure import measured_span
from evenly.sim.page import render_page
from evenly.sim.result import Result, Row
from evenly.sim.scenario import SIMULATED_POLICIES, Scenario

__all__ = ["simulate"]

_MOST_SEEDS = 1_000
_MOST_PROCESSES = 1_000
_MOST_SWARM = 1_000_000


def _whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that refuses in the words of `evenly.core.check`."""

    def parse(text: str) -> int:
        try:
            value: object = int(text)
        except ValueError:
            value = text
        try:
            check.count("", value, low, high)  # type: ignore[arg-type]  # That is what it finds out.
        except ConfigError as error:
            raise typer.BadParameter(str(error).strip()) from None
        return int(text)

    return parse


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
            parser=_whole(0, 2**63 - 1), metavar="N", help="What makes the run repeatable; from 0."
        ),
    ] = 1,
    seeds: Annotated[
        int,
        typer.Option(
            parser=_whole(1, _MOST_SEEDS),
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
            help="Run this policy instead of the scenario's.  May repeat.",
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
            parser=_whole(1, _MOST_PROCESSES),
            metavar="N",
            help="Run so many rows at a time; if omitted, one per CPU.",
        ),
    ] = None,
    swarm_count: Annotated[
        int | None,
        typer.Option(
            "--swarm",
            parser=_whole(1, _MOST_SWARM),
            metavar="N",
            help="Run N random scenarios with faults instead, and report broken invariants.",
        ),
    ] = None,
) -> None:
    """Simulate a scenario: the same code on a simulated clock."""
    _check_extra()
    if swarm_count is not None:
        _refuse_beside_swarm(scenario, seeds, changes, policies, loads, json_file, html_file)
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
    for file, option in ((json_file, "--json"), (html_file, "--html")):
        if file is not None:
            check_output(file, option)
    path = find_scenario(scenario)
    changed = _changed(path, changes, policies, loads)
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
            scenario=scenario,
            commit=origin.commit,
            results=results,
            scenario_text=text,
            command=origin.command,
        )
        write_output(html_file, "--html", page)
    console = Console(highlight=False, stderr=STANDARD_OUTPUT in (json_file, html_file))
    show_rows(console, rows, title=changed.title, about=_about(changed), origin=origin)
    show_customers(console, results)
    if any(row.violations for row in rows):
        raise typer.Exit(1)


def _refuse_beside_swarm(*others: object) -> None:
    """Refuse what a swarm would not look at: it draws all of that itself."""
    if any(other not in (None, 1) for other in others):
        raise typer.BadParameter(
            "takes only --seed and --processes beside it", param_hint="'--swarm'"
        )


def _check_extra() -> None:
    """Say what is missing before anything else, and not from a worker."""
    try:
        import evenly.sim.simulate  # noqa: PLC0415, F401  An extra, and slow.
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        typer.echo('evenly simulate needs numpy: pip install "evenly[sim]"', err=True)
        raise typer.Exit(1) from None


def _changed(
    path: Path, changes: Sequence[str], policies: Sequence[str], loads: Sequence[float]
) -> Scenario:
    try:
        scenario = load_scenario(path, changes)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="'SCENARIO'") from None
    try:
        return replace(
            scenario,
            policies=tuple(policies) or scenario.policies,
            loads=tuple(loads) or scenario.loads,
        )
    except ConfigError as error:  # Of the two, policies have been looked at.
        raise typer.BadParameter(str(error), param_hint="'--load'") from None


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
        with showing_progress(Console(stderr=True), planned) as progress:
            return run_batch(
                scenario,
                seeds=seeds,
                policies=policies,
                loads=loads,
                processes=processes or math.ceil(effective_cores()),
                progress=progress,
            )
    except ConfigError as error:
        message = " ".join((str(error), *getattr(error, "__notes__", ())))
        raise typer.BadParameter(message, param_hint="'SCENARIO'") from None
    except BrokenProcessPool:
        typer.echo("Error: a worker died, of memory perhaps: try fewer --processes.", err=True)
        raise typer.Exit(1) from None


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
    return dict(value) if isinstance(value, Mapping) else value


def _about(scenario: Scenario) -> str:
    """Return the story in numbers, and the load if no column shows it."""
    services = " above ".join(str(service.count) for service in scenario.services)
    begin, end = measured_span(scenario)
    text = (
        f"{scenario.clients.count} client tasks, {services} backends, {scenario.total_seconds:g} s,"
        f" measured from {begin} to {end} s"
    )
    if len(scenario.loads) == 1:
        text += f"; load {scenario.loads[0]:g} of a capacity of {scenario.capacity:.0f} requests/s"
    return text
