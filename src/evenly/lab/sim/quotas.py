"""Bring the customers' demand of all backends together once a second, and hand out the limits."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.core.overload.quota_aggregator import MemoryAggregator
from evenly.core.overload.quota_config import QuotaConfig
from evenly.lab.sim.machine import Machine
from evenly.lab.sim.stage import Stage

__all__ = ["share_quotas"]

_EVERY_SECONDS = 1.0


def share_quotas(stage: Stage, config: QuotaConfig, machines: Sequence[Machine]) -> None:
    """Let the backends' quotas follow where the demand is."""
    aggregator = MemoryAggregator(config)

    def share() -> None:
        now = stage.events.now
        running = [(m.backend.address, m.process.task) for m in machines if m.process is not None]
        for address, task in running:
            aggregator.report(address, task.quota_demand(), now)
        for address, task in running:
            task.update_quotas(aggregator.limits_of(address, now))
        stage.events.after(_EVERY_SECONDS, share)

    share()
