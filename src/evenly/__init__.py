"""Load balancing and overload control for Python services."""

from __future__ import annotations

from evenly.core.balancing.nested_subset import nested_subset
from evenly.core.balancing.rocksteadier_subset import rocksteadier_subset
from evenly.core.balancing.subset import deterministic_subset, random_subset, rendezvous_subset
from evenly.core.criticality import Criticality
from evenly.errors import ConfigError, EvenlyError, UsageError

__all__ = [
    "ConfigError",
    "Criticality",
    "EvenlyError",
    "UsageError",
    "deterministic_subset",
    "nested_subset",
    "random_subset",
    "rendezvous_subset",
    "rocksteadier_subset",
]
