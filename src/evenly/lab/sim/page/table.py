"""Write the rows of figures as HTML tables: a line for each figure, a column for each policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from evenly.lab.sim.page.scenes import Scene, label_of
from evenly.lab.sim.page.units import NOTHING, escaped, said
from evenly.lab.sim.result import Result
from evenly.lab.sim.row_figures import Reading, RowFigure, Unit, customer_figures, figure_groups
from evenly.lab.sim.success import IDEAL, ideal_result

__all__ = ["scene_tables", "violations"]

_Column: TypeAlias = tuple[str, Sequence[Result]]
"""A heading in HTML, and the runs to take the median of."""

_UNSEEN_NOTHING: Final = '<span class="unseen">nothing to measure</span>'


def scene_tables(scene: Scene, seeds: Sequence[int]) -> str:
    """Return the table of one load, and with several seeds one more that shows each of them."""
    columns = [(_heading(policy), runs) for policy, runs in scene.runs.items()]
    caption = f"At {scene.load:g} times capacity"
    ideal = ideal_result(result for _, runs in columns for result in runs)
    if ideal is not None:
        columns.append((_heading(IDEAL), (ideal,)))
    if len(seeds) == 1:
        return _table(f"{caption}, seed {seeds[0]}", columns)
    several = _table(f"{caption}: medians of {len(seeds)} seeds, and their range", columns)
    each = "".join(
        f"<h3>{_heading(policy)}</h3>{_table(f'{caption}, {escaped(policy)}', _by_seed(runs))}"
        for policy, runs in scene.runs.items()
    )
    return f"{several}<details><summary>Every seed</summary>{each}</details>"


def violations(results: Sequence[Result]) -> str:
    """Return a red list of the invariants that did not hold, or one calm sentence."""
    found = [
        f"<li><strong>{escaped(row.policy)}</strong>, load {row.load:g}, seed {row.seed}: "
        f"{escaped(violation)}</li>"
        for row in (result.row for result in results)
        for violation in row.violations
    ]
    if not found:
        return '<p class="calm">Every invariant held in every run.</p>'
    title = f"{len(found)} {'violation' if len(found) == 1 else 'violations'}"
    return (
        f'<section class="violations" aria-labelledby="violations"><h2 id="violations">{title}</h2>'
        f'<ul tabindex="0">{"".join(found)}</ul></section>'
    )


def _heading(policy: str) -> str:
    label = label_of(policy)
    shown = f" <small>{label}</small>" if label else ""
    return f"{escaped(policy).replace('_', '_<wbr>')}{shown}"


def _by_seed(runs: Sequence[Result]) -> list[_Column]:
    return [("median", runs), *((f"seed {result.row.seed}", (result,)) for result in runs)]


def _table(caption: str, columns: Sequence[_Column]) -> str:
    headings = "".join(f'<th scope="col">{heading}</th>' for heading, _ in columns)
    # Focusable, because it scrolls sideways where it does not fit.
    return (
        f'<p class="caption">{caption}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{caption}"><table><caption class="unseen">{caption}</caption>'
        f"<thead><tr><td></td>{headings}</tr></thead>"
        f"<tbody>{''.join(_lines(columns))}</tbody></table></div>"
    )


def _lines(columns: Sequence[_Column]) -> Iterator[str]:
    results = [result for _, runs in columns for result in runs]
    groups = figure_groups(results)
    figures = (*groups.success, *customer_figures(results), *groups.balance, *groups.effort)
    for figure in figures:
        yield _line(figure.title, (_cell(figure, runs) for _, runs in columns))
    yield _line("Violations", (_violations_cell(runs) for _, runs in columns))
    for figure in groups.cost:
        yield _line(figure.title, (_cell(figure, runs) for _, runs in columns))


def _line(title: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{escaped(title)}</th>{"".join(cells)}</tr>'


def _cell(figure: RowFigure, runs: Sequence[Result]) -> str:
    """Return the figure of one run, or the median of several above their range."""
    text = _said(figure.median(runs), figure.unit)
    if text == NOTHING:
        text = f'<span aria-hidden="true">{NOTHING}</span>{_UNSEEN_NOTHING}'
    ordered = figure.ordered(runs) or [Reading(None)]
    low, high = (_said(end, figure.unit) for end in (ordered[0], ordered[-1]))
    spread = f"<small>{low} to {high}</small>" if low != high else ""
    return f"<td>{text}{spread}</td>"


def _said(reading: Reading, unit: Unit) -> str:
    return escaped(f"{'>' if reading.is_more else ''}{said(reading.value, unit)}")


def _violations_cell(runs: Sequence[Result]) -> str:
    """Return how many there were in all: the median of several seeds would hide them."""
    count = sum(len(result.row.violations) for result in runs)
    return f'<td class="{"bad" if count else ""}">{said(count, "count")}</td>'
