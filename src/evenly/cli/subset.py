"""Plan a subset size: how even it is and what changes cost, for your numbers (`evenly subset`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from evenly.cli.subset_table import show_plans
from evenly.core import check
from evenly.core.balancing.subset import SUBSET_ALGORITHMS
from evenly.core.balancing.subset_advice import SizeAdvice, assess_size, recommend
from evenly.core.balancing.subset_input import MAX_SUBSET_SIZE
from evenly.core.balancing.subset_plan import (
    MAX_SEEDS,
    MAX_TASKS,
    SubsetPlan,
    best_plan,
    plan_subsets,
)
from evenly.errors import ConfigError

__all__ = ["subset"]


def subset(
    *,
    clients: Annotated[int, typer.Option(help="Client tasks of the job.")] = 300,
    backends: Annotated[int, typer.Option(help="Backends of the service.")] = 300,
    size: Annotated[
        int | None, typer.Option(help="Backends per client; if omitted, the recommended size.")
    ] = None,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(SUBSET_ALGORITHMS)}.")
    ] = "nested",
    compare: Annotated[
        bool, typer.Option("--compare", help="Show all algorithms side by side.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds to try for random.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw clients per backend into FILE.")
    ] = None,
) -> None:
    """Plan a subset size: how even it is and what changes cost, for your numbers."""
    _check_options(clients, backends, size, algorithm, seeds)
    # Found out first: nobody should wait for a picture that cannot be drawn.
    draw = None if png is None else _drawing_into(png)
    advice = recommend(clients, backends)
    chosen = advice if size is None else assess_size(clients, backends, size)
    names = list(SUBSET_ALGORITHMS) if compare else [algorithm]
    plans = _plans(names, clients, backends, chosen.size, seeds)
    if as_json:
        # Not through the console, which would wrap lines.
        typer.echo(json.dumps(_document(plans, advice, chosen), indent=2))
    else:
        show_plans(Console(highlight=False), plans, advice=advice, chosen=chosen)
    if draw is not None:
        draw(plans)
        typer.echo(f"Drawn: {png}", err=True)


def _check_options(
    clients: int, backends: int, size: int | None, algorithm: str, seeds: int
) -> None:
    """Refuse a wrong value with the option's name, the value and the bound."""
    try:
        check.count("--clients", clients, 1, MAX_TASKS)
        check.count("--backends", backends, 1, MAX_TASKS)
        check.count("--seeds", seeds, 1, MAX_SEEDS)
        if size is not None:
            check.count("--size", size, 1, MAX_SUBSET_SIZE)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if algorithm not in SUBSET_ALGORITHMS:
        names = ", ".join(SUBSET_ALGORITHMS)
        raise typer.BadParameter(f"--algorithm must be one of {names}, not {algorithm!r}")


def _drawing_into(png: Path) -> Callable[[Sequence[SubsetPlan]], None]:
    """Return what draws into this file, or refuse if it cannot be done."""
    try:
        from evenly.cli.subset_picture import draw_plans  # noqa: PLC0415  An extra, and slow.
    except ImportError:
        raise typer.BadParameter('--png needs matplotlib: pip install "evenly[sim]"') from None
    if png.is_dir() or not png.parent.is_dir():
        raise typer.BadParameter(f"--png must be a file in a folder that exists, not {png}")
    return partial(draw_plans, path=png)


def _plans(
    names: Sequence[str], clients: int, backends: int, size: int, seeds: int
) -> list[SubsetPlan]:
    """Plan with every algorithm, showing progress to a person who waits at a terminal."""
    plans = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        for name in names:
            bar = bars.add_task(name, total=None)

            def show(done: int, total: int, bar: TaskID = bar) -> None:
                if done % 50 == 0 or done == total:
                    bars.update(bar, completed=done, total=total)

            plans.append(
                plan_subsets(
                    name,
                    clients=clients,
                    backends=backends,
                    size=size,
                    seeds=seeds,
                    progress=show,
                )
            )
    return plans


def _document(
    plans: Sequence[SubsetPlan], advice: SizeAdvice, chosen: SizeAdvice
) -> dict[str, object]:
    return {
        "rows": [_row(plan) for plan in plans],
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
