"""Pages as an end point would write them, and two of them as one sight."""

from __future__ import annotations

from evenly.lab.top.rates import Sight
from evenly.lab.top.read import Page, read_page


def page(**values: float) -> Page:
    """Return the page of the service `search` with these series; keys may have labels.

    `page(**{'backend_rejected_total{reason="overloaded"}': 3})`
    """
    return read_page(text(**values))


def text(**values: float) -> bytes:
    lines = []
    for key, value in values.items():
        name, _, labels = key.partition("{")
        labels = labels.removesuffix("}")
        both = f'service="search",{labels}' if labels else 'service="search"'
        lines.append(f"evenly_{name}{{{both}}} {value}\n")
    return "".join(lines).encode()


def sight(
    now: Page | None,
    before: Page | None = None,
    *,
    instance: str = "a:1",
    seconds: float | None = 2.0,
    problem: str | None = None,
) -> Sight:
    """Return a sight of two pages that lie 2 s apart."""
    return Sight(
        url=f"http://{instance}/metrics",
        instance=instance,
        page=now,
        before=before,
        seconds=None if before is None or now is None else seconds,
        problem=problem,
    )
