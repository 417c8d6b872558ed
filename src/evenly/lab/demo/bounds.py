"""Hold the bounds of what can be asked of the demo.

Apart from what uses them: the command line knows its bounds before it imports anything slow.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "LEAST_BACKENDS",
    "LEAST_LOAD",
    "LEAST_SECONDS",
    "MOST_EACH",
    "MOST_LOAD",
    "MOST_SECONDS",
]

LEAST_LOAD: Final = 0.1
"""In units of the capacity."""
MOST_LOAD: Final = 10.0
LEAST_SECONDS: Final = 30.0
"""Of the scripted play."""
MOST_SECONDS: Final = 3600.0
MOST_EACH: Final = 64
"""Backends, and clients."""
LEAST_BACKENDS: Final = 3
"""Stories speak of b3, and a fleet without it has nothing to balance."""
