"""Write the page of `evenly simulate --html`: one file, which asks nobody for anything.

The figures are HTML, so that they can be read without a script; `page.js` draws the charts from
JSON in the page.  A content security policy lets only this script and this style in, by their
hashes: whatever a scenario's title or a file name holds, it stays text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

from evenly.errors import UsageError
from evenly.lab.sim.page.charts import Chart, charts_json, charts_of, look_of
from evenly.lab.sim.page.measures import Figure
from evenly.lab.sim.page.panels import Panel
from evenly.lab.sim.page.scenes import Scene, label_of, policies_of, scenes_of, seeds_of
from evenly.lab.sim.page.table import scene_tables, violations
from evenly.lab.sim.page.units import escaped
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import OMNISCIENT

__all__ = ["render_page"]

_ABOUT_OMNISCIENT: Final = (
    f"{OMNISCIENT} is the limit of latency below capacity only; it neither throttles nor retries, "
    "and does not even out CPU: under overload, and for CPU, it is no limit.  Beside other "
    "policies it is left out of the charts of CPU spread and of wasted capacity."
)


def render_page(
    *,
    title: str,
    about: str,
    scenario: str,
    commit: str,
    results: Sequence[Result],
    scenario_text: str,
    command: str,
) -> str:
    """Return the page of one scenario's results.

    `about` is the story in numbers, `scenario` the path of its file, as it was given, `commit` the
    code that ran it, and `command` what gives the same figures again.
    """
    if not results:
        raise UsageError("a page needs at least one result")
    scenes = scenes_of(results)
    policies = policies_of(results)
    seeds = seeds_of(results)
    figures = list(charts_of(scenes, policies))
    charts = [chart for _, charts in figures for chart in charts]
    style = _resource("page.css")
    script = _resource("page.js")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            _rules(style, script),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
            f"<title>{escaped(title)} · evenly simulate</title>",
            f"<style>{style}</style>\n</head>\n<body>",
            _header(title, about, results),
            _controls(scenes, policies),
            "<main>",
            *(
                f'<section data-load="{place}">{scene_tables(scene, seeds)}</section>'
                for place, scene in enumerate(scenes)
            ),
            _repeat(command, commit, scenario, scenario_text),
            _how_to_read(scenes, seeds, policies),
            *(_figure(figure, charts, scenes) for figure, charts in figures),
            "</main>",
            f'<script type="application/json" id="data">{charts_json(charts, policies)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def _resource(name: str) -> str:
    return resources.files("evenly.lab.sim.page").joinpath(name).read_text(encoding="utf-8")


def _rules(style: str, script: str) -> str:
    def allowed(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    rules = (
        f"default-src 'none'; style-src {allowed(style)}; script-src {allowed(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _header(title: str, about: str, results: Sequence[Result]) -> str:
    return (
        f'<header><p class="kicker">evenly simulate</p><h1>{escaped(title)}</h1>'
        f"<p>{escaped(about)}</p>{violations(results)}</header>"
    )


def _controls(scenes: Sequence[Scene], policies: Sequence[str]) -> str:
    """Return the bar that stays in sight: the legend, and the load if there are several."""
    options = "".join(
        f'<option value="{place}">{scene.load:g} × capacity</option>'
        for place, scene in enumerate(scenes)
    )
    select = (
        f'<label class="load">Load <select id="load" autocomplete="off">{options}</select></label>'
    )
    boxes = "".join(
        f'<label><input type="checkbox" checked autocomplete="off" data-policy="{place}">'
        f'<svg class="swatch {look_of(policy, policies)}" aria-hidden="true">'
        f'<path class="line" d="M0 3h36"/></svg>{escaped(policy)} {label_of(policy)}</label>'
        for place, policy in enumerate(policies)
    )
    return (
        f'<div class="controls">{select if len(scenes) > 1 else ""}'
        f'<fieldset><legend class="unseen">Policies shown</legend>{boxes}</fieldset></div>'
    )


def _repeat(command: str, commit: str, scenario: str, scenario_text: str) -> str:
    return (
        f'<section class="repeat"><h2>Repeat it</h2><pre class="command"><code>{escaped(command)}'
        f"</code></pre><p>At commit <code>{escaped(commit or 'unknown')}</code>, with the scenario "
        "below; the same seed gives the same figures, but for the CPU time spent.</p>"
        f"<details><summary>The scenario, {escaped(scenario)}</summary>"
        f'<pre tabindex="0"><code>{escaped(scenario_text)}</code></pre></details></section>'
    )


def _how_to_read(scenes: Sequence[Scene], seeds: Sequence[int], policies: Sequence[str]) -> str:
    step = max(scene.step for scene in scenes)
    notes = [
        "Point at a chart for its values, or move to it with the Tab key and use the arrow keys."
    ]
    if len(seeds) > 1:
        notes.append(f"The charts show seed {seeds[0]}, the first of {len(seeds)}.")
    if step > 1:
        notes.append(f"Every point sums up {step} seconds; of latencies it is the worst second.")
    if not all(scene.is_measured_whole for scene in scenes):
        notes.append(
            "What is shaded is not measured: the words under each chart leave it out, and so does "
            "the table, but for recovery."
        )
    if OMNISCIENT in policies:
        notes.append(_ABOUT_OMNISCIENT)
    return (
        f'<section class="notes"><h2>Charts</h2><p>{" ".join(notes)}</p>'
        '<noscript><p class="violations">The charts need JavaScript; the tables and the words '
        "under each chart do not.</p></noscript></section>"
    )


def _figure(figure: Figure, charts: Sequence[Chart], scenes: Sequence[Scene]) -> str:
    panels = "".join(_chart(chart, scenes) for chart in charts)
    return (
        f'<section class="figure" data-panels="{len(charts)}" aria-labelledby="{figure.key}">'
        f'<h2 id="{figure.key}">{figure.title}</h2>'
        f'<p class="good"><strong>Good:</strong> {escaped(figure.good)}'
        f"{f'<br>{escaped(figure.key_to_lines)}' if figure.key_to_lines else ''}</p>"
        f'<div class="panels">{panels}</div></section>'
    )


def _chart(chart: Chart, scenes: Sequence[Scene]) -> str:
    if len(chart.panels) == 1:
        words = f'<p class="words">{_words(chart.panels[0])}</p>'
    else:
        words = "".join(
            f'<p class="words" data-load="{place}">At load {scene.load:g}: {_words(panel)}</p>'
            for place, (scene, panel) in enumerate(zip(scenes, chart.panels, strict=True))
        )
    return (
        f'<div class="panel" data-chart="{chart.key}"><h3>{escaped(chart.title)}</h3>'
        f'<div class="plot"></div><details><summary>In words</summary>{words}</details></div>'
    )


def _words(panel: Panel | None) -> str:
    return escaped(panel.words) if panel is not None else "this policy did not run."
