"""The Grafana dashboard is sound, and asks for nothing that is not exported and documented."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from evenly.core.backend_task import BackendTask, BackendTaskConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.quota import QuotaConfig
from evenly.core.request import Request
from evenly.lab.demo.gauges import GAUGES
from evenly.observe.prometheus import PrometheusObserver
from evenly.testing import ManualClock

DOCS = Path(__file__).parents[1] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "evenly.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
CHARTS = [panel for panel in PANELS if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in CHARTS for target in panel["targets"]]
QUERIES = [
    variable["query"]["query"]
    for variable in DASHBOARD["templating"]["list"]
    if variable["type"] == "query"
]
# Prometheus adds `instance`; the demo's facts need no other label of the kind.
OWN_LABELS = {"instance"}

Series = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def exported() -> Series:
    """Return the labels of each metric that an observer exports, with their values."""
    registry, clock = CollectorRegistry(), ManualClock()
    observer = PrometheusObserver(service="search", customers=["shop"], registry=registry)
    client = ClientTask(ClientTaskConfig(), clock=clock, rng=random.Random(1), observer=observer)
    quota = QuotaConfig(limits={"shop": 1.0}, default_limit=1.0)
    backend = BackendTask(
        BackendTaskConfig(quota=quota),
        clock=clock,
        rng=random.Random(1),
        boot=1,
        observer=observer,
    )
    backend.admit(Request(customer="shop"))
    backend.record_signal("cpu", 0.5)
    observer.watch_client(client)
    observer.watch_backend(backend)
    found: Series = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def selectors(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the metrics that an expression reads, each with its label matchers."""
    for name, inside in re.findall(r"(evenly_\w+)(?:\{(.*?)\})?", expression):
        yield name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"(.*?)"', inside)


def test_there_is_a_panel_for_each_of_the_demo_s_facts() -> None:
    titles = " ".join(panel["title"].lower() for panel in CHARTS)

    for fact in (
        "goodput", "by criticality", "by where", "utilization per backend", "spread", "latency",
        "active requests", "attempts", "retry ratio", "lame ducks", "states",
        "throttle probability", "customers that clients throttle", "who is refused now",
        "cost per customer", "quota",
    ):  # fmt: skip
        assert fact in titles


def test_the_retry_ratio_is_only_coloured_beyond_what_the_budget_allows() -> None:
    (panel,) = [panel for panel in CHARTS if panel["title"] == "Retry ratio"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]

    assert [(step["color"], step["value"]) for step in steps] == [
        ("green", None), ("orange", 0.12), ("red", 0.2),
    ]  # fmt: skip


def test_who_is_refused_now_has_a_band_for_each_criticality() -> None:
    (panel,) = [panel for panel in CHARTS if panel["title"] == "Who is refused now"]
    defaults = panel["fieldConfig"]["defaults"]
    feet = [step["value"] for step in defaults["thresholds"]["steps"]]

    assert (defaults["min"], feet, defaults["max"]) == (0, [None, 1, 2, 3], len(Criticality))
    assert [re.findall(r"evenly_\w+", target["expr"]) for target in panel["targets"]] == [
        ["evenly_backend_cut"], ["evenly_client_line"],
    ]  # fmt: skip


def test_the_demo_s_own_metrics_are_documented() -> None:
    rows = re.findall(r"^\| `evenly_demo_(\w+)` \|", (DOCS / "top.md").read_text(), re.MULTILINE)

    assert rows == [*GAUGES]


def test_ids_and_titles_are_unique() -> None:
    for key in ("id", "title"):
        values = [panel[key] for panel in PANELS]
        assert len(set(values)) == len(values)


def test_panels_stand_side_by_side() -> None:
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in combinations(PANELS, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, f"{one['title']} and {other['title']} overlap"


@pytest.mark.parametrize("panel", CHARTS, ids=lambda panel: str(panel["title"]))
def test_a_panel_says_what_is_good_and_lets_the_source_be_chosen(panel: dict[str, Any]) -> None:
    assert re.fullmatch(r"Good: [^.]+(\.\d[^.]*)*\.", panel["description"])  # One sentence.
    assert {panel["datasource"]["uid"]} == {"${datasource}"}
    assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


def test_variables() -> None:
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == [
        "datasource", "service", "instance",
    ]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_is_filtered_and_closed(expression: str) -> None:
    for _, matchers in selectors(expression):
        assert matchers[:2] == [("service", "=~", "$service"), ("instance", "=~", "$instance")]
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)
    assert expression.count("rate(") == expression.count("[$__rate_interval]")


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *QUERIES])
def test_every_metric_and_label_is_exported(expression: str, exported: Series) -> None:
    used = list(selectors(expression))
    assert used
    for name, matchers in used:
        assert name in exported
        labels = exported[name]
        for label, operator, value in matchers:
            assert label in labels.keys() | OWN_LABELS, f"{name} has no label {label}"
            if not value.startswith("$"):
                wanted = value.split("|") if "~" in operator else [value]
                assert set(wanted) <= labels[label], f"{name} never has {label}={value}"
        # Counters are for rates, and nothing else is.
        is_counter = name.endswith(("_total", "_bucket", "_count"))
        if expression in EXPRESSIONS:
            assert is_counter == (f"rate({name}" in expression), name
    both = set.intersection(*(set(exported[name]) for name, _ in used)) | OWN_LABELS
    for grouped in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
        assert set(grouped.split(", ")) <= both, f"{grouped} is not a label of all"


@pytest.mark.parametrize("panel", CHARTS, ids=lambda panel: str(panel["title"]))
def test_legends_name_labels_that_are_left(panel: dict[str, Any], exported: Series) -> None:
    for target in panel["targets"]:
        expression = target["expr"]
        groups = re.findall(r"\bby \((.*?)\)", expression)
        (name, _), *_ = selectors(expression)
        left = set(groups[0].split(", ")) if groups else set(exported[name]) | OWN_LABELS
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *QUERIES])
def test_every_metric_is_documented_with_its_labels(expression: str) -> None:
    rows = re.findall(
        r"^\| `(evenly_\w+)` \| (\w+) \| (.*?) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    documented = {
        name: set(re.findall(r"`(\w+)`", labels)) | {"service"} | OWN_LABELS
        for name, _, labels in rows
    }
    for name, matchers in selectors(expression):
        family = re.sub(r"_(bucket|count)$", "", name)
        assert {label for label, _, _ in matchers} <= documented[family]
