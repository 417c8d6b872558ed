"""Make frames of lines that are written by hand."""

from __future__ import annotations

import json
from typing import Any

from evenly.lab.demo.frames import Frames, Standing
from evenly.lab.demo.plan import BackendPlan, Plan

__all__ = ["PIDS", "SETTINGS", "Watched", "by_name", "standings"]

# Capacities: 2 · 1.5 / 0.1 = 30 and 2 · 0.5 / 0.1 = 10 requests per second.
PLAN = Plan(
    backends=(BackendPlan(name="b1", speed=1.5), BackendPlan(name="b2", speed=0.5)),
    clients=2,
    work_seconds=0.1,
)
SETTINGS = {
    "load": 0.5,
    "policy": "probing",
    "throttle": "off",
    "is_protected": True,
    "is_wild": False,
}
PIDS = {"b1": 101, "b2": 102, "c1": 201, "c2": 202}


def standings(**changed: dict[str, Any]) -> dict[str, Standing]:
    return {
        name: Standing(
            **{
                "is_running": True,
                "pid": pid,
                "address": f"127.0.0.1:{pid}",
                "metrics": f"http://127.0.0.1:9{pid}/metrics",
                **changed.get(name, {}),
            }
        )
        for name, pid in PIDS.items()
    }


class Watched:
    """Frames on a clock that is moved by hand, half a second per frame."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.frames = Frames(PLAN, began_at=self.now, cpu_seconds=1.0)

    def saw(self, name: str, pid: int | None = None, **line: Any) -> None:
        kind = "backend" if name.startswith("b") else "client"
        full = {"is": kind, **({"state": "healthy"} if kind == "backend" else {}), **line}
        self.frames.saw(name, PIDS[name] if pid is None else pid, full, self.now)

    def frame(self, seconds: float = 0.5, cpu_seconds: float = 1.0, **more: Any) -> dict[str, Any]:
        self.now += seconds
        given = {"settings": SETTINGS, "standings": standings(), "cpu_seconds": cpu_seconds}
        frame = self.frames.make(self.now, **{**given, **more})
        json.dumps(frame, allow_nan=False)
        return frame


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}
