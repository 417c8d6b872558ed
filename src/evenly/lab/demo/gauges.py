"""Write what only the supervisor knows as a metrics page, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["GAUGES", "metrics_page"]

GAUGES: Final[Mapping[str, str]] = {
    "capacity": "Requests per second that all backends together can serve.",
    "capacity_now": "The same of those backends that are healthy now, and as slow as they are.",
    "load": "What clients are told to ask for, in units of the capacity.",
    "offered": "The same in requests per second.",
    "is_protected": "1 while throttles, shedding, quotas and the retry budget are on.",
    "is_wild": "1 while one customer runs wild.",
    "wasted": "Share of the live capacity that idles because the busiest backend is full.",
    "demo_cores": "Processors that the whole demo uses.",
}
"""The metrics by their names, without `evenly_demo_`, and what they mean."""


def metrics_page(gauges: Mapping[str, float]) -> str:
    """Return the page; a gauge that is not known yet is left out."""
    return "".join(
        f"# HELP evenly_demo_{name} {meaning}\n"
        f"# TYPE evenly_demo_{name} gauge\n"
        f"evenly_demo_{name} {float(gauges[name])!r}\n"
        for name, meaning in GAUGES.items()
        if name in gauges
    )
