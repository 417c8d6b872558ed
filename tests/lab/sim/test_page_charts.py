"""The charts of the page: which lines they have, how long they are, and what they say in words."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from evenly.lab.sim.page.numbers import mean_of, per, points_step, short, worst_of
from tests.lab.sim.made_page import Outline, data_of, made_page, made_result


def test_every_chart_has_words_and_every_figure_says_what_is_good() -> None:
    page = made_page([made_result(), made_result("random")])

    keys = re.findall(r'data-chart="([\w-]+)"', page)
    assert keys == list(data_of(page)["charts"])
    assert [key for key in keys if not key.startswith("cpu")] == [
        "spread-0", "wasted-0", "latency-0", "latency-1", "throughput-0", "connections-0",
        "success-0", "success-1", "effort-0", "effort-1", "refusals-0", "refusals-1",
    ]  # fmt: skip
    assert page.count('<p class="words"') == len(keys)
    assert page.count("<strong>Good:</strong>") == page.count('<section class="figure"') == 9


def test_the_words_are_medians_of_what_is_measured_and_the_rest_is_shaded() -> None:
    result = made_result(seconds=5)
    series = replace(result.series, measured=(1, 4), spread=(9.0, 1.1, 1.3, None, 8.0))
    page = made_page([replace(result, series=series)])

    assert (
        "Median from 1 to 4 s, highest in brackets: probing 1.20 (1.30), "
        "nothing to measure at 1 of 3 points."
    ) in page
    assert data_of(page)["charts"]["spread-0"][0]["x"]["measured"] == [1, 4]
    assert "What is shaded is not measured" in page


def test_nothing_is_said_of_shades_where_all_is_measured() -> None:
    result = made_result(seconds=4)
    page = made_page([replace(result, series=replace(result.series, measured=(0, 4)))])

    assert "Median from 0 to 4 s" in page
    assert "What is shaded" not in page


@pytest.mark.parametrize(
    ("measured", "median"),
    [
        # 1,201 s make points of 3 s: 0 to 3 s is the first, and 1,200 s stands alone.
        pytest.param((3, 9), "1.50", id="whole points"),
        pytest.param((2, 10), "1.50", id="points that lie inside only in part are left out"),
        pytest.param((4, 5), "1.00", id="no whole point: the one around it"),
        pytest.param((1200, 1201), "5.00", id="the last point, though it is short"),
    ],
)
def test_words_of_a_long_story_are_of_the_points_inside(
    measured: tuple[int, int], median: str
) -> None:
    result = made_result(seconds=1201, backends=2)
    spread = (9.0,) * 3 + (1.0,) * 3 + (2.0,) * 3 + (7.0,) * 1191 + (5.0,)
    series = replace(result.series, measured=measured, spread=spread)

    page = made_page([replace(result, series=series)])
    assert f"highest in brackets: probing {median} (" in page


def test_cpu_lines_are_backends_and_quantiles_over_them() -> None:
    result = made_result(seconds=2, backends=3)
    series = replace(result.series, measured=(0, 2), cpu=((0.2, 0.5), (0.4, 0.5), (0.9, 0.5)))
    page = made_page([replace(result, series=series)])
    (panel,) = data_of(page)["charts"]["cpu-0"]

    assert panel["backends"] == [[0.2, 0.5], [0.4, 0.5], [0.9, 0.5]]
    assert {line["label"]: line["values"] for line in panel["lines"]} == {
        "most": [0.9, 0.5],
        "p95": [0.85, 0.5],  # 0.4 + 0.9 · 0.5
        "p75": [0.65, 0.5],  # half way from 0.4 to 0.9
        "p50": [0.4, 0.5],
        "p25": [0.3, 0.5],
        "p5": [0.22, 0.5],  # 0.2 + 0.1 · 0.2
        "least": [0.2, 0.5],
    }


@pytest.mark.parametrize(
    ("backends", "seconds", "lines"),
    [
        pytest.param(200, 60, 200, id="just as many as can be told apart"),
        pytest.param(201, 10, 0, id="too many lines"),
        pytest.param(200, 61, 0, id="too many points"),
    ],
)
def test_backends_are_lines_as_long_as_they_can_be_drawn(
    backends: int, seconds: int, lines: int
) -> None:
    page = made_page([made_result(backends=backends, seconds=seconds)])

    assert len(data_of(page)["charts"]["cpu-0"][0]["backends"]) == lines


def test_a_thousand_backends_are_quantiles() -> None:
    (panel,) = data_of(made_page([made_result(backends=1000)]))["charts"]["cpu-0"]

    assert [line["label"] for line in panel["lines"] if line["kind"] == "extreme"] == [
        "most", "least",
    ]  # fmt: skip
    labels = [line["label"] for line in panel["lines"]]
    assert [[labels[low], labels[high]] for low, high in panel["bands"]] == [
        ["p5", "p95"], ["p25", "p75"],
    ]  # fmt: skip


def test_offered_is_one_line_where_all_policies_had_the_same_requests() -> None:
    same = made_page([made_result(), made_result("random")])
    other = made_page([made_result(), made_result("random", seed=2)])

    def beside(page: str) -> list[tuple[int | None, str]]:
        lines = data_of(page)["charts"]["throughput-0"][0]["lines"]
        return [(line["policy"], line["label"]) for line in lines if line["kind"] == "beside"]

    assert beside(same) == [(None, "offered")]
    assert beside(other) == [(0, "probing, offered"), (1, "random, offered")]


def test_policies_have_colours_and_dashes_of_their_own_and_limits_stand_apart() -> None:
    names = ["omniscient", *(f"policy {number}" for number in range(8)), "omniscient_least_cpu"]
    page = made_page([made_result(name) for name in names])

    looks = [policy["look"] for policy in data_of(page)["policies"]]
    numbers = [f"colour{number} dash{number % 7}" for number in range(8)]
    assert looks == ["limit0", *numbers, "limit1"]
    assert [swatch["class"] for swatch in Outline(page).all("svg")] == [
        f"swatch {look}" for look in looks
    ]
    style = page.split("<style>")[1].split("</style>")[0]
    patterns = re.findall(r"\.(?:dash|limit)\d \.line \{ stroke-dasharray: ([\d ]+);", style)
    assert len(patterns) == len(set(patterns)) == 8  # Of dash0, which is solid, there is none.


def test_omniscient_is_a_limit_of_latency_only() -> None:
    results = [
        made_result(policy, load=load)
        for load in (0.5, 0.9)
        for policy in ("probing", "omniscient")
    ]
    page = made_page(results)
    drawn = {
        key: [line["label"] for line in panels[0]["lines"]]
        for key, panels in data_of(page)["charts"].items()
    }

    assert "omniscient (latency limit)" in Outline(page).words()
    assert "it is no limit" in page
    assert "(latency limit)" not in made_page([made_result("omniscient_least_cpu")])
    assert drawn["latency-1"] == drawn["loads-1"] == ["probing", "omniscient"]
    assert drawn["spread-0"] == drawn["wasted-0"] == drawn["loads-2"] == ["probing"]


def test_omniscient_alone_is_drawn() -> None:
    charts = data_of(made_page([made_result("omniscient")]))["charts"]

    assert [line["label"] for line in charts["spread-0"][0]["lines"]] == ["omniscient"]


def test_a_long_story_has_no_more_points_than_can_be_seen() -> None:
    page = made_page([made_result(seconds=3601, backends=30)])

    assert "Every point sums up 7 seconds" in page
    for (panel,) in data_of(page)["charts"].values():
        assert panel["x"]["count"] == 515  # ⌈3601 / 7⌉
        assert {len(line["values"]) for line in panel["lines"]} == {515}


def test_what_is_not_finite_is_left_out() -> None:
    result = made_result(seconds=3)
    series = replace(result.series, spread=(math.inf, math.nan, 1.5))

    charts = data_of(made_page([replace(result, series=series)]))["charts"]
    assert charts["spread-0"][0]["lines"][0]["values"] == [None, None, 1.5]


def test_several_loads_can_be_selected_and_are_compared() -> None:
    results = [
        made_result(policy, load=load) for load in (9.0, 2.0) for policy in ("probing", "random")
    ]
    page = made_page(results)
    charts = data_of(page)["charts"]

    assert '<option value="0">2 × capacity</option><option value="1">9 ×' in page
    assert charts["loads-0"][0]["x"] == {"unit": "load", "at": [2, 9]}
    assert {len(panels) for key, panels in charts.items() if "loads" not in key} == {2}
    assert "<select" not in made_page(results[:2])
    assert "loads-0" not in made_page(results[:2])


def test_a_policy_that_did_not_run_at_a_load_has_no_panel_there() -> None:
    results = [made_result(load=0.5), made_result("random", load=0.5), made_result(load=0.9)]
    page = made_page(results)

    assert [panel is None for panel in data_of(page)["charts"]["cpu-1"]] == [False, True]
    assert "At load 0.9: this policy did not run." in page


def test_numbers_are_made_short() -> None:
    assert [short(one) for one in (0.123456, 123456.0, 2.0, 7, None, math.nan)] == [
        0.1235, 123500, 2, 7, None, None,
    ]  # fmt: skip
    # Nearly all is not all.
    assert [short(one) for one in (0.99997, 0.9999999, 0.99, 1.0)] == [0.99997, 0.999999, 0.99, 1]
    assert mean_of([1, None, 3, None, None], 2) == [1.0, 3.0, None]
    assert worst_of([1.0, None, 3.0, 2.0, None], 2) == [1.0, 3.0, None]
    assert per([1, 2, 3], [2, 4, 0], 2) == [0.5, None]
    assert [points_step(seconds) for seconds in (0, 60, 600, 601, 86_400)] == [1, 1, 1, 2, 144]
