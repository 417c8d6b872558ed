"""The label values of metrics: bounded, and never text that arrives from outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evenly.core.balancing.health import State
from evenly.core.claim import is_customer
from evenly.core.criticality import Criticality
from evenly.core.request import Outcome
from evenly.errors import ConfigError

__all__ = [
    "ATTEMPTS",
    "CRITICALITIES",
    "LABEL_MAX",
    "LEVELS",
    "MORE",
    "OTHER",
    "OUTCOMES",
    "STATES",
    "customer_labels",
    "is_label",
]

_CUSTOMERS_MAX = 1_000
LABEL_MAX = 128
OTHER = "other"
CRITICALITIES: Final = {criticality: criticality.name.lower() for criticality in Criticality}
LEVELS: Final = tuple(CRITICALITIES.items())
OUTCOMES: Final = {outcome: outcome.name.lower() for outcome in Outcome}
STATES: Final = {state.value: state.value.replace(" ", "_") for state in State}
# The book's three attempts; more are possible by configuration, and rare.
ATTEMPTS: Final = ("1", "2", "3")
MORE = "more"


def is_label(text: object) -> bool:
    """Return whether `text` can be a label value: short and printable."""
    # Printable also means that it can be encoded: a lone surrogate would fail every scrape.
    return isinstance(text, str) and 0 < len(text) <= LABEL_MAX and text.isprintable()


def customer_labels(customers: Iterable[str]) -> dict[str, str]:
    """Return the label of each listed customer, and of the nameless one."""
    labels: dict[str, str] = {}
    for name in customers:
        if not is_customer(name) or name in ("", OTHER):
            raise ConfigError(f"customers must be names of customers, not {name!r:.80}")
        labels[name] = name
        if len(labels) > _CUSTOMERS_MAX:
            raise ConfigError(f"customers must be at most {_CUSTOMERS_MAX}")
    return {**labels, "": OTHER}
