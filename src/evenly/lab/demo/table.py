"""Show a running fleet in the terminal: a table that stays in its place, or lines for a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evenly.lab.demo.totals import CRITICALITIES, REASONS

__all__ = ["Show", "describe", "draw", "showing"]

Frame = Mapping[str, Any]

_BAR_WIDTH: Final = 10
_LINE_SECONDS: Final = 3.0
_STYLES: Final = {"healthy": "green", "lame duck": "yellow", "starting": "cyan"}
_WHERE: Final = {
    "throttled": "throttled in the client",
    "shed": "shed by backends",
    "quota": "out of quota",
    "no_backend": "no backend",
}


class Show(Protocol):
    """Be told what happens, and show it."""

    def part(self, name: str, text: str) -> None:
        """Show that another part of the play has begun."""

    def frame(self, frame: Frame) -> None:
        """Show how the fleet is."""


@contextmanager
def showing(console: Console) -> Iterator[Show]:
    """Give a table that stays in its place, or lines where there is no terminal."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    try:
        with Live(console=console, transient=True, auto_refresh=False) as live:
            yield _Table(live)
    finally:
        console.show_cursor()  # Ctrl-C while it is set up would leave the cursor hidden.


def describe(frame: Frame, part: str) -> str:
    """Return a frame as one line."""
    rates, backends = frame["rates"], frame["backends"]
    healthy = sum(backend["state"] == "healthy" for backend in backends)
    return (
        f"{frame['t']:5.0f} s  {part or 'running'}: {_numbers(rates)} per second,"
        f" {_milliseconds(frame, 'p50')} / {_milliseconds(frame, 'p99')} p50 / p99,"
        f" {healthy} of {len(backends)} backends healthy"
    )


def _numbers(rates: Mapping[str, float]) -> str:
    names = ("asked", "ok", "failed", "refused")
    return ", ".join(f"{name} {rates[name]:.0f}" for name in names)


def draw(frame: Frame, part: str, text: str = "") -> RenderableType:
    """Return a frame as tables: backends, rates, and who is refused where."""
    heading = Text(f"{frame['t']:.0f} s  ", style="dim")
    heading.append(part or "running", style="bold")
    if text:
        heading.append(f"  {text}")
    return Group(heading, "", _backends(frame), "", _rates(frame), "", _refused(frame))


def _table() -> Table:
    # Without lines: everything fits 24 lines of 80 columns.
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _backends(frame: Frame) -> Table:
    table = _table()
    table.add_column("backend", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    table.add_column("utilization", no_wrap=True)
    for name in ("speed", "active", "waiting", "weight", "ok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for backend in frame["backends"]:
        state, faults = backend["state"], backend.get("faults", ())
        # A state that says nothing new is left out: it is "slow", or "stopped", not both.
        states = () if state == "healthy" and faults else (state,)
        shown = ", ".join(dict.fromkeys((*states, *faults)))
        style = "red" if faults else _STYLES.get(state, "red")
        table.add_row(
            Text(backend["name"]),
            Text(shown, style=style),
            _bar(backend["utilization"]),
            f"{backend['speed']:g}",
            _whole(backend["active"]),
            _whole(backend["waiting"]),
            "–" if backend["weight"] is None else f"{backend['weight']:.1%}",
            _whole(backend["ok"]),
        )
    return table


def _rates(frame: Frame) -> Table:
    table = _table()
    names = ("asked", "ok", "failed", "refused", "retries")
    for name in (*(f"{name}/s" for name in names), "p50", "p99", "capacity", "CPUs"):
        table.add_column(name, justify="right", no_wrap=True)
    cores = frame.get("demo_cores")
    rates = frame["rates"]
    table.add_row(
        *(
            Text(_whole(rates[name]), style="red" if name == "failed" and rates[name] else "")
            for name in names
        ),
        _milliseconds(frame, "p50"),
        _milliseconds(frame, "p99"),
        _whole(frame["capacity"]),
        "–" if cores is None else f"{cores:.2f}",
    )
    return table


def _refused(frame: Frame) -> Table:
    """Return served and refused by criticality, and refused by where, side by side."""
    table = Table.grid(padding=(0, 3))
    levels = _table()
    levels.add_column("criticality", no_wrap=True)
    for name in ("asked/s", "ok/s", "refused/s"):
        levels.add_column(name, justify="right", no_wrap=True)
    for level in CRITICALITIES:
        counts = frame["of"][level]
        levels.add_row(level, *(_whole(counts[name]) for name in ("asked", "ok", "refused")))
    where = _table()
    where.add_column("refused", no_wrap=True)
    where.add_column("per s", justify="right", no_wrap=True)
    for reason in REASONS:
        where.add_row(_WHERE[reason], _whole(frame["refused_by"][reason]))
    table.add_row(levels, where)
    return table


def _bar(utilization: float | None) -> Text:
    if utilization is None:
        return Text("–")
    filled = min(_BAR_WIDTH, round(utilization * _BAR_WIDTH))
    style = "green" if utilization < 0.9 else "yellow" if utilization < 1.05 else "red"
    bar = Text("█" * filled, style=style)
    bar.append("·" * (_BAR_WIDTH - filled), style="dim")
    bar.append(f" {utilization:4.0%}")
    return bar


def _milliseconds(frame: Frame, name: str) -> str:
    latency = frame["latency_ms"]
    return "–" if not latency or latency.get(name) is None else f"{latency[name]:.0f} ms"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


@final
class _Table:
    """Draw every frame over the one before."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._part = self._text = ""

    def part(self, name: str, text: str) -> None:
        self._part, self._text = name, text

    def frame(self, frame: Frame) -> None:
        self._live.update(draw(frame, self._part, self._text), refresh=True)


@final
class _Lines:
    """Print a line when a part begins, and every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._part = ""
        self._next_at = 0.0

    def part(self, name: str, text: str) -> None:
        self._part = name
        self._print(f"{name}: {text}")

    def frame(self, frame: Frame) -> None:
        if frame["t"] < self._next_at:
            return
        self._next_at = frame["t"] + _LINE_SECONDS
        self._print(describe(frame, self._part))

    def _print(self, line: str) -> None:
        # Written at once: whoever reads a log that goes through a pipe wants to see it grow.
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()
