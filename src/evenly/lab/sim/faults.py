"""Let the faults of a scenario happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from evenly.lab.sim.fault_config import (
    CrashFault,
    FastFailFault,
    FaultConfig,
    FaultInTurn,
    FaultOfBackends,
    LossFault,
    MomentaryFault,
    PartitionFault,
    RestartClientsFault,
    RestartFault,
    SlowFault,
    StallFault,
)
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.source import Mix
from evenly.lab.sim.stage import Stage

__all__ = ["schedule_fault"]

_Act: TypeAlias = Callable[[], None]


def schedule_fault(
    stage: Stage,
    fault: FaultConfig,
    machines: Mapping[str, Sequence[Machine]],
    *,
    mix: Mix,
    restart_clients: Callable[[int], None],
) -> None:
    """Put a fault, and its end, on the heap.  `machines` are those of each service."""
    if isinstance(fault, RestartClientsFault):
        stage.events.at(fault.at_seconds, partial(restart_clients, fault.clients))
    elif isinstance(fault, FaultInTurn):
        for place, machine in enumerate(_hit(stage, fault, machines)):
            begin, end = _on_machine(fault, machine)
            _schedule(stage, fault, begin, end, later=place * fault.every_seconds)
    elif isinstance(fault, PartitionFault):
        pairs = list(_pairs(stage, fault, _hit(stage, fault, machines)))
        _schedule(stage, fault, partial(_cut, stage, pairs), partial(_mend, stage, pairs))
    elif isinstance(fault, LossFault):
        lose, stop = partial(_lose, stage, fault.ratio), partial(_stop_losing, stage, fault.ratio)
        _schedule(stage, fault, lose, stop)
    else:
        surge = partial(mix.surge, fault.customer)
        _schedule(stage, fault, partial(surge, fault.ratio), partial(surge, 1.0))


def _schedule(
    stage: Stage, fault: FaultConfig, begin: _Act, end: _Act, *, later: float = 0.0
) -> None:
    stage.events.at(fault.at_seconds + later, begin)
    if not isinstance(fault, MomentaryFault) and fault.seconds:
        stage.events.at(fault.at_seconds + fault.seconds + later, end)


def _hit(
    stage: Stage, fault: FaultOfBackends, machines: Mapping[str, Sequence[Machine]]
) -> Sequence[Machine]:
    found = machines[fault.service or stage.scenario.backends.name]
    return found[fault.first : fault.first + fault.backends if fault.backends else None]


def _on_machine(fault: FaultConfig, machine: Machine) -> tuple[_Act, _Act]:
    """Return what begins and what ends a fault of a machine."""
    match fault:
        case RestartFault():
            return machine.terminate, _nothing
        case CrashFault():
            return machine.crash, _nothing
        case StallFault():
            return machine.stall, machine.go_on
        case SlowFault():
            set_ratio = partial(machine.set_speed_ratio, fault)
            return partial(set_ratio, fault.ratio), partial(set_ratio, 1.0)
        case FastFailFault():
            set_fast_fail = machine.set_fast_fail
            return partial(set_fast_fail, fails_fast=True), partial(set_fast_fail, fails_fast=False)
    raise AssertionError(fault)


def _nothing() -> None:
    """End what ends by itself."""


def _pairs(
    stage: Stage, fault: PartitionFault, machines: Sequence[Machine]
) -> Iterator[tuple[int, str]]:
    """Yield who cannot speak to whom: a lower service is called by the one above."""
    services = stage.scenario.services
    names = [service.name for service in services]
    place = names.index(fault.service or names[0])
    callers = services[place - 1].count if place else stage.scenario.clients.count
    for client in range(fault.clients or callers):
        for machine in machines:
            yield client, machine.backend.address


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
