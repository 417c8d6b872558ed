"""Run a fleet of fakes, which start in no time and write down what they are told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenly.lab.demo.fleet import Fleet, Programs
from evenly.lab.demo.member import Pace
from evenly.lab.demo.plan import BackendPlan, Plan

__all__ = ["HURRY", "PLAN", "children", "fleet_of", "pids", "said", "states", "texts"]

FAKE = (sys.executable, "-I", str(Path(__file__).with_name("fake_child.py")))
FAKES = Programs(backend=FAKE, client=FAKE)
# Who is held up for a moment, on a busy machine, is not killed for it.
HURRY = Pace(again_seconds=0.05, settle_seconds=0.0, terminate_seconds=3.0)
# Capacity: (1 + 2 + 1) · 2 / 0.1 = 80 per second, 40 of them from each client at load 1.
PLAN = Plan(
    backends=tuple(
        BackendPlan(name=f"b{number}", speed=speed) for number, speed in enumerate((1, 2, 1), 1)
    ),
    clients=2,
    subset_size=3,
    work_seconds=0.1,
    timeout_seconds=1.5,
)


def fleet_of(pace: Pace = HURRY) -> Fleet:
    return Fleet(PLAN, programs=FAKES, pace=pace)


def pids(fleet: Fleet) -> dict[str, int | None]:
    members = {**fleet._backends, **fleet._clients}
    return {name: member.standing("").pid for name, member in members.items()}


def texts(fleet: Fleet) -> list[str]:
    return [event["text"] for event in fleet.events]


def states(fleet: Fleet) -> list[str]:
    return [row["state"] for row in fleet._frame()["backends"]]


def said(log: Callable[[], list[str]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the commands that were heard, with who heard them."""
    return [
        (name, json.loads(rest))
        for name, _, rest in (line.partition(" ") for line in log())
        if rest.startswith("{")
    ]


def children() -> list[int]:
    """Return our processes that run the fake."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(") ")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"fake_child" in command:
            found.append(int(path.parent.name))
    return found
