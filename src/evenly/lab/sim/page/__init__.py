"""Show the runs of a scenario as one HTML page that needs nothing else."""

from __future__ import annotations

from evenly.lab.sim.page.page import render_page

__all__ = ["render_page"]
