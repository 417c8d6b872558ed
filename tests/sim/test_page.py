"""The page of `evenly simulate --html`, without a browser: what is in it, and what is not."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from evenly.errors import UsageError
from evenly.sim.page import render_page
from evenly.sim.page.numbers import mean_of, per, points_step, short, worst_of
from evenly.sim.page.units import Unit, said
from evenly.sim.result import Result, Row, Series

HOSTILE = "</script><!--<script>alert(\"1\")</script><img src=x onerror='alert(2)'>&amp;\u2028"


def made_result(
    policy: str = "probing",
    *,
    load: float = 0.9,
    seed: int = 1,
    backends: int = 20,
    seconds: int = 30,
    rate: int = 1000,
    wobble: float = 0.05,
    violations: tuple[str, ...] = (),
) -> Result:
    """Return a plausible run: `wobble` is how unevenly the policy balances."""
    rng = random.Random(f"{seed}/{policy}/{load}")
    lean = [rng.gauss(1.0, wobble) for _ in range(backends)]
    cpu = tuple(
        tuple(min(1.0, max(0.0, load * one * rng.gauss(1.0, 0.04))) for _ in range(seconds))
        for one in lean
    )
    arrivals = random.Random(f"{seed}/{load}")  # The same requests for every policy.
    critical = tuple(int(arrivals.gauss(rate, math.sqrt(rate)) * load) for _ in range(seconds))
    sheddable = tuple(count // 4 for count in critical)
    kept = max(0.0, min(1.0, 1.0 - (load - 1.0) * 2.0))
    spread = tuple(None if at < 2 else 1.0 + 4 * wobble * rng.random() for at in range(seconds))
    p50 = tuple(None if not count else 0.015 * rng.gauss(1.0, 0.1) for count in critical)
    row = Row(
        policy=policy,
        seed=seed,
        load=load,
        requests=sum(critical) + sum(sheddable),
        cpu_seconds_spent=1.25,
        goodput_ratio=0.99987,
        errors_ratio=0.00013,
        p50_seconds=0.01503,
        p99_seconds=0.0613 if rate else None,
        p99_over_ideal=1.32,
        cpu_p95_over_p5=1.12,
        cpu_max_over_min=1.4,
        wasted_ratio=0.114,
        success_by_criticality={"CRITICAL": 1.0, "SHEDDABLE": kept},
        attempts_per_request=1.0012,
        probes_per_request=0.71,
        recovery_seconds=None,
        violations=violations,
    )
    series = Series(
        settle_seconds=min(5.0, float(seconds)),
        capacity=rate * 1.25,
        cpu=cpu,
        spread=spread,
        wasted_ratio=tuple(None if one is None else (one - 1.0) / 2.0 for one in spread),
        offered={"CRITICAL": critical, "SHEDDABLE": sheddable},
        succeeded={"CRITICAL": critical, "SHEDDABLE": tuple(int(n * kept) for n in sheddable)},
        p50_seconds=p50,
        p99_seconds=tuple(
            None if one is None else one * math.exp(20 * wobble * rng.random()) * 4 for one in p50
        ),
        attempts=tuple(int(1.26 * count) for count in critical),
        probes=tuple(count // 2 for count in critical),
        throttled=tuple(n - int(n * kept) for n in sheddable),
        rejected=tuple(rng.randrange(5) for _ in range(seconds)),
        connections=tuple(400 if at == 0 else rng.randrange(3) for at in range(seconds)),
    )
    return Result(row=row, series=series)


def made_page(results: Sequence[Result], **texts: str) -> str:
    defaults = {
        "title": "Antagonists",
        "scenario": "scenarios/antagonists.toml",
        "commit": "0123456789ab",
        "scenario_text": 'title = "Antagonists"\n',
    }
    return render_page(results=results, **defaults | texts)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Outline(HTMLParser):
    """Read a page as a browser does: which elements it has, and what text stands in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def words(self) -> str:
        texts = (text for tag, text in self.text if tag not in ("script", "style"))
        return " ".join(" ".join(texts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def test_it_is_one_well_formed_page_that_asks_nobody_for_anything() -> None:
    page = made_page([made_result()])
    outline = Outline(page)

    assert page.startswith("<!DOCTYPE html>")
    assert outline.open == []
    assert [link["href"] for link in outline.all("link")] == ["data:,"]
    assert not any("src" in attributes for _, attributes in outline.tags)
    # The only address is the name of a namespace.
    assert set(re.findall(r"\w+://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_security_policy_admits_this_script_and_this_style_only() -> None:
    page = made_page([made_result()])
    policy = next(m["content"] for m in Outline(page).all("meta") if "http-equiv" in m)
    assert policy is not None

    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for element, kind in (("<style>", "style-src"), ("<script>", "script-src")):
        text = page.split(element)[1].split(element.replace("<", "</"))[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_the_script_is_small_and_writes_text_only() -> None:
    script = made_page([made_result()]).split("<script>")[1].split("</script>")[0]

    assert script.count("\n") < 300
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "fetch(", "import("):
        assert word not in script


def test_hostile_strings_stay_text() -> None:
    results = [made_result(HOSTILE, violations=(HOSTILE,)), made_result("other", seed=2)]
    page = made_page(
        results, title=HOSTILE, scenario=HOSTILE, commit=HOSTILE, scenario_text=HOSTILE
    )
    outline = Outline(page)

    assert outline.all("img") == []
    assert len(outline.all("script")) == 2
    assert not any(name.startswith("on") for _, names in outline.tags for name in names)
    assert ("h1", HOSTILE) in outline.text
    assert ("title", f"{HOSTILE} · evenly simulate") in outline.text
    assert [policy["name"] for policy in data_of(page)["policies"]] == [HOSTILE, "other"]


def test_a_file_name_that_is_not_utf8_can_be_written() -> None:
    page = made_page([made_result()], scenario="\udcff.toml")

    assert "?.toml" in page.encode("utf-8").decode("utf-8")


def test_the_table_has_every_figure_in_human_units() -> None:
    page = made_page([made_result()])

    for title, cell in (
        ("Goodput, of what was possible", "99.99%"),
        ("Requests that did not succeed", "0.01%"),
        ("Success, CRITICAL", "100%"),
        ("Latency p50", "15 ms"),
        ("Latency p99", "61.3 ms"),
        ("p99 over the omniscient limit’s", "1.32"),
        ("CPU p95 / p5 of backends", "1.12"),
        ("CPU max / min of backends", "1.40"),
        ("Wasted capacity", "11.4%"),
        ("Attempts per request", "1.001"),
        ("Probes per request", "0.710"),
        ("CPU time spent simulating", "1.25 s"),
    ):
        assert f'<tr><th scope="row">{title}</th><td>{cell}</td></tr>' in page
    assert "Recovery – nothing to measure" in Outline(page).words()


def test_no_violation_is_one_calm_sentence_and_each_violation_is_named_in_red() -> None:
    bad = made_result("random", load=1.2, seed=3, violations=("lost a request", "lost another"))

    assert "Every invariant held in every run." in made_page([made_result()])
    page = made_page([made_result(), bad])
    assert "Every invariant held" not in page
    assert '<section class="violations"' in page
    assert "2 violations random , load 1.2, seed 3: lost a request random" in Outline(page).words()
    assert '<td class="bad">2</td>' in page


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
    assert "nothing to measure</span><small>– to 100%</small>" in page


def test_several_loads_can_be_selected_and_are_compared() -> None:
    results = [
        made_result(policy, load=load) for load in (9.0, 2.0) for policy in ("probing", "random")
    ]
    page = made_page(results)
    charts = data_of(page)["charts"]

    assert '<option value="0">2 × capacity</option><option value="1">9 ×' in page
    assert charts["loads-goodput_ratio"][0]["x"] == {"unit": "load", "at": [2, 9]}
    assert {len(panels) for key, panels in charts.items() if "loads" not in key} == {2}
    assert "<select" not in made_page(results[:2])
    assert "loads-goodput_ratio" not in made_page(results[:2])


def test_a_policy_that_did_not_run_at_a_load_has_no_panel_there() -> None:
    results = [made_result(load=0.5), made_result("random", load=0.5), made_result(load=0.9)]
    page = made_page(results)

    assert [panel is None for panel in data_of(page)["charts"]["cpu-1"]] == [False, True]
    assert "At load 0.9: this policy did not run." in page


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


def test_the_words_are_medians_after_settling() -> None:
    result = made_result(seconds=4)
    series = replace(result.series, settle_seconds=1.0, spread=(9.0, 1.1, 1.3, None))
    page = made_page([replace(result, series=series)])

    assert (
        "Median after the first 1 s, highest in brackets: probing 1.20 (1.30), "
        "nothing to measure at 1 of 3 points."
    ) in page


def test_cpu_lines_are_backends_and_quantiles_over_them() -> None:
    result = made_result(seconds=2, backends=3)
    series = replace(result.series, settle_seconds=0.0, cpu=((0.2, 0.5), (0.4, 0.5), (0.9, 0.5)))
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


def test_policies_have_colours_of_their_own_and_limits_stand_apart() -> None:
    names = ["omniscient", *(f"policy {number}" for number in range(8)), "omniscient_least_cpu"]
    policies = data_of(made_page([made_result(name) for name in names]))["policies"]

    colours = [policy["colour"] for policy in policies]
    assert colours == ["limit0", *(f"colour{number}" for number in range(8)), "limit1"]


def test_eight_policies_with_a_hundred_backends_stay_small() -> None:
    names = [f"policy {number}" for number in range(8)]
    page = made_page([made_result(name, backends=100, seconds=60) for name in names])

    assert len(page.encode()) < 2_000_000
    numbers = re.findall(r"-?\d+\.\d+", json.dumps(data_of(page)["charts"]))
    assert max(len(number.replace(".", "").strip("-0")) for number in numbers) <= 4


def test_a_long_story_has_no_more_points_than_can_be_seen() -> None:
    page = made_page([made_result(seconds=3601, backends=30)])

    assert "Every point sums up 7 seconds" in page
    for (panel,) in data_of(page)["charts"].values():
        assert panel["x"]["count"] == 515  # ⌈3601 / 7⌉
        assert {len(line["values"]) for line in panel["lines"]} == {515}


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(made_result(backends=1), id="one backend"),
        pytest.param(made_result(rate=0), id="no requests"),
        pytest.param(made_result(seconds=1), id="one second"),
        pytest.param(made_result(seconds=0), id="less than a second"),
    ],
)
def test_hardly_anything_is_a_page_too(result: Result) -> None:
    assert Outline(made_page([result])).open == []


def test_what_is_not_finite_is_left_out() -> None:
    result = made_result(seconds=3)
    series = replace(result.series, spread=(math.inf, math.nan, 1.5))

    charts = data_of(made_page([replace(result, series=series)]))["charts"]
    assert charts["spread-0"][0]["lines"][0]["values"] == [None, None, 1.5]


def test_the_command_repeats_the_run() -> None:
    results = [made_result(seed=seed) for seed in (4, 5)]

    page = Outline(made_page(results, scenario="my file.toml"))
    assert ("code", "evenly simulate 'my file.toml' --seed 4 --seeds 2") in page.text
    page = Outline(made_page(results, command="evenly simulate x --set a=1"))
    assert ("code", "evenly simulate x --set a=1") in page.text


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one result"):
        made_page([])


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "percent", "–"),
        (math.inf, "ratio", "–"),
        (1.0, "percent", "100%"),
        (0.99997, "percent", ">99.99%"),
        (0.00003, "percent", "<0.01%"),
        (0.125, "percent", "12.5%"),
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


def test_numbers_are_made_short() -> None:
    assert [short(one) for one in (0.123456, 123456.0, 2.0, 7, None, math.nan)] == [
        0.1235, 123500, 2, 7, None, None,
    ]  # fmt: skip
    assert mean_of([1, None, 3, None, None], 2) == [1.0, 3.0, None]
    assert worst_of([1.0, None, 3.0, 2.0, None], 2) == [1.0, 3.0, None]
    assert per([1, 2, 3], [2, 4, 0], 2) == [0.5, None]
    assert [points_step(seconds) for seconds in (0, 60, 600, 601, 86_400)] == [1, 1, 1, 2, 144]
