"""How far it is: lines for a log, and only of what takes long."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from evenly.cli.progress import ProgressLog
from evenly.cli.simulate_progress import RowProgress
from evenly.lab.sim.batch import plan_rows
from evenly.lab.sim.scenario import Scenario
from evenly.testing import ManualClock


def test_a_log_gets_a_line_after_ten_seconds_and_then_ever_more_seldom() -> None:
    clock = ManualClock()
    file = StringIO()
    log = ProgressLog(Console(file=file), clock=clock)
    for place in range(1, 26):  # one every second
        clock.advance(1.0)
        log(place / 25, f"{place} of 25 rows", "random" if place == 19 else "")

    # 10 · 4/3 = 13.3, 14 · 4/3 = 18.7, 19 · 4/3 = 25.3
    assert file.getvalue() == (
        "10 of 25 rows, 40%, after 10 s\n"
        "14 of 25 rows, 56%, after 14 s\n"
        "19 of 25 rows, 76%, after 19 s: random\n"
    )


def test_rows_count_by_their_load() -> None:
    told: list[tuple[float, str, str]] = []
    scenario = Scenario(title="t", ideal=False)
    rows = plan_rows(scenario, seeds=[1], policies=["random"], loads=[0.9, 2.9])
    progress = RowProgress(rows, lambda *what: told.append(what))
    progress(1, 0.5)
    progress(1, 1.0)
    progress(0, 1.0)

    # 0.9 + 0.1 and 2.9 + 0.1: the second row is three quarters of the work.
    assert [part for part, _, _ in told] == pytest.approx([0.375, 0.75, 1.0])
    assert [(count, done) for _, count, done in told] == [
        ("0 of 2 rows", ""),
        ("1 of 2 rows", "random, load 2.9, seed 1"),
        ("2 of 2 rows", "random, load 0.9, seed 1"),
    ]
