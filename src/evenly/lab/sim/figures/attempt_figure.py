"""Tell and draw figure 21-1."""

from __future__ import annotations

from functools import partial
from typing import Final

from matplotlib.ticker import MultipleLocator

from evenly.lab.sim.figures.attempt_histograms import PERCENTS, WINDOW, Situation, run_situation
from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story

__all__ = ["FIGURE_21_1"]


def _tell(results: Results) -> Story:
    situations = _situations(results)
    worst = situations[-1]
    return Story(
        caption=(
            "What one backend sees while some of 100 backends reject everything: how many of the"
            " requests in its window are first attempts, second and third ones. Many retries mean"
            " that other backends reject too, and then retrying is pointless. Diamonds are what the"
            " arithmetic expects; above each panel is what the backend answers when it must reject."
        ),
        comparisons=(
            *(
                Comparison(
                    what=f"{each.percent} % of the backends reject: attempts 1, 2, 3",
                    book=f"{_joined(each.expected)} by its rules",
                    ours=f"{_joined(each.counts)}: “{each.answer}”",
                )
                for each in situations
            ),
            Comparison(
                what="Growth where all reject: attempts per request",
                book="three attempts: “just below 3X”",
                ours=f"{worst.attempts_per_request:.2f}×; with the histograms’ answers obeyed:"
                f" {worst.obeyed_attempts_per_request:.2f}×",
            ),
        ),
        note=(
            "The book’s picture and its numbers are not in its text. Its column here is the"
            " arithmetic of its rules: where a fraction f rejects, 1,000 first attempts, 1,000 f"
            " second and 1,000 f² third ones. The book does not say how many retries are"
            " “significant”; evenly’s limit is 5 % of the arrivals. evenly’s retries avoid the"
            " backend that refused, where the book’s go anywhere: a backend that is the only one to"
            " reject never sees its own retries again."
        ),
        scenario={
            "backends": 100,
            "percents_rejecting": list(PERCENTS),
            "window_first_attempts": WINDOW,
            "retry_attempts": 3,
            "retry_budget": None,
            "policy": "random",
            "throttle": "off",
        },
        numbers={f"{each.percent} %": _numbers(each) for each in situations},
    )


def _numbers(each: Situation) -> dict[str, object]:
    return {
        "counts": each.counts,
        "expected": each.expected,
        "retries_ratio": each.retries_ratio,
        "answer": each.answer,
        "attempts_per_request": each.attempts_per_request,
        "attempts_per_request_where_obeyed": each.obeyed_attempts_per_request,
    }


def _joined(counts: tuple[float, ...]) -> str:
    return " / ".join(f"{count:,.0f}" for count in counts)


def _situations(results: Results) -> list[Situation]:
    return [results[_job(percent)] for percent in PERCENTS]


def _job(percent: int) -> str:
    return f"{percent} % of backends reject"


def _draw(canvas: Canvas, results: Results) -> None:
    theme = canvas.theme
    panels = canvas.panels(len(PERCENTS), columns=3)
    for axes, each in zip(panels, _situations(results), strict=True):
        color = theme.red if each.is_widespread else theme.blue
        hatch = "////" if each.is_widespread else ""
        numbers = (1, 2, 3)
        axes.bar(
            numbers, each.counts, width=0.62, color=color, hatch=hatch, edgecolor=theme.paper, lw=0
        )
        axes.plot(
            numbers,
            each.expected,
            "D",
            ms=5,
            mfc="none",
            mec=theme.ink,
            mew=1.1,
            ls="none",
            label="expected",
        )
        for number, count, rule in zip(numbers, each.counts, each.expected, strict=True):
            top = max(count, rule) + 55
            canvas.write(axes, number, top, f"{count:,}", va="bottom", ha="center", where="data")
        axes.set_ylim(0, 1350)
        axes.set_xticks(numbers)
        axes.yaxis.set_major_locator(MultipleLocator(500))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        answer = each.answer.replace("; ", ";\n") if canvas.is_narrow else each.answer
        canvas.title(axes, f"{each.percent} % reject", f"“{answer}”")
    for axes in panels[-2 if canvas.is_narrow else -3 :]:
        canvas.label(axes, x="attempt")
    for axes in panels[:: 2 if canvas.is_narrow else 3]:
        canvas.label(axes, x=axes.get_xlabel(), y="requests")
    canvas.legend(panels[0], place="upper right")


FIGURE_21_1: Final = BookFigure(
    number="21-1",
    title="Histograms of attempts in various conditions",
    jobs={
        _job(percent): Job(run=partial(run_situation, percent=percent), seconds=2.0)
        for percent in PERCENTS
    },
    tell=_tell,
    draw=_draw,
    height=5.4,
    narrow_height=7.2,
)
