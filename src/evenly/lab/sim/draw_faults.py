"""Draw what goes wrong in a random scenario, also several things at a time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from evenly.lab.sim.fault_config import FAULTS, FaultConfig
from evenly.lab.sim.luck import Luck
from evenly.lab.sim.scenario import CustomerConfig, Scenario
from evenly.lab.sim.service import ServiceConfig

__all__ = ["draw_faults"]

_MOST_FAULTS = 4


def draw_faults(luck: Luck, scenario: Scenario) -> tuple[FaultConfig, ...]:
    """Draw none to a few faults."""
    kinds = [kind for kind in FAULTS if kind != "surge" or scenario.workload.customers]
    drawn = [luck.one_of(kinds) for _ in range(luck.whole(0, _MOST_FAULTS))]
    return tuple(_draw_fault(luck, kind, scenario) for kind in drawn)


def _draw_fault(luck: Luck, kind: str, scenario: Scenario) -> FaultConfig:
    """Draw the same for every kind, and use what it has: a new field changes no other's luck."""
    service: ServiceConfig = luck.one_of(scenario.services)
    first = luck.whole(0, service.count - 1)
    customer, ratio = "", 1.0
    if kind == "slow":
        ratio = luck.magnitude(0.01, 2.0)
    elif kind == "loss":
        ratio = luck.number(0.0, 0.5)
    elif kind == "surge":
        who = luck.one_of(scenario.workload.customers)
        customer, ratio = who.name, luck.number(0.0, _most_surge(scenario, who))
    drawn: dict[str, object] = {
        "at_seconds": luck.number(0.0, 1.0) * scenario.total_seconds,
        "seconds": 0.0 if luck.chance(0.2) else luck.magnitude(0.05, 6.0),
        "service": service.name,
        "first": first,
        "backends": luck.one_of((1, 0, luck.whole(1, service.count - first))),
        "clients": luck.one_of((0, luck.whole(1, scenario.clients.count))),
        "every_seconds": luck.one_of((0.0, luck.number(0.0, 2.0))),
        "ratio": ratio,
        "customer": customer,
    }
    cls: Any = FAULTS[kind]
    fault: FaultConfig = cls(**{field.name: drawn[field.name] for field in fields(cls)})
    return fault


def _most_surge(scenario: Scenario, customer: CustomerConfig) -> float:
    """Return the surge that doubles the load, so that the story does not get much longer."""
    whole = sum(each.share for each in scenario.workload.customers)
    return min(100.0, 1.0 + whole / customer.share)
