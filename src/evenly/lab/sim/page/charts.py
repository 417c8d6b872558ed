"""Put the charts of the page in order: which figures, with which panels, for every load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from evenly.lab.sim.page.measures import CPU, LOADS, Figure, Measure, figures_of
from evenly.lab.sim.page.panels import LOAD_FIGURES, Panel, cpu_panel, load_panel, measure_panel
from evenly.lab.sim.page.scenes import Scene, is_omniscient

__all__ = ["Chart", "charts_json", "charts_of", "look_of"]

# The style sheet has so many; the two omniscient ones have looks of their own.  As the numbers have
# no divisor in common, 56 policies look different.
_COLOURS: Final = 8
_DASHES: Final = 7


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
                    key=f"{LOADS.key}-{place}",
                    title=figure.title,
                    panels=(load_panel(scenes, figure, policies),),
                )
                for place, figure in enumerate(LOAD_FIGURES)
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
    for over_time in figures_of([one.series for scene in scenes for one in scene.drawn.values()]):
        yield (
            over_time,
            [
                _chart(f"{over_time.key}-{place}", measure, scenes, policies)
                for place, measure in enumerate(over_time.measures)
            ],
        )


def charts_json(charts: Sequence[Chart], policies: Sequence[str]) -> str:
    """Return what `page.js` draws, in a form that can stand inside a script element.

    Every `<` is written as an escape, so that no string in it can end the element or begin a
    comment; and it is ASCII, so that no line separator of Unicode is in it.
    """
    document = {
        "policies": [{"name": name, "look": look_of(name, policies)} for name in policies],
        "charts": {
            chart.key: [panel and panel.drawing for panel in chart.panels] for chart in charts
        },
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def look_of(policy: str, policies: Sequence[str]) -> str:
    """Return the classes of a policy's colour and dashes: nobody has to tell colours apart.

    Those that are omniscient are dotted, in the colour of the text, or grey.
    """
    peers = [name for name in policies if is_omniscient(name) == is_omniscient(policy)]
    place = peers.index(policy)
    if is_omniscient(policy):
        return f"limit{place % 2}"
    return f"colour{place % _COLOURS} dash{place % _DASHES}"


def _chart(key: str, measure: Measure, scenes: Sequence[Scene], policies: Sequence[str]) -> Chart:
    panels = tuple(measure_panel(scene, measure, policies) for scene in scenes)
    return Chart(key=key, title=measure.title, panels=panels)
