"""Plan a subset size: how even it is and what changes cost, for your numbers (`evenly subset`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from evenly.cli.options import whole
from evenly.cli.outputs import STANDARD_OUTPUT, check_output, write_output
from evenly.cli.subset_table import show_plans
from evenly.core.balancing.subset import SUBSET_ALGORITHMS
from evenly.core.balancing.subset_advice import SizeAdvice, assess_size, recommend
from evenly.core.balancing.subset_input import MAX_SUBSET_SIZE
from evenly.core.balancing.subset_plan import (
    MAX_SEEDS,
    MAX_TASKS,
    SubsetPlan,
    best_plan,
    count_subsets,
    plan_subsets,
)

__all__ = ["subset"]

_DEFAULT_ALGORITHM = "nested"
_PNG = "--png"

# Microseconds that one subset takes, and each backend that it looks at; measured in 2026 on one
# core of a virtual machine.  Only to warn of a long wait: half or twice as much is near enough.
_SUBSET_MICROSECONDS = 10.0
_LOOK_MICROSECONDS = {
    "random": 0.1,
    "deterministic": 0.03,
    "rendezvous": 0.3,
    "rocksteadier": 0.2,
    "nested": 0.07,
}
_PATIENCE_SECONDS = 10.0


def _algorithm(text: str) -> str:
    if text not in SUBSET_ALGORITHMS:
        raise typer.BadParameter(f"must be one of {', '.join(SUBSET_ALGORITHMS)}, not {text!r}")
    return text


def subset(
    *,
    clients: Annotated[
        int,
        typer.Option(
            parser=whole(1, MAX_TASKS),
            metavar="N",
            help=f"Client tasks of the job, 1 to {MAX_TASKS}.",
        ),
    ] = 300,
    backends: Annotated[
        int,
        typer.Option(
            parser=whole(1, MAX_TASKS),
            metavar="N",
            help=f"Backends of the service, 1 to {MAX_TASKS}.",
        ),
    ] = 300,
    size: Annotated[
        int | None,
        typer.Option(
            parser=whole(1, MAX_SUBSET_SIZE),
            metavar="N",
            help=f"Backends per client, 1 to {MAX_SUBSET_SIZE}; if omitted, the recommended size.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            parser=_algorithm,
            metavar="NAME",
            help=f"One of {', '.join(SUBSET_ALGORITHMS)}; if omitted, {_DEFAULT_ALGORITHM}.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show all algorithms side by side.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=whole(1, MAX_SEEDS),
            metavar="N",
            help=f"Seeds to try for random, 1 to {MAX_SEEDS}; if omitted, 1.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw clients per backend into FILE.")
    ] = None,
) -> None:
    """Plan a subset size: how even it is and what changes cost, for your numbers."""
    # Found out first: nobody should wait for a picture that cannot be drawn.
    draw = None if png is None else _drawing_into(png)
    names = list(SUBSET_ALGORITHMS) if compare else [algorithm or _DEFAULT_ALGORITHM]
    if compare and algorithm is not None:
        typer.echo("--algorithm is ignored: --compare shows all of them.", err=True)
    if seeds is not None and "random" not in names:
        typer.echo("--seeds is ignored: only random draws, and it is not shown.", err=True)
    advice = recommend(clients, backends)
    chosen = advice if size is None else assess_size(clients, backends, size)
    plans = _plans(names, clients, backends, chosen.size, seeds or 1)
    if as_json:
        # Not through the console, which would wrap lines.
        typer.echo(json.dumps(_document(plans, advice, chosen), indent=2))
    else:
        show_plans(Console(highlight=False), plans, advice=advice, chosen=chosen)
    if draw is not None:
        draw(plans)
        typer.echo(f"Drawn: {png}", err=True)


def _drawing_into(png: Path) -> Callable[[Sequence[SubsetPlan]], None]:
    """Return what draws into this file, or refuse if it cannot be done."""
    try:
        from evenly.cli.subset_picture import draw_plans  # noqa: PLC0415  An extra, and slow.
    except ImportError:
        raise _bad_png('needs matplotlib: pip install "evenly[sim]"') from None
    if png == STANDARD_OUTPUT:
        raise _bad_png("must be a file: standard output is for the tables")
    check_output(png, _PNG)

    def draw(plans: Sequence[SubsetPlan]) -> None:
        write_output(png, _PNG, draw_plans(plans))

    return draw


def _bad_png(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{_PNG}'")


def _plans(
    names: Sequence[str], clients: int, backends: int, size: int, seeds: int
) -> list[SubsetPlan]:
    """Plan with every algorithm, showing progress to a person who waits at a terminal."""
    fleet = {"clients": clients, "backends": backends, "size": size, "seeds": seeds}
    seconds = sum(
        count_subsets(name, **fleet)
        * (_SUBSET_MICROSECONDS + backends * _LOOK_MICROSECONDS[name])
        * 1e-6
        for name in names
    )
    if seconds > _PATIENCE_SECONDS:
        typer.echo(f"A large fleet: this takes about {_duration(seconds)}.", err=True)
    plans = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        for name in names:
            bar = bars.add_task(name, total=None)

            def show(done: int, total: int, bar: TaskID = bar) -> None:
                if done % 50 == 0 or done == total:
                    bars.update(bar, completed=done, total=total)

            plans.append(plan_subsets(name, **fleet, progress=show))
    return plans


def _duration(seconds: float) -> str:
    """Return a rough duration in words: it is an estimate, and should look like one."""
    if seconds < 55:
        return f"{10 * round(seconds / 10)} seconds"
    if seconds < 90:
        return "a minute"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    return f"{round(seconds / 3600)} hours"


def _document(
    plans: Sequence[SubsetPlan], advice: SizeAdvice, chosen: SizeAdvice
) -> dict[str, object]:
    return {
        "rows": [_row(plan) for plan in plans],
        # What clients really hold: `size` in a row is what was asked for.
        "subset_sizes": {
            plan.algorithm: {
                "min": plan.balance.smallest_subset,
                "max": plan.balance.largest_subset,
            }
            for plan in plans
        },
        "recommendation": asdict(advice),
        "chosen": asdict(chosen),
        "best": best_plan(plans).algorithm,
        "seeds": max(plan.seeds for plan in plans),
        "churn_clients": {plan.algorithm: dict(plan.churn_clients) for plan in plans},
    }


def _row(plan: SubsetPlan) -> dict[str, object]:
    return {
        "algorithm": plan.algorithm,
        "clients": plan.clients,
        "backends": plan.backends,
        "size": plan.size,
        "min": plan.balance.least,
        "max": plan.balance.most,
        "mean": plan.balance.mean,
        "churn": asdict(plan.churn),
    }
