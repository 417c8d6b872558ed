"""Write the rows of figures as HTML tables: a line for each figure, a column for each policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from evenly.sim.page.numbers import known, median_over_seeds
from evenly.sim.page.scenes import Scene, is_limit
from evenly.sim.page.units import NOTHING, Unit, escaped, said
from evenly.sim.result import Result, Row

__all__ = ["scene_tables", "violations"]

_Column: TypeAlias = tuple[str, Sequence[Row]]
"""A heading in HTML, and the rows to take the median of."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """Be one line of the table."""

    title: str
    unit: Unit
    of: Callable[[Row], float | None]
    worst: float = math.inf
    """What a figure that could not be measured counts as."""
    is_total: bool = False
    """Whether it counts faults: the median of several seeds would hide them."""

    def cell(self, rows: Sequence[Row]) -> str:
        """Return the figure of one row, or the median of several above their range."""
        values = [self.of(row) for row in rows]
        found = known(values)
        if self.is_total:
            return f'<td class="{"bad" if any(found) else ""}">{said(sum(found), self.unit)}</td>'
        text = said(median_over_seeds(values, self.worst), self.unit)
        if text == NOTHING:
            text = f'<span aria-hidden="true">{NOTHING}</span>{_UNSEEN_NOTHING}'
        low, high = (said(end(found, default=None), self.unit) for end in (min, max))
        if len(found) < len(values):
            low, high = (low, NOTHING) if self.worst > 0.0 else (NOTHING, high)
        spread = f"<small>{low} to {high}</small>" if low != high else ""
        return f"<td>{text}{spread}</td>"


_UNSEEN_NOTHING: Final = '<span class="unseen">nothing to measure</span>'
_OUTCOME: Final = (
    _Figure(title="Goodput, of what was possible", unit="percent", of=lambda r: r.goodput_ratio),
    _Figure(title="Requests that did not succeed", unit="percent", of=lambda r: r.errors_ratio),
)
_REST: Final = (
    _Figure(title="Latency p50", unit="seconds", of=lambda r: r.p50_seconds),
    _Figure(title="Latency p99", unit="seconds", of=lambda r: r.p99_seconds),
    _Figure(title="p99 over the omniscient limit’s", unit="ratio", of=lambda r: r.p99_over_ideal),
    _Figure(title="CPU p95 / p5 of backends", unit="ratio", of=lambda r: r.cpu_p95_over_p5),
    _Figure(title="CPU max / min of backends", unit="ratio", of=lambda r: r.cpu_max_over_min),
    _Figure(title="Wasted capacity", unit="percent", of=lambda r: r.wasted_ratio),
    _Figure(title="Attempts per request", unit="each", of=lambda r: r.attempts_per_request),
    _Figure(title="Probes per request", unit="each", of=lambda r: r.probes_per_request),
    _Figure(title="Recovery", unit="seconds", of=lambda r: r.recovery_seconds),
    _Figure(title="Violations", unit="count", of=lambda r: len(r.violations), is_total=True),
    _Figure(title="Requests simulated", unit="count", of=lambda r: r.requests),
    _Figure(title="CPU time spent simulating", unit="seconds", of=lambda r: r.cpu_seconds_spent),
)


def scene_tables(scene: Scene, seeds: Sequence[int]) -> str:
    """Return the table of one load, and with several seeds one more that shows each of them."""
    columns = [(_heading(policy), rows) for policy, rows in scene.rows.items()]
    caption = f"At {scene.load:g} times capacity"
    if len(seeds) == 1:
        return _table(f"{caption}, seed {seeds[0]}", columns)
    several = _table(f"{caption}: medians of {len(seeds)} seeds, and their range", columns)
    each = "".join(
        f"<h3>{_heading(policy)}</h3>{_table(f'{caption}, {escaped(policy)}', _by_seed(rows))}"
        for policy, rows in scene.rows.items()
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
    limit = " <small>(limit)</small>" if is_limit(policy) else ""
    return f"{escaped(policy).replace('_', '_<wbr>')}{limit}"


def _by_seed(rows: Sequence[Row]) -> list[_Column]:
    return [("median", rows), *((f"seed {row.seed}", (row,)) for row in rows)]


def _table(caption: str, columns: Sequence[_Column]) -> str:
    headings = "".join(f'<th scope="col">{heading}</th>' for heading, _ in columns)
    lines = "".join(
        f'<tr><th scope="row">{figure.title}</th>'
        f"{''.join(figure.cell(rows) for _, rows in columns)}</tr>"
        for figure in _figures(columns)
    )
    # Focusable, because it scrolls sideways where it does not fit.
    return (
        f'<p class="caption">{caption}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{caption}"><table><caption class="unseen">{caption}</caption>'
        f"<thead><tr><td></td>{headings}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def _figures(columns: Sequence[_Column]) -> Iterator[_Figure]:
    yield from _OUTCOME
    names = (name for _, rows in columns for row in rows for name in row.success_by_criticality)
    for name in dict.fromkeys(names):
        title = f"Success, {escaped(name)}"
        yield _Figure(title=title, unit="percent", of=_success_of(name), worst=-math.inf)
    yield from _REST


def _success_of(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.success_by_criticality.get(name)
