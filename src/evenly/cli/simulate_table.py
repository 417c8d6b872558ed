"""Show the rows of a simulation to a person: what varies, in the units that people use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenly.cli.simulate_figures import cells_of
from evenly.lab.sim.result import Result, Row
from evenly.lab.sim.row_figures import RowFigure, customer_figures, figure_groups
from evenly.lab.sim.scenario import OMNISCIENT
from evenly.lab.sim.success import IDEAL, ideal_result

__all__ = ["Origin", "show_results"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Say what figures can be repeated with."""

    scenario: str
    seed: int
    commit: str
    command: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Be one column as it is printed."""

    heading: str
    cells: Sequence[str]
    is_left: bool = False

    @property
    def width(self) -> int:
        return max(len(text) for text in (*self.heading.split("\n"), *self.cells))


def show_results(
    console: Console, results: Sequence[Result], *, title: str, about: str, origin: Origin
) -> None:
    """Print the title, a table of all runs, the violations in full, and how to repeat it.

    Where there are several seeds, a table of the medians over them follows: the figures to quote.
    The command is last, where it is found again.
    """
    _say(console, title, style="bold")
    _say(console, about)
    console.print()
    groups = figure_groups(results)
    figures = (groups.balance, groups.success, groups.effort)
    lines = _by_policy(results)
    seeds = len({result.row.seed for result in results})
    if seeds > 1:
        _say(console, "Every seed", style="bold")
        _show_lines(console, [[result] for line in lines for result in line], results, figures)
        _say(console, f"Medians of {seeds} seeds", style="bold")
    _show_lines(console, _with_ideals(lines), results, figures)
    _show_customers(console, results)
    rows = [result.row for result in results]
    _show_violations(console, rows)
    _show_origin(console, rows, origin)


def _show_customers(console: Console, results: Sequence[Result]) -> None:
    """Print how each customer fared, where there are several."""
    customers = customer_figures(results)
    if customers:
        seeds = len({result.row.seed for result in results})
        medians = f", medians of {seeds} seeds" if seeds > 1 else ""
        _say(console, f"Success by customer{medians}", style="bold")
        _show_lines(console, _by_policy(results), results, [customers])


def _show_origin(console: Console, rows: Sequence[Row], origin: Origin) -> None:
    requests = sum(row.requests for row in rows)
    spent = sum(row.cpu_seconds_spent for row in rows)
    last = max(row.seed for row in rows)
    seed = f"seeds {origin.seed} to {last}" if last > origin.seed else f"seed {origin.seed}"
    _say(
        console,
        f"{origin.scenario}, {seed}, commit {origin.commit}: {requests:,} requests simulated in"
        f" {spent:.1f} CPU seconds.  Again:",
    )
    # Not wrapped, so that it can be copied.
    console.print(Text(f"  {origin.command}"), soft_wrap=True)


def _show_violations(console: Console, rows: Sequence[Row]) -> None:
    for row in rows:
        if row.violations:
            where = f"{row.policy}, load {row.load:g}, seed {row.seed}"
            _say(console, f"Violations in {where}:", style="bold red")
            for violation in row.violations:
                _say(console, f"  {violation}", style="red")
            console.print()


def _by_policy(results: Sequence[Result]) -> list[list[Result]]:
    """Return the runs that differ by their seeds only, together."""
    groups: dict[tuple[float, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.row.load, result.row.policy), []).append(result)
    return list(groups.values())


def _with_ideals(lines: Sequence[Sequence[Result]]) -> list[Sequence[Result]]:
    """Return the lines with what an ideal priority system gives, below those of each load."""
    shown: list[Sequence[Result]] = []
    for _, same_load in groupby(lines, key=lambda line: line[0].row.load):
        group = list(same_load)
        ideal = ideal_result(result for line in group for result in line)
        shown += [*group, [ideal]] if ideal is not None else group
    return shown


def _show_lines(
    console: Console,
    lines: Sequence[Sequence[Result]],
    results: Sequence[Result],
    figures: Sequence[Sequence[RowFigure]],
) -> None:
    """Print a line for each group of runs; what is too wide goes on below: no figure is cut off."""
    labels = _labels(lines, results)
    groups = [
        [
            _Column(heading=figure.heading, cells=cells_of(figure, lines))
            for figure in group
            if figure.is_measured(results)
        ]
        for group in figures
    ]
    # Two spaces between columns, unless one makes do with fewer tables.
    wide, narrow = (_parts(labels, groups, console.width, gap) for gap in (2, 1))
    gap, parts = (1, narrow) if len(narrow) < len(wide) else (2, wide)
    for part in parts:
        # Wider than the terminal if even one figure is: a terminal wraps, but does not cut.
        width = _width([*labels, *part], gap) - gap
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), width=width)
        for column in (*labels, *part):
            table.add_column(
                Text(_writable(console, column.heading)),
                justify="left" if column.is_left else "right",
                vertical="bottom",
                no_wrap=True,
                min_width=column.width,
            )
        cells = zip(*(column.cells for column in (*labels, *part)), strict=True)
        for line, texts in zip(lines, cells, strict=True):
            table.add_row(*map(Text, texts), style=_style(line))
        console.print(table, crop=False)
        console.print()


def _style(line: Sequence[Result]) -> str:
    if any(result.row.violations for result in line):
        return "red"
    return "dim" if line[0].row.policy in (OMNISCIENT, IDEAL) else ""


def _labels(lines: Sequence[Sequence[Result]], results: Sequence[Result]) -> list[_Column]:
    """Return the columns that tell lines apart: the policy, and of load and seed what varies."""
    first = [line[0].row for line in lines]
    labels = [_Column(heading="policy", cells=[row.policy for row in first], is_left=True)]
    if len({result.row.load for result in results}) > 1:
        labels.append(_Column(heading="load", cells=[f"{row.load:g}" for row in first]))
    if len({result.row.seed for result in results}) > 1 and all(len(line) == 1 for line in lines):
        labels.append(_Column(heading="seed", cells=[str(row.seed) for row in first]))
    return labels


def _parts(
    labels: Sequence[_Column], groups: Sequence[Sequence[_Column]], width: int, gap: int
) -> list[list[_Column]]:
    """Return the columns in tables that fit the width; a group is divided only where it must be."""
    room = width - sum(label.width + gap for label in labels) + gap
    # The last groups are the narrow ones: joined from the end, the tables are of similar width.
    joined: list[list[_Column]] = []
    for group in reversed(groups):
        if joined and _width([*group, *joined[0]], gap) <= room:
            joined[0] = [*group, *joined[0]]
        else:
            joined.insert(0, list(group))
    parts: list[list[_Column]] = []
    for columns in joined:
        parts.append([])
        for column in columns:
            if parts[-1] and _width([*parts[-1], column], gap) > room:
                parts.append([])
            parts[-1].append(column)
    return parts


def _width(columns: Sequence[_Column], gap: int) -> int:
    return sum(column.width + gap for column in columns)


def _say(console: Console, text: str, style: str = "") -> None:
    """Print what others wrote: brackets are not markup."""
    console.print(Text(_writable(console, text), style=style))


def _writable(console: Console, text: str) -> str:
    """Return what any terminal can show of a text."""
    if console.options.ascii_only:
        return text.encode("ascii", "replace").decode("ascii")
    return text
