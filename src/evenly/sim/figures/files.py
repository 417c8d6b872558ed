"""Write figures to a folder: a picture and its numbers for each, and one page with all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from evenly.sim.figures.canvas import Picture
from evenly.sim.figures.page import file_name, render_page
from evenly.sim.figures.workers import DrawnFigure

__all__ = ["PAGE", "figure_json", "write_figures"]

PAGE: Final = "index.html"


def write_figures(
    folder: Path, drawn: Sequence[DrawnFigure], *, seed: int, commit: str, command: str
) -> None:
    """Write everything; raises `OSError` where that cannot be done."""
    for each in drawn:
        number = each.figure.number
        png = each.pictures[Picture("wide", "light")]
        (folder / file_name(number, "png")).write_bytes(png)
        text = figure_json(each, seed=seed, commit=commit)
        (folder / file_name(number, "json")).write_text(text, encoding="utf-8")
    page = render_page(drawn, seed=seed, commit=commit, command=command)
    (folder / PAGE).write_text(page, encoding="utf-8")


def figure_json(drawn: DrawnFigure, *, seed: int, commit: str) -> str:
    """Return a figure's numbers, with what the book says beside them."""
    figure, story = drawn.figure, drawn.story
    document = {
        "figure": figure.number,
        "title": figure.title,
        "seed": seed,
        "commit": commit,
        "comparisons": [asdict(row) for row in story.comparisons],
        "note": story.note,
        "scenario": story.scenario,
        "numbers": story.numbers,
    }
    return _compact(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def _compact(text: str) -> str:
    """Put every list of numbers on one line: one number on each makes thousands of lines."""
    numbers = r"\[\s+[-+.e\d]+(?:,\s+[-+.e\d]+)*\s+\]"
    return re.sub(numbers, lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text)
