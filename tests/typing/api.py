"""Use every public name as a user would.  Checked by mypy, never executed."""

from __future__ import annotations

import evenly
from evenly.testing import ManualClock


def subsets() -> tuple[str, ...]:
    backends: list[str | None] = ["a", "b", None, "d"]
    mine: tuple[str, ...] = evenly.nested_subset(backends, 0, 2)
    mine = evenly.deterministic_subset(backends, 0, 2)
    mine = evenly.rendezvous_subset(backends, 0, 2)
    mine = evenly.rocksteadier_subset(backends, 0, 2)
    mine += evenly.random_subset(backends, 0, 2, seed=1)
    return mine


def criticality() -> bool:
    return evenly.Criticality.SHEDDABLE < evenly.Criticality.CRITICAL


def errors() -> evenly.EvenlyError | None:
    try:
        subsets()
    except evenly.ConfigError as error:
        return _either(error, error)
    except evenly.UsageError as error:
        return _either(error, error)
    return None


def _either(ours: evenly.EvenlyError, _theirs: ValueError | RuntimeError) -> evenly.EvenlyError:
    return ours


def clock() -> float:
    manual = ManualClock()
    manual.advance(1.0)
    return manual()
