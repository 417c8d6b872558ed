"""Say how many requests and users were served: by criticality, by client task, and at the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from evenly.core.criticality import Criticality
from evenly.lab.sim.recorder import Second
from evenly.lab.sim.result import Result
from evenly.lab.sim.scenario import Scenario

__all__ = [
    "IDEAL",
    "ideal_by_criticality",
    "ideal_result",
    "seldom_senders",
    "success_by_client_rate",
    "success_by_criticality",
    "users_by_criticality",
]

IDEAL = "ideal"
"""What an ideal priority system gives: it is computed, and needs no run."""


def success_by_criticality(span: Sequence[Second]) -> dict[str, float]:
    """Return which part of the requests succeeded, the highest criticality first."""
    return {
        c.name: sum(second.succeeded[c] for second in span) / offered
        for c in reversed(Criticality)
        if (offered := sum(second.offered[c] for second in span))
    }


def users_by_criticality(span: Sequence[Second]) -> dict[str, float]:
    """Return which part of the users got all of their calls; empty where a user makes one call."""
    result = {}
    for c in reversed(Criticality):
        counts = [second.users[c] for second in span if c in second.users]
        if counts:
            result[c.name] = sum(served for _, served in counts) / sum(sent for sent, _ in counts)
    return result


def success_by_client_rate(span: Sequence[Second]) -> dict[str, dict[str, float]]:
    """Return the success of client tasks that send seldom and often, half of the requests each.

    Empty where all client tasks send alike.
    """
    result: dict[str, dict[str, float]] = {}
    for c in reversed(Criticality):
        offered = sum(second.offered[c] for second in span)
        succeeded = sum(second.succeeded[c] for second in span)
        seldom = sum(second.seldom_offered[c] for second in span)
        served = sum(second.seldom_succeeded[c] for second in span)
        if 0 < seldom < offered:
            often = (succeeded - served) / (offered - seldom)
            result[c.name] = {"seldom": served / seldom, "often": often}
    return result


def seldom_senders(rates: Sequence[float]) -> list[bool]:
    """Return which client tasks are the ones that send seldom: of half of the requests."""
    half = 0.5 * math.fsum(rates)
    is_seldom = [False] * len(rates)
    if rates and min(rates) < max(rates):
        for place in sorted(range(len(rates)), key=rates.__getitem__):
            half -= rates[place]
            is_seldom[place] = half >= 0.0
    return is_seldom


def ideal_by_criticality(scenario: Scenario, load: float) -> dict[str, float]:
    """Return what a system gives that serves the highest criticality first, up to capacity.

    At twice the capacity, of 10/30/30/30 % that is 100/100/33/0 %.  Empty where nothing has to be
    refused, or where capacity or load change during the overload.
    """
    workload = scenario.workload
    total = sum(workload.criticalities.values())
    shares = {c: workload.criticalities.get(c, 0.0) / total for c in reversed(Criticality)}
    shares = {c: share for c, share in shares.items() if share}
    others = [phase.load for phase in scenario.phases if phase.load is not None]
    is_simple = not (scenario.faults or workload.bursts or scenario.backend_task.quota)
    if load <= 1.0 or max(others, default=0.0) > 1.0 or len(shares) < 2 or not is_simple:
        return {}
    left = 1.0 / load
    result = {}
    for criticality, share in shares.items():
        served = min(share, left)
        result[criticality.name] = served / share
        left -= served
    return result


def ideal_result(results: Iterable[Result]) -> Result | None:
    """Return the ideal beside the runs of one load, as if it had been one of them."""
    for result in results:
        row = result.row
        ideal = row.ideal_by_criticality
        if ideal:
            return replace(
                result,
                row=replace(
                    row,
                    policy=IDEAL,
                    requests=0,
                    cpu_seconds_spent=0.0,
                    goodput_ratio=1.0,
                    errors_ratio=1.0 - 1.0 / row.load,
                    p50_seconds=None,
                    p99_seconds=None,
                    p99_over_ideal=None,
                    cpu_p95_over_p5=None,
                    cpu_max_over_min=None,
                    wasted_ratio=None,
                    success_by_criticality=ideal,
                    users_by_criticality=ideal if row.users_by_criticality else {},
                    success_by_client_rate={},
                    attempts_per_request=math.nan,
                    probes_per_request=math.nan,
                    recovery_seconds=None,
                    violations=(),
                ),
                series=replace(result.series, success_by_customer={}),
            )
    return None
