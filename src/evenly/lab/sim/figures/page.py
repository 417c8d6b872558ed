"""Write the page of `evenly figures`: one file, which asks nobody for anything.

Every figure is four pictures, for wide and narrow, light and dark screens; the browser takes one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Final

from evenly.lab.sim.figures.canvas import Picture
from evenly.lab.sim.figures.model import Comparison
from evenly.lab.sim.figures.workers import DrawnFigure

__all__ = ["file_name", "render_page"]

_NARROW: Final = "(max-width: 40rem)"
_DARK: Final = "(prefers-color-scheme: dark)"
_INTRO: Final = (
    "Chapters 20 and 21 of Google’s SRE book explain load balancing and overload control with eight"
    " figures. These are the same figures from our own runs: the decisions are made by the code"
    " that ships, on a simulated clock. Beside each number is what the book says. Where ours is"
    " different, the note below says why."
)


def file_name(number: str, suffix: str) -> str:
    """Return the name of a figure's file."""
    return f"figure-{number}.{suffix}"


def render_page(drawn: Sequence[DrawnFigure], *, seed: int, commit: str, command: str) -> str:
    """Return the page; `command` gives the same figures again."""
    style = (
        resources.files("evenly.lab.sim.figures").joinpath("page.css").read_text(encoding="utf-8")
    )
    links = "".join(
        f'<li><a href="#{_anchor(each)}">{html.escape(each.figure.number)}</a>'
        f"<span>{html.escape(each.figure.title)}</span></li>"
        for each in drawn
    )
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            _rules(style),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
            "<title>The SRE book’s figures, from our own runs · evenly</title>",
            f"<style>{style}</style>\n</head>\n<body>",
            '<header><p class="kicker">evenly figures</p>',
            "<h1>The SRE book’s figures, from our own runs</h1>",
            f"<p>{_INTRO}</p>",
            f"<nav><ul>{links}</ul></nav></header>\n<main>",
            *(_section(each) for each in drawn),
            '<section><h2>Repeat it</h2><pre class="command">',
            f"<code>{html.escape(command)}</code></pre>",
            f"<p>At commit <code>{html.escape(commit)}</code>, with seed {seed}.",
            "The same seed gives the same numbers.</p></section>",
            "</main>\n</body>\n</html>\n",
        )
    )


def _rules(style: str) -> str:
    """Return the policy that lets in this style and pictures from within, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _section(drawn: DrawnFigure) -> str:
    figure, story = drawn.figure, drawn.story
    scenario = json.dumps(story.scenario, indent=2, ensure_ascii=False)
    png, numbers = (html.escape(file_name(figure.number, suffix)) for suffix in ("png", "json"))
    return "\n".join(
        (
            f'<section id="{_anchor(drawn)}">',
            f"<h2>Figure {html.escape(figure.number)}. {html.escape(figure.title)}</h2>",
            f"<p>{html.escape(story.caption)}</p>",
            _picture(drawn),
            _table(story.comparisons),
            f'<p class="note">{html.escape(story.note)}</p>',
            f'<p class="note">Files: <a href="{png}">{png}</a>,',
            f'<a href="{numbers}">{numbers}</a></p>',
            f"<details><summary>What was run</summary><pre>{html.escape(scenario)}</pre></details>",
            "</section>",
        )
    )


def _anchor(drawn: DrawnFigure) -> str:
    return html.escape(f"figure-{drawn.figure.number}")


def _picture(drawn: DrawnFigure) -> str:
    ours = "; ".join(f"{row.what}: {row.ours}" for row in drawn.story.comparisons)
    alt = html.escape(f"{drawn.figure.title}. {ours}.")
    return (
        f"<picture>{''.join(_sources(drawn))}"
        f'<img alt="{alt}" {_image(drawn, Picture("wide", "light"), "src")}></picture>'
    )


def _sources(drawn: DrawnFigure) -> Iterator[str]:
    for picture, media in (
        (Picture("narrow", "dark"), f"{_NARROW} and {_DARK}"),
        (Picture("narrow", "light"), _NARROW),
        (Picture("wide", "dark"), _DARK),
    ):
        yield f'<source media="{media}" {_image(drawn, picture, "srcset")}>'


def _image(drawn: DrawnFigure, picture: Picture, attribute: str) -> str:
    png = drawn.pictures[picture]
    # The first chunk of a PNG holds its size: the browser keeps its place while it decodes.
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    data = base64.b64encode(png).decode()
    return f'{attribute}="data:image/png;base64,{data}" width="{width}" height="{height}"'


def _table(comparisons: Sequence[Comparison]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(row.what)}</th><td>{html.escape(row.book)}</td>'
        f"<td>{html.escape(row.ours)}</td></tr>"
        for row in comparisons
    )
    return (
        '<table><thead><tr><th scope="col">What</th><th scope="col">The book</th>'
        f'<th scope="col">Ours</th></tr></thead><tbody>{rows}</tbody></table>'
    )
