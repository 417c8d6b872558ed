"""Observers: what core decides, as log lines and as metrics.

`evenly.observe.prometheus` needs an extra, and so is imported by its own name.
"""

from __future__ import annotations

from evenly.observe.log import LogObserver
from evenly.observe.tee import tee

__all__ = ["LogObserver", "tee"]
