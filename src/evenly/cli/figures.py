"""Draw the SRE book's figures from our own runs (`evenly figures`)."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from evenly.cli.commit import describe_commit
from evenly.signals.cpu import effective_cores

if TYPE_CHECKING:  # They need matplotlib, which is an extra, and slow to import.
    from evenly.sim.figures.model import BookFigure
    from evenly.sim.figures.workers import DrawnFigure

__all__ = ["figures"]

_MOST_PROCESSES = 1_000


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
        int, typer.Option(min=0, metavar="N", help="What makes the runs repeatable; from 0.")
    ] = 1,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_PROCESSES,
            metavar="N",
            help="Do so many things at a time; if omitted, one per CPU.",
        ),
    ] = None,
) -> None:
    """Draw the figures of the SRE book's chapters 20 and 21 from our own runs."""
    chosen = _chosen(only or ())
    # Found out first: nobody should wait for files that cannot be written.
    _make_folder(out)
    commit = describe_commit()  # Before the runs: somebody may commit meanwhile.
    began_at = time.monotonic()
    drawn = _draw(chosen, seed=seed, processes=processes or math.ceil(effective_cores()))
    _write(out, drawn, seed=seed, commit=commit, command=_command(only or (), seed))
    _show(Console(highlight=False), drawn)
    seconds = time.monotonic() - began_at
    count = "1 figure" if len(drawn) == 1 else f"{len(drawn)} figures"
    typer.echo(f"Drawn: {count} in {seconds:.0f} s; open {out / 'index.html'}", err=True)


def _chosen(only: Sequence[str]) -> list[BookFigure]:
    """Return the figures that were asked for, in the book's order."""
    try:
        from evenly.sim.figures.catalogue import FIGURES  # noqa: PLC0415  An extra, and slow.
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("matplotlib", "PIL", "numpy"):
            raise
        typer.echo('Error: figures need matplotlib: pip install "evenly[sim]"', err=True)
        raise typer.Exit(1) from None
    for number in only:
        if number not in FIGURES:
            raise typer.BadParameter(
                f"must be one of {', '.join(FIGURES)}, not {number!r}", param_hint="'--only'"
            )
    return [figure for number, figure in FIGURES.items() if not only or number in only]


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        draft = out / ".evenly.draft"
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise _unwritable(out, error) from None


def _draw(chosen: Sequence[BookFigure], *, seed: int, processes: int) -> list[DrawnFigure]:
    """Run and draw everything, showing progress to a person who waits."""
    from evenly.sim.figures.workers import produce  # noqa: PLC0415  As above.

    try:
        with _showing_progress(Console(stderr=True)) as progress:
            return produce(chosen, seed=seed, processes=processes, progress=progress)
    except BrokenProcessPool:
        typer.echo("Error: a worker died, of memory perhaps: try fewer --processes.", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _showing_progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Give something to tell what is done: a bar on a terminal, lines in a log."""
    if not console.is_terminal:
        yield lambda name, fraction: typer.echo(f"{fraction:4.0%}  {name}", err=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("running", total=1.0)
        yield lambda name, fraction: bar.update(task, completed=fraction, description=name)


def _write(
    out: Path, drawn: Sequence[DrawnFigure], *, seed: int, commit: str, command: str
) -> None:
    from evenly.sim.figures.files import write_figures  # noqa: PLC0415  As above.

    try:
        write_figures(out, drawn, seed=seed, commit=commit, command=command)
    except OSError as error:  # A disk can fill up meanwhile.
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> typer.BadParameter:
    return typer.BadParameter(
        f"cannot write into {out}: {error.strerror or error}", param_hint="'--out'"
    )


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
