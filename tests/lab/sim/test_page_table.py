"""The tables of the page: every figure in human units, medians over seeds, customers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evenly.lab.sim.page.numbers import short
from evenly.lab.sim.page.units import said
from evenly.lab.sim.result import Result
from evenly.lab.sim.row_figures import Unit
from tests.lab.sim.made_page import Outline, data_of, made_page, made_result


def test_the_table_has_every_figure_in_human_units() -> None:
    page = made_page([made_result()])

    for title, cell in (
        ("Goodput, of what was possible", "99.99%"),
        ("Requests that did not succeed", "0.01%"),
        ("Success, CRITICAL", "100.00%"),
        ("Latency p50", "15 ms"),
        ("Latency p99", "61.3 ms"),
        ("p99 over that of omniscient", "1.32"),
        ("CPU p95 / p5 of backends", "1.12"),
        ("CPU max / min of backends", "1.40"),
        ("Wasted capacity", "11.40%"),
        ("Attempts per request", "1.001"),
        ("Probes per request", "0.710"),
        ("CPU time spent simulating", "1.25 s"),
    ):
        assert f'<tr><th scope="row">{title}</th><td>{cell}</td></tr>' in page
    assert "Recovery (>: not by the end) – nothing to measure" in Outline(page).words()


def test_several_seeds_show_medians_and_each_seed_and_the_first_is_drawn() -> None:
    seeds = [made_result(seed=seed) for seed in (7, 8, 9)]
    latencies = (0.010, 0.030, 0.011)
    results = [
        replace(one, row=replace(one.row, p50_seconds=latency))
        for one, latency in zip(seeds, latencies, strict=True)
    ]
    page = made_page(results)

    assert "<td>11 ms<small>10 ms to 30 ms</small></td>" in page
    assert "<td>11 ms<small>10 ms to 30 ms</small></td><td>10 ms</td><td>30 ms</td>" in page
    assert "The charts show seed 7, the first of 3." in page
    drawn = data_of(page)["charts"]["latency-0"][0]["lines"]
    assert len(drawn) == 1
    assert drawn[0]["values"] == [short(value) for value in seeds[0].series.p50_seconds]


def test_a_seed_in_which_nothing_succeeded_counts_as_the_worst() -> None:
    seeds = [made_result(seed=seed) for seed in (1, 2, 3)]
    latencies = (0.010, None, None)
    results = [
        replace(one, row=replace(one.row, p99_seconds=latency))
        for one, latency in zip(seeds, latencies, strict=True)
    ]

    assert "nothing to measure</span><small>10 ms to –</small>" in made_page(results)


def test_a_criticality_that_one_seed_did_not_send_counts_as_the_worst() -> None:
    sent, unsent = made_result(seed=1), made_result(seed=2)
    row = replace(unsent.row, success_by_criticality={"CRITICAL": 1.0})

    page = made_page([sent, replace(unsent, row=row)])
    assert "nothing to measure</span><small>– to 100.00%</small>" in page


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "percent", "–"),
        (math.inf, "ratio", "–"),
        (1.0, "percent", "100.00%"),
        (0.99997, "percent", ">99.99%"),
        (0.00003, "percent", "<0.01%"),
        (0.125, "percent", "12.50%"),
        (0.0, "percent", "0.00%"),
        (7.0, "tenths", "7.0 s"),
        (0.0, "seconds", "0 s"),
        (0.00025, "seconds", "250 µs"),
        (0.0523, "seconds", "52.3 ms"),
        (0.99999, "seconds", "1 s"),
        (142.0, "seconds", "142 s"),
        (1234567, "count", "1,234,567"),
        (89.15, "ratio", "89.15"),
        (1234.5, "ratio", "1,234"),
        (1.0004, "each", "1.000"),
    ],
)
def test_units(value: float | None, unit: Unit, expected: str) -> None:
    assert said(value, unit) == expected


def test_a_recovery_that_did_not_come_is_more_than_it_says_and_the_worst() -> None:
    def recovered(seed: int, seconds: float | None, *, has_recovered: bool = True) -> Result:
        made = made_result(seed=seed)
        return Result(
            row=replace(made.row, recovery_seconds=seconds),
            series=replace(made.series, has_recovered=has_recovered),
        )

    never = recovered(1, 7.0, has_recovered=False)
    assert "</th><td>&gt;7.0 s</td></tr>" in made_page([never])
    page = made_page([never, recovered(2, 9.0), recovered(3, None), recovered(4, 2.0)])
    assert "<td>9.0 s<small>2.0 s to &gt;7.0 s</small></td>" in page


def test_customers_have_lines_of_their_own_with_medians() -> None:
    def served(seed: int, ratio: float) -> Result:
        made = made_result(seed=seed)
        return replace(made, series=replace(made.series, success_by_customer={"a <b>": ratio}))

    page = made_page([served(1, 0.2), served(2, 0.4), served(3, 0.9)])
    cell = "<td>40.00%<small>20.00% to 90.00%</small></td>"
    assert f'<th scope="row">Success, customer a &lt;b&gt;</th>{cell}' in page
    assert "customer" not in made_page([made_result()])


def test_hardly_anything_is_written_as_text() -> None:
    made = made_result()
    page = made_page([replace(made, row=replace(made.row, errors_ratio=0.00001))])

    assert "<td>&lt;0.01%</td>" in page
    assert "<td><0" not in page


def test_the_ideal_has_a_column_where_something_has_to_be_refused() -> None:
    made = made_result(load=2.0)
    ideal = {"CRITICAL": 0.625, "SHEDDABLE": 0.0}
    row = replace(made.row, ideal_by_criticality=ideal)

    words = Outline(made_page([replace(made, row=row)])).words()

    assert "ideal (priorities)" in words
    assert "62.50%" in words
    assert "(priorities)" not in Outline(made_page([made])).words()
