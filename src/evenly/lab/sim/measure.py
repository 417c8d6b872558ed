"""Turn what was counted into a row and its series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evenly.core.criticality import Criticality
from evenly.lab.sim.cpu_samples import CpuSamples, quantile
from evenly.lab.sim.fault_config import FaultConfig, FaultInTurn, MomentaryFault
from evenly.lab.sim.recorder import Second
from evenly.lab.sim.result import Row, Series
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.success import (
    ideal_by_criticality,
    success_by_client_rate,
    success_by_criticality,
    users_by_criticality,
)

__all__ = ["measure_row", "measure_series", "measured_span"]

_RECOVERED_RATIO = 0.99
# A recovery holds for so many seconds, or it was luck.
_RECOVERED_SECONDS = 2


def measured_span(scenario: Scenario) -> tuple[int, int]:
    """Return the first second that is measured, and the one after the last.

    With phases that is the one at the row's own load.
    """
    begin, end = scenario.settle_seconds, scenario.total_seconds
    at = 0.0
    for phase in scenario.phases:
        if phase.load is None:
            begin, end = at, at + phase.seconds
        at += phase.seconds
    first = min(math.ceil(begin), int(scenario.total_seconds))
    return first, max(first + 1, int(end))


def measure_row(
    scenario: Scenario,
    seconds: Sequence[Second],
    samples: CpuSamples,
    *,
    policy: str,
    seed: int,
    load: float,
    cpu_seconds_spent: float,
    violations: tuple[str, ...],
) -> Row:
    """Sum up the measured part of a run."""
    begin, end = measured_span(scenario)
    span = seconds[begin:end]
    requests = sum(sum(second.offered) for second in span)
    succeeded = sum(sum(second.succeeded) for second in span)
    possible = min(requests, scenario.capacity * len(span))
    latencies = sorted(latency for second in span for latency in second.latencies)
    even = samples.windows(begin, end)
    return Row(
        policy=policy,
        seed=seed,
        load=load,
        requests=sum(sum(second.offered) for second in seconds),
        cpu_seconds_spent=cpu_seconds_spent,
        goodput_ratio=sum(second.completed for second in span) / possible if possible else 1.0,
        errors_ratio=1.0 - succeeded / requests if requests else 0.0,
        p50_seconds=quantile(latencies, 0.5) if latencies else None,
        p99_seconds=quantile(latencies, 0.99) if latencies else None,
        p99_over_ideal=None,
        cpu_p95_over_p5=None if even is None else even.p95_over_p5,
        cpu_max_over_min=None if even is None else even.max_over_min,
        wasted_ratio=None if even is None else even.wasted_ratio,
        success_by_criticality=success_by_criticality(span),
        ideal_by_criticality=ideal_by_criticality(scenario, load),
        users_by_criticality=users_by_criticality(span),
        success_by_client_rate=success_by_client_rate(span),
        attempts_per_request=_per_request((second.attempts for second in span), requests),
        probes_per_request=_per_request((second.probes for second in span), requests),
        recovery_seconds=_recovery_seconds(scenario, seconds),
        violations=violations,
    )


def measure_series(scenario: Scenario, seconds: Sequence[Second], samples: CpuSamples) -> Series:
    """Show a run second by second."""
    whole = int(scenario.total_seconds)
    seconds = seconds[:whole]
    even = [samples.over(at, at + 1) for at in range(whole)]
    ordered = [sorted(second.latencies) for second in seconds]
    used = [c for c in reversed(Criticality) if any(second.offered[c] for second in seconds)]
    return Series(
        measured=measured_span(scenario),
        has_recovered=_recovered_at(scenario, seconds) is not None,
        capacity=scenario.capacity,
        cpu=tuple(tuple(cpu[:whole]) for cpu in samples.used),
        spread=tuple(None if each is None else each.p95_over_p5 for each in even),
        wasted_ratio=tuple(None if each is None else each.wasted_ratio for each in even),
        offered={c.name: tuple(second.offered[c] for second in seconds) for c in used},
        succeeded={c.name: tuple(second.succeeded[c] for second in seconds) for c in used},
        p50_seconds=tuple(quantile(each, 0.5) if each else None for each in ordered),
        p99_seconds=tuple(quantile(each, 0.99) if each else None for each in ordered),
        attempts=tuple(second.attempts for second in seconds),
        probes=tuple(second.probes for second in seconds),
        throttled=tuple(second.throttled for second in seconds),
        rejected=tuple(second.rejected for second in seconds),
        connections=tuple(second.connections for second in seconds),
        success_by_customer=_success_by_customer(scenario, seconds),
    )


def _success_by_customer(scenario: Scenario, seconds: Sequence[Second]) -> dict[str, float]:
    begin, end = measured_span(scenario)
    counts = {customer.name: [0, 0] for customer in scenario.workload.customers}
    for second in seconds[begin:end]:
        for name, (offered, succeeded) in second.customers.items():
            counts[name][0] += offered
            counts[name][1] += succeeded
    return {name: succeeded / offered for name, (offered, succeeded) in counts.items() if offered}


def _per_request(counts: Iterable[int], requests: int) -> float:
    return sum(counts) / requests if requests else 0.0


def _recovery_seconds(scenario: Scenario, seconds: Sequence[Second]) -> float | None:
    """Return how long it took after the last trouble until nearly everything succeeded.

    If it never did: how long the story went on, which is the least that it can be.
    """
    trouble_end = _trouble_end(scenario)
    whole = int(scenario.total_seconds)
    if trouble_end is None or trouble_end >= whole:
        return None
    recovered_at = _recovered_at(scenario, seconds)
    return max(0.0, (whole if recovered_at is None else recovered_at) - trouble_end)


def _recovered_at(scenario: Scenario, seconds: Sequence[Second]) -> int | None:
    """Return the first second after the last trouble from which on all was well, if any."""
    trouble_end = _trouble_end(scenario) or 0.0
    whole = int(scenario.total_seconds)
    for at in range(int(trouble_end), whole - _RECOVERED_SECONDS + 1):
        if all(_is_fine(second) for second in seconds[at : at + _RECOVERED_SECONDS]):
            return at
    return None


def _trouble_end(scenario: Scenario) -> float | None:
    ends = [end for fault in scenario.faults if (end := _end_of(scenario, fault)) is not None]
    at = 0.0
    for place, phase in enumerate(scenario.phases):
        at += phase.seconds
        if phase.load is None and place < len(scenario.phases) - 1:
            ends.append(at)
    return max(ends, default=None)


def _end_of(scenario: Scenario, fault: FaultConfig) -> float | None:
    """Return when a fault is over at the last backend that it hits; `None` if it never is."""
    if isinstance(fault, MomentaryFault):
        seconds = 0.0
    elif fault.seconds:
        seconds = fault.seconds
    else:
        return None
    later = 0.0
    if isinstance(fault, FaultInTurn):
        counts = {service.name: service.count for service in scenario.services}
        hit = fault.backends or counts[fault.service or scenario.backends.name] - fault.first
        later = max(0, hit - 1) * fault.every_seconds
    return fault.at_seconds + seconds + later


def _is_fine(second: Second) -> bool:
    return sum(second.succeeded) >= _RECOVERED_RATIO * sum(second.offered)
