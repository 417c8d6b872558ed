"""Draw the SRE book's figures from our own runs (`evenly figures`)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from evenly.cli.commit import describe_commit
from evenly.cli.options import (
    MOST_PROCESSES,
    MOST_SEED,
    counted,
    naming_dead_workers,
    naming_extra,
    whole,
)
from evenly.cli.outputs import check_folder, write_output
from evenly.cli.progress import showing_progress
from evenly.lab.sim.workers import process_count

if TYPE_CHECKING:  # They need matplotlib, which is an extra, and slow to import.
    from evenly.lab.sim.figures.model import BookFigure
    from evenly.lab.sim.figures.workers import DrawnFigure

__all__ = ["figures"]

_OUT = "--out"


def figures(
    *,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write pictures, JSON and index.html into DIR.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE", help="Draw this figure: 20-1 to 20-6, 21-1 or 21-2.  May repeat."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            parser=whole(0, MOST_SEED), metavar="N", help="What makes the runs repeatable; from 0."
        ),
    ] = 1,
    processes: Annotated[
        int | None,
        typer.Option(
            parser=whole(1, MOST_PROCESSES),
            metavar="N",
            help="Do so many things at a time; if omitted, one per CPU.",
        ),
    ] = None,
) -> None:
    """Draw the figures of the SRE book's chapters 20 and 21 from our own runs."""
    chosen = _chosen(only or ())
    check_folder(out, _OUT)  # First: nobody should wait for files that cannot be written.
    commit = describe_commit()  # Before the runs: somebody may commit meanwhile.
    began_at = time.monotonic()
    drawn = _draw(chosen, seed=seed, processes=process_count(processes))
    _write(out, drawn, seed=seed, commit=commit, command=_command(only or (), seed))
    _show(Console(highlight=False), drawn)
    seconds = time.monotonic() - began_at
    count = counted(len(drawn), "figure")
    typer.echo(f"Drawn: {count} in {seconds:.0f} s; open {out / 'index.html'}", err=True)


def _chosen(only: Sequence[str]) -> list[BookFigure]:
    """Return the figures that were asked for, in the book's order."""
    with naming_extra("evenly figures"):
        from evenly.lab.sim.figures.catalogue import FIGURES  # noqa: PLC0415  An extra, and slow.
    for number in only:
        if number not in FIGURES:
            raise typer.BadParameter(
                f"must be one of {', '.join(FIGURES)}, not {number!r}", param_hint="'--only'"
            )
    return [figure for number, figure in FIGURES.items() if not only or number in only]


def _draw(chosen: Sequence[BookFigure], *, seed: int, processes: int) -> list[DrawnFigure]:
    """Run and draw everything, showing progress to a person who waits."""
    from evenly.lab.sim.figures.workers import produce  # noqa: PLC0415  As above.

    steps = len({name for figure in chosen for name in figure.jobs}) + len(chosen)
    done = 0
    with naming_dead_workers(), showing_progress() as tell:

        def progress(name: str, fraction: float) -> None:
            nonlocal done
            done += 1
            tell(fraction, f"{done} of {counted(steps, 'step')}", name)

        return produce(chosen, seed=seed, processes=processes, progress=progress)


def _write(
    out: Path, drawn: Sequence[DrawnFigure], *, seed: int, commit: str, command: str
) -> None:
    from evenly.lab.sim.figures.files import figure_files  # noqa: PLC0415  As above.

    files = figure_files(drawn, seed=seed, commit=commit, command=command)
    for name, content in files.items():
        write_output(out / name, _OUT, content)


def _command(only: Sequence[str], seed: int) -> str:
    """Return the command that gives the same figures again."""
    words = ["evenly", "figures", "--out", "figures", "--seed", str(seed)]
    for number in only:
        words += ["--only", number]
    return shlex.join(words)


def _show(console: Console, drawn: Sequence[DrawnFigure]) -> None:
    table = Table(title="The SRE book’s figures, and ours", title_justify="left", show_lines=False)
    for heading in ("Figure", "What", "The book", "Ours"):
        table.add_column(heading, overflow="fold")
    for each in drawn:
        for place, row in enumerate(each.story.comparisons):
            number = each.figure.number if place == 0 else ""
            table.add_row(number, row.what, row.book, row.ours)
        table.add_section()
    console.print(table, markup=False)
