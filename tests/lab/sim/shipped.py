"""The scenarios that evenly ships, as they are or changed as by `--set`."""

from __future__ import annotations

from pathlib import Path

from evenly.lab.sim.load import load_scenario
from evenly.lab.sim.scenario import Scenario

FOLDER = Path(__file__).parents[3] / "scenarios"


def shipped(name: str, *changes: str) -> Scenario:
    return load_scenario(FOLDER / f"{name}.toml", changes)
