"""Load balancing and overload control for Python services."""

from __future__ import annotations

from evenly.context import (
    ContextThreadPoolExecutor,
    carry_context,
    charge,
    current_request,
    degradable,
    mark_degraded,
    request_context,
    run_in_thread,
    should_degrade,
)
from evenly.core.balancing.nested_subset import nested_subset
from evenly.core.balancing.rocksteadier_subset import rocksteadier_subset
from evenly.core.balancing.subset import deterministic_subset, random_subset, rendezvous_subset
from evenly.core.criticality import Criticality
from evenly.core.observer import Observer
from evenly.core.request import Request
from evenly.errors import (
    ConfigError,
    EvenlyError,
    NoBackend,
    Overloaded,
    QuotaExceeded,
    RejectedError,
    Throttled,
    UsageError,
)

__all__ = [
    "ConfigError",
    "ContextThreadPoolExecutor",
    "Criticality",
    "EvenlyError",
    "NoBackend",
    "Observer",
    "Overloaded",
    "QuotaExceeded",
    "RejectedError",
    "Request",
    "Throttled",
    "UsageError",
    "carry_context",
    "charge",
    "current_request",
    "degradable",
    "deterministic_subset",
    "mark_degraded",
    "nested_subset",
    "random_subset",
    "rendezvous_subset",
    "request_context",
    "rocksteadier_subset",
    "run_in_thread",
    "should_degrade",
]
