"""Make files of figures: a picture and its numbers for each, and one page with all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from evenly.lab.sim.figures.canvas import Picture
from evenly.lab.sim.figures.page import file_name, render_page
from evenly.lab.sim.figures.workers import DrawnFigure

__all__ = ["PAGE", "figure_files", "figure_json"]

PAGE: Final = "index.html"


def figure_files(
    drawn: Sequence[DrawnFigure], *, seed: int, commit: str, command: str
) -> dict[str, bytes]:
    """Return what to write under which name, the page that needs nothing else last."""
    files = {}
    for each in drawn:
        number = each.figure.number
        files[file_name(number, "png")] = each.pictures[Picture("wide", "light")]
        files[file_name(number, "json")] = figure_json(each, seed=seed, commit=commit).encode()
    files[PAGE] = render_page(drawn, seed=seed, commit=commit, command=command).encode()
    return files


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
