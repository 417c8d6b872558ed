"""Let the faults of a scenario happen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from evenly.sim.machine import Machine
from evenly.sim.scenario import FaultConfig, Scenario
from evenly.sim.source import Mix
from evenly.sim.stage import Stage

__all__ = ["schedule_fault"]


def schedule_fault(
    stage: Stage,
    fault: FaultConfig,
    machines: Sequence[Machine],
    *,
    mix: Mix,
    restart_clients: Callable[[int], None],
) -> None:
    """Put a fault, and its end, on the heap.  `machines` are those of its service."""
    events = stage.events
    end_at = fault.at_seconds + fault.seconds if fault.seconds else math.inf
    count = fault.backends or len(machines) - fault.first
    chosen = machines[fault.first : fault.first + count]
    pair = _ON_MACHINES.get(fault.kind)
    if pair is not None:
        begin, end = pair
        for place, machine in enumerate(chosen):
            later = place * fault.every_seconds
            events.at(fault.at_seconds + later, partial(begin, machine, fault))
            if end is not None and end_at < math.inf:
                events.at(end_at + later, partial(end, machine, fault))
    elif fault.kind == "restart_clients":
        events.at(fault.at_seconds, partial(restart_clients, fault.clients))
    else:
        begins, ends = _elsewhere(stage, fault, chosen, mix)
        events.at(fault.at_seconds, begins)
        if end_at < math.inf:
            events.at(end_at, ends)


def _elsewhere(
    stage: Stage, fault: FaultConfig, machines: Sequence[Machine], mix: Mix
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what begins and what ends a fault of the network or of a customer."""
    if fault.kind == "partition":
        clients = range(fault.clients or _callers(stage.scenario, fault))
        pairs = [(client, machine.backend.address) for client in clients for machine in machines]
        return partial(_cut, stage, pairs), partial(_mend, stage, pairs)
    if fault.kind == "loss":
        return partial(_lose, stage, fault.ratio), partial(_stop_losing, stage, fault.ratio)
    return partial(mix.surge, fault.customer, fault.ratio), partial(mix.surge, fault.customer, 1.0)


def _callers(scenario: Scenario, fault: FaultConfig) -> int:
    """Return how many call the fault's service: a lower one is called by the one above."""
    names = [service.name for service in scenario.services]
    place = names.index(fault.service or scenario.backends.name)
    return scenario.services[place - 1].count if place else scenario.clients.count


def _cut(stage: Stage, pairs: Sequence[tuple[int, str]]) -> None:
    for client, address in pairs:
        stage.network.cut(client, address)


def _mend(stage: Stage, pairs: Sequence[tuple[int, str]]) -> None:
    for client, address in pairs:
        stage.network.mend(client, address, stage.events.now)


def _lose(stage: Stage, ratio: float) -> None:
    stage.network.lose(ratio, stage.events.now)


def _stop_losing(stage: Stage, ratio: float) -> None:
    stage.network.stop_losing(ratio, stage.events.now)


_Act = Callable[[Machine, FaultConfig], None]
_ON_MACHINES: Final[dict[str, tuple[_Act, _Act | None]]] = {
    "restart": (lambda machine, _fault: machine.terminate(), None),
    "crash": (lambda machine, _fault: machine.crash(), None),
    "stall": (
        lambda machine, _fault: machine.stall(),
        lambda machine, _fault: machine.go_on(),
    ),
    "slow": (
        lambda machine, fault: machine.set_speed_ratio(fault, fault.ratio),
        lambda machine, fault: machine.set_speed_ratio(fault, 1.0),
    ),
    "fast_fail": (
        lambda machine, _fault: machine.set_fast_fail(fails_fast=True),
        lambda machine, _fault: machine.set_fast_fail(fails_fast=False),
    ),
}
"""What begins and what ends each fault of a machine."""
