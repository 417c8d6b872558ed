"""Run the jobs of figures in processes of their own, and draw each figure when its jobs are done.

A job is deterministic by its seed, so jobs can run anywhere and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, final

from evenly.lab.sim.figures.canvas import PICTURES, Canvas, Picture
from evenly.lab.sim.figures.model import BookFigure, Results, Story
from evenly.lab.sim.workers import Workers, workers

__all__ = ["DrawnFigure", "Progress", "draw_figure", "produce"]

P = ParamSpec("P")
T = TypeVar("T")

Progress: TypeAlias = Callable[[str, float], None]
"""Is told what is done, and which fraction of everything that makes."""

# To draw a figure takes about so long: four pictures.
_DRAW_SECONDS = 1.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFigure:
    """Be a figure that is done."""

    figure: BookFigure
    story: Story
    pictures: Mapping[Picture, bytes]


def draw_figure(figure: BookFigure, results: Results) -> DrawnFigure:
    """Tell and draw one figure from what its jobs returned."""
    pictures = {}
    for picture in PICTURES:
        is_wide = picture.shape == "wide"
        canvas = Canvas(picture, height=figure.height if is_wide else figure.narrow_height)
        figure.draw(canvas, results)
        pictures[picture] = canvas.png()
    return DrawnFigure(figure=figure, story=figure.tell(results), pictures=pictures)


def produce(
    figures: Sequence[BookFigure], *, seed: int, processes: int, progress: Progress
) -> list[DrawnFigure]:
    """Return the figures, drawn, in the order in which they were given."""
    if processes == 1:
        return _Production(figures, seed, progress).run(_Here(), 1)
    with workers(processes) as pool:
        return _Production(figures, seed, progress).run(pool, processes)


@final
class _Production:
    """Know what is to be done still, and what becomes possible when something is done."""

    def __init__(self, figures: Sequence[BookFigure], seed: int, progress: Progress) -> None:
        self._figures = figures
        self._progress = progress
        jobs = {name: job for figure in figures for name, job in figure.jobs.items()}
        self._seconds = {name: job.seconds for name, job in jobs.items()}
        self._seconds |= {_drawing(figure): _DRAW_SECONDS for figure in figures}
        # A long job that starts last would keep one CPU busy alone.
        order = sorted(jobs, key=lambda name: -jobs[name].seconds)
        self._queue: dict[str, Callable[[], object]] = {
            name: partial(jobs[name].run, seed) for name in order
        }
        self._undrawn = list(figures)
        self._results: dict[str, Any] = {}

    def run(self, workers: Workers | _Here, slots: int) -> list[DrawnFigure]:
        """Do everything, so many things at a time."""
        running: dict[Future[Any], str] = {}
        while self._queue or running:
            while self._queue and len(running) < slots:
                name = next(iter(self._queue))
                running[workers.submit(self._queue.pop(name))] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                self._finish(running.pop(future), future)
        return [self._results[_drawing(figure)] for figure in self._figures]

    def _finish(self, name: str, future: Future[Any]) -> None:
        try:
            self._results[name] = future.result()
        except BrokenProcessPool:
            raise  # It breaks everything alike, and does not say what was at fault.
        except Exception as error:
            error.add_note(f"while working on {name}")
            raise
        for figure in [each for each in self._undrawn if each.jobs.keys() <= self._results.keys()]:
            self._undrawn.remove(figure)
            results = {job: self._results[job] for job in figure.jobs}
            # First in the queue: it is what somebody waits for.
            self._queue = {_drawing(figure): partial(draw_figure, figure, results), **self._queue}
        done = sum(self._seconds[name] for name in self._results)
        self._progress(name, done / sum(self._seconds.values()))


def _drawing(figure: BookFigure) -> str:
    return f"figure {figure.number}"


@final
class _Here:
    """Do what is submitted at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return a future that is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  Whoever asks for the result gets it.
            future.set_exception(error)
        return future
