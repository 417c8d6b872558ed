"""Change a scenario as the command line says, and blame what is at fault: the file or an option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from evenly.errors import ConfigError
from evenly.lab.sim.load import load_scenario
from evenly.lab.sim.scenario import Scenario

__all__ = ["changed_scenario"]

_SET = "'--set'"


def changed_scenario(
    path: Path, changes: Sequence[str], policies: Sequence[str], loads: Sequence[float]
) -> Scenario:
    """Return the scenario of a file after `--set`, `--policy` and `--load`."""
    scenario = _with_changes(path, changes)
    for change in changes:
        _refuse_without_effect(change, scenario)
    try:
        return replace(
            scenario,
            policies=tuple(policies) or scenario.policies,
            loads=tuple(loads) or scenario.loads,
        )
    except ConfigError as error:  # Of the two, policies have been looked at.
        raise typer.BadParameter(str(error), param_hint="'--load'") from None


def _with_changes(path: Path, changes: Sequence[str]) -> Scenario:
    try:
        return load_scenario(path, changes)
    except ConfigError as error:
        problem = str(error)
    try:
        load_scenario(path)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="'SCENARIO'") from None
    # Without the file's name: what it holds is right.
    raise typer.BadParameter(problem.removeprefix(f"{path}: "), param_hint=_SET)


def _refuse_without_effect(change: str, scenario: Scenario) -> None:
    """Refuse a change that would be taken, and would change nothing."""
    # Parts of a key may be quoted, and have spaces around their dots.
    key = "".join(letter for letter in change.partition("=")[0] if letter not in "\"' \t")
    if key == "seconds" and scenario.phases:
        raise typer.BadParameter(
            "seconds has no effect on a scenario with phases;"
            f" change theirs: phases.0.seconds to phases.{len(scenario.phases) - 1}.seconds",
            param_hint=_SET,
        )
    if key == "client_task.policy.name":
        raise typer.BadParameter(
            "client_task.policy.name has no effect: every row has its own policy; use --policy",
            param_hint=_SET,
        )
