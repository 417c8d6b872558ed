"""The page of `evenly simulate --html`, without a browser: what is in it, and what is not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest

from evenly.errors import UsageError
from evenly.lab.sim.result import Result
from tests.lab.sim.made_page import Outline, data_of, made_page, made_result

HOSTILE = "</script><!--<script>alert(\"1\")</script><img src=x onerror='alert(2)'>&amp;\u2028"


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


def test_the_script_writes_text_only() -> None:
    script = made_page([made_result()]).split("<script>")[1].split("</script>")[0]

    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "fetch(", "import("):
        assert word not in script


def test_hostile_strings_stay_text() -> None:
    results = [made_result(HOSTILE, violations=(HOSTILE,)), made_result("other", seed=2)]
    results[0] = replace(
        results[0], series=replace(results[0].series, success_by_customer={HOSTILE: 0.5})
    )
    names = ("title", "about", "scenario", "commit", "scenario_text", "command")
    page = made_page(results, **dict.fromkeys(names, HOSTILE))
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


def test_no_violation_is_one_calm_sentence_and_each_violation_is_named_in_red() -> None:
    bad = made_result("random", load=1.2, seed=3, violations=("lost a request", "lost another"))

    assert "Every invariant held in every run." in made_page([made_result()])
    page = made_page([made_result(), bad])
    assert "Every invariant held" not in page
    assert '<section class="violations"' in page
    assert "2 violations random , load 1.2, seed 3: lost a request random" in Outline(page).words()
    assert '<td class="bad">2</td>' in page


def test_eight_policies_with_a_hundred_backends_stay_small() -> None:
    names = [f"policy {number}" for number in range(8)]
    page = made_page([made_result(name, backends=100, seconds=60) for name in names])

    assert len(page.encode()) < 2_000_000
    numbers = re.findall(r"\d+\.\d+", json.dumps(data_of(page)["charts"]))
    for number in numbers:
        most = 6 if 0.99 <= float(number) < 1.0 else 4
        assert len(number.replace(".", "").strip("0")) <= most


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


def test_it_says_what_ran_and_how_to_repeat_it() -> None:
    page = made_page(
        [made_result()], about="4 client tasks, 2 backends", command="evenly simulate x --set a=1"
    )
    outline = Outline(page)

    assert ("p", "4 client tasks, 2 backends") in outline.text
    assert ("code", "evenly simulate x --set a=1") in outline.text
    assert ("summary", "The scenario, scenarios/antagonists.toml") in outline.text


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one result"):
        made_page([])
