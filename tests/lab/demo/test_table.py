"""The live table: what it shows of a frame, on a terminal and in a log."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from evenly.lab.demo.table import describe, draw, showing

RATES = {"asked": 141.0, "ok": 138.0, "failed": 0.0, "refused": 3.0}
LEVELS = ("CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE")


def frame(t: float = 12.0, **changes: Any) -> dict[str, Any]:
    backend = {
        "name": "b1",
        "state": "healthy",
        "utilization": 0.7,
        "speed": 1.6,
        "active": 2,
        "waiting": 1,
        "weight": 0.2,
        "ok": 28.0,
        "faults": [],
    }
    return {
        "t": t,
        "capacity": 200.0,
        "rates": {**RATES, "retries": 2.0},
        "refused_by": {"throttled": 2.0, "shed": 1.0, "quota": 0, "no_backend": 0},
        "of": {
            level: {"asked": 35.0, "ok": 34.0, "failed": 0.0, "refused": 1.0} for level in LEVELS
        },
        "latency_ms": {"p50": 81.2, "p95": 120.0, "p99": 160.4},
        "backends": [
            backend,
            {**backend, "name": "b2", "state": "lame duck", "utilization": 1.5},
            {**backend, "name": "b3", "state": "down", "utilization": None, "weight": None},
            {**backend, "name": "b4", "faults": ["slow", "fail"]},
        ],
        "demo_cores": 0.43,
        **changes,
    }


def drawn(shown: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(shown, "overload", "goodput stays"))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_backends_have_their_state_bar_and_numbers() -> None:
    lines = drawn(frame()).splitlines()

    b1 = next(line for line in lines if line.startswith("b1"))
    assert b1.split() == ["b1", "healthy", "███████···", "70%", "1.6", "2", "1", "20.0%", "28"]
    b2 = next(line for line in lines if line.startswith("b2"))
    assert "lame duck" in b2
    assert f"{'█' * 10} 150%" in b2  # Full is full.
    b3 = next(line for line in lines if line.startswith("b3"))
    assert b3.split()[:3] == ["b3", "down", "–"]
    b4 = next(line for line in lines if line.startswith("b4"))
    assert b4.startswith("b4       slow, fail  █")


def test_rates_refusals_and_the_part_are_shown() -> None:
    text = drawn(frame())

    assert text.startswith("12 s  overload  goodput stays")
    for expected in ("asked/s", "141", "81 ms", "160 ms", "0.43", "throttled in the client"):
        assert expected in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(LEVELS)] == [*LEVELS]


def test_a_stopped_backend_is_said_to_be_stopped_once() -> None:
    shown = frame()
    shown["backends"][0].update(state="stopped", faults=["stopped"])

    assert drawn(shown).count("stopped") == 1


def test_what_nobody_measured_is_a_dash() -> None:
    text = drawn(frame(latency_ms=None, demo_cores=None))

    assert " ms" not in text
    assert "–" in text


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_a_terminal(width: int) -> None:
    assert max(map(len, drawn(frame(), width).splitlines())) <= width
    assert "…" not in drawn(frame(), width)


def test_a_line_for_a_log() -> None:
    assert describe(frame(), "overload") == (
        "   12 s  overload: asked 141, ok 138, failed 0, refused 3 per second,"
        " 81 ms / 160 ms p50 / p99, 2 of 4 backends healthy"
    )
    assert "  running: asked" in describe(frame(), "")
    assert "– / – p50 / p99" in describe(frame(latency_ms=None), "")


def test_a_log_gets_a_line_every_three_seconds_and_one_for_every_part() -> None:
    output = io.StringIO()
    with showing(Console(file=output, width=60)) as show:
        for half in range(16):
            if half == 8:
                show.part("overload", "5 × the capacity")
            show.frame(frame(half / 2))

    lines = output.getvalue().splitlines()
    assert [line.strip().split("  ")[0] for line in lines] == [
        "0 s",
        "3 s",
        "overload: 5 × the capacity",
        "6 s",
    ]


def test_a_terminal_gets_a_table_that_leaves_nothing_behind() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, height=40, force_terminal=True)
    with showing(console) as show:
        show.part("overload", "5 × the capacity")
        show.frame(frame(1.0))
        show.frame(frame(2.0))

    written = output.getvalue()
    assert "overload" in written
    assert "\x1b[2K" in written  # Drawn over, and erased at the end.
    assert "\x1b[?25h" in written  # The cursor is back.
