"""The figures that the terminal and the page have in common: which there are, and their medians."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenly.lab.sim.result import Result
from evenly.lab.sim.row_figures import (
    CPU_SPREAD,
    GOODPUT,
    P99,
    Reading,
    RowFigure,
    customer_figures,
    figure_groups,
    said_percent,
)
from tests.lab.sim.made_page import made_result


def with_p99(*latencies: float | None) -> list[Result]:
    made = made_result()
    return [replace(made, row=replace(made.row, p99_seconds=value)) for value in latencies]


def success_headings(*names: str) -> list[str]:
    made = made_result()
    row = replace(made.row, success_by_criticality=dict.fromkeys(names, 0.5))
    return [figure.heading for figure in figure_groups([replace(made, row=row)]).success[2:-1]]


@pytest.mark.parametrize(
    ("latencies", "median"),
    [
        pytest.param((0.3,), 0.3, id="one"),
        pytest.param((0.3, 0.1, 0.2), 0.2, id="three"),
        pytest.param((0.3, 0.1), 0.2, id="half way between two"),
        pytest.param((0.1, None, 0.3), 0.3, id="missing is the worst"),
        pytest.param((0.1, None), None, id="half way to what is missing"),
        pytest.param((0.1, float("inf"), float("nan")), None, id="not finite is missing"),
        pytest.param((), None, id="nothing"),
    ],
)
def test_median(latencies: tuple[float | None, ...], median: float | None) -> None:
    found = P99.median(with_p99(*latencies))

    assert found.value == pytest.approx(median)
    assert not found.is_more


def test_what_is_missing_stands_at_the_bad_end() -> None:
    low_is_bad = replace(P99, worst="lowest")
    results = with_p99(0.2, None, 0.1)

    assert P99.ordered(results) == [Reading(0.1), Reading(0.2), Reading(None)]
    assert low_is_bad.ordered(results) == [Reading(None), Reading(0.1), Reading(0.2)]


def test_what_is_left_out_is_in_no_median() -> None:
    left_out = replace(P99, is_missing_left_out=True)

    assert left_out.ordered(with_p99(0.2, None)) == [Reading(0.2)]
    assert left_out.median(with_p99(None)) == Reading(None)


def test_what_is_more_than_it_says_stands_above_all() -> None:
    figure = RowFigure(
        title="", heading="", unit="seconds", of=P99.of, is_more=lambda one: P99.of(one) == 0.1
    )

    assert figure.ordered(with_p99(0.1, 0.3)) == [Reading(0.3), Reading(0.1, is_more=True)]


def test_criticalities_have_figures_if_there_are_several_the_highest_first() -> None:
    assert success_headings("CRITICAL") == []
    assert success_headings("SHEDDABLE", "CRITICAL_PLUS") == ["C+\nsuccess", "S\nsuccess"]


def test_users_have_figures_where_they_make_several_calls() -> None:
    made = made_result()
    row = replace(made.row, users_by_criticality={"SHEDDABLE": 0.1, "CRITICAL": 0.9})
    result = replace(made, row=row)
    figures = [one for one in figure_groups([result]).success if "users" in one.heading]

    assert [(one.heading, one.of(result)) for one in figures] == [
        ("C\nusers", 0.9),
        ("S\nusers", 0.1),
    ]
    assert not any("users" in one.heading for one in figure_groups([made]).success)


def test_customers_are_in_the_order_of_the_scenario() -> None:
    made = made_result()
    customers = {"gold": 0.9, "lead": 0.1}
    result = replace(made, series=replace(made.series, success_by_customer=customers))

    figures = customer_figures([result])
    assert [(one.heading, one.of(result)) for one in figures] == [("gold", 0.9), ("lead", 0.1)]
    assert customer_figures([made]) == []


def test_figures_that_no_run_has_are_not_measured() -> None:
    assert P99.is_measured(with_p99(None, 0.1))
    assert not P99.is_measured(with_p99(None))
    assert {GOODPUT.worst, CPU_SPREAD.worst} == {"lowest", "highest"}


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.0, "0.00%"),
        (0.00004, "<0.01%"),
        (0.00005, "0.01%"),
        (0.125, "12.50%"),
        (0.99994, "99.99%"),
        (0.99995, ">99.99%"),
        (1.0, "100.00%"),
        (1.5, "150.00%"),
    ],
)
def test_percentages(ratio: float, expected: str) -> None:
    assert said_percent(ratio) == expected
