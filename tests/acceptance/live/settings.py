"""Say what every system is given: the same fleet, the same requests, the same deadline."""

from __future__ import annotations

from typing import Final

from evenly.core.criticality import Criticality

BACKENDS: Final = 8
CORES: Final = 2
MEAN_SECONDS: Final = 0.13
SIGMA: Final = 0.7
CAPACITY: Final = BACKENDS * CORES / MEAN_SECONDS
"""Requests per second: 123."""

CLIENTS: Final = 4
DEADLINE_SECONDS: Final = 1.0
ATTEMPTS: Final = 3
MIX: Final = {
    Criticality.CRITICAL_PLUS: 0.1,
    Criticality.CRITICAL: 0.3,
    Criticality.SHEDDABLE_PLUS: 0.3,
    Criticality.SHEDDABLE: 0.3,
}

CALM: Final = 0.7
CALM_SECONDS: Final = 15.0
OVERLOAD_SECONDS: Final = 30.0
OVERLOAD_ENDS_AT: Final = CALM_SECONDS + OVERLOAD_SECONDS
