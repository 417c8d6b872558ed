"""Put the charts of the page in order: which figures, with which panels, for every load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from evenly.sim.page.measures import CPU, LOADS, Figure, Measure, figures_of
from evenly.sim.page.panels import LOAD_FIGURES, Panel, cpu_panel, load_panel, measure_panel
from evenly.sim.page.scenes import Scene, is_limit

__all__ = ["Chart", "charts_json", "charts_of", "colour_of"]

# The style sheet has so many; the two limits have colours of their own.
_COLOURS: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Be one place on the page; what is drawn there depends on the load that was selected."""

    key: str
    title: str
    panels: tuple[Panel | None, ...]
    """One for each load, or one for all; `None` where a policy did not run."""


def charts_of(
    scenes: Sequence[Scene], policies: Sequence[str]
) -> Iterator[tuple[Figure, list[Chart]]]:
    """Yield the figures from the top of the page to its end, each with its charts."""
    if len(scenes) > 1:
        yield (
            LOADS,
            [
                Chart(
                    key=f"{LOADS.key}-{name}",
                    title=title,
                    panels=(load_panel(scenes, name, unit, policies),),
                )
                for name, title, unit in LOAD_FIGURES
            ],
        )
    yield (
        CPU,
        [
            Chart(
                key=f"{CPU.key}-{index}",
                title=policy,
                panels=tuple(cpu_panel(scene, policy, index) for scene in scenes),
            )
            for index, policy in enumerate(policies)
        ],
    )
    for figure in figures_of([one.series for scene in scenes for one in scene.drawn.values()]):
        yield (
            figure,
            [
                _chart(f"{figure.key}-{place}", measure, scenes, policies)
                for place, measure in enumerate(figure.measures)
            ],
        )


def charts_json(charts: Sequence[Chart], policies: Sequence[str]) -> str:
    """Return what `page.js` draws, in a form that can stand inside a script element.

    Every `<` is written as an escape, so that no string in it can end the element or begin a
    comment; and it is ASCII, so that no line separator of Unicode is in it.
    """
    document = {
        "policies": [{"name": name, "colour": colour_of(name, policies)} for name in policies],
        "charts": {
            chart.key: [panel and panel.drawing for panel in chart.panels] for chart in charts
        },
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def colour_of(policy: str, policies: Sequence[str]) -> str:
    """Return the class of a policy's colour; limits are in the colour of the text, or grey."""
    peers = [name for name in policies if is_limit(name) == is_limit(policy)]
    place = peers.index(policy)
    return f"limit{place % 2}" if is_limit(policy) else f"colour{place % _COLOURS}"


def _chart(key: str, measure: Measure, scenes: Sequence[Scene], policies: Sequence[str]) -> Chart:
    panels = tuple(measure_panel(scene, measure, policies) for scene in scenes)
    return Chart(key=key, title=measure.title, panels=panels)
