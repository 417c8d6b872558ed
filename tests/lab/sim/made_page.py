"""Plausible runs, and the page that is made of them, to look at without a browser."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from evenly.lab.sim.page import render_page
from evenly.lab.sim.result import Result, Row, Series


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
        measured=(min(5, seconds), seconds),
        has_recovered=True,
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
        "about": "400 client tasks, 20 backends",
        "scenario": "scenarios/antagonists.toml",
        "commit": "0123456789ab",
        "scenario_text": 'title = "Antagonists"\n',
        "command": "evenly simulate antagonists --seed 1",
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
