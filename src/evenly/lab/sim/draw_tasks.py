"""Draw the façades' own configuration: the defaults, and what else an operator may choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.subset import SUBSET_ALGORITHMS
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.adaptive_throttle import AdaptiveThrottleConfig
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottleConfig
from evenly.core.overload.retry import AttemptHistogramConfig, RetryConfig
from evenly.core.overload.throttle_catalogue import THROTTLES, ThrottleConfig
from evenly.core.overload.utilization_config import UtilizationConfig
from evenly.lab.sim.luck import Luck

__all__ = ["draw_backend_task", "draw_client_task"]

_ALGORITHMS = tuple(SUBSET_ALGORITHMS)


def draw_client_task(luck: Luck) -> ClientTaskConfig:
    """Draw how every client task behaves; its policy's name comes from elsewhere."""
    return ClientTaskConfig(
        policy=PolicyConfig(weights=_draw_weights(luck)),
        membership=MembershipConfig(
            health=_draw_health(luck),
            subset_algorithm=luck.one_of(_ALGORITHMS),
            subset_size=luck.size(1, 40),
            enough_ratio=luck.one_of((0.7, luck.number(0.0, 1.0))),
            error_decay_seconds=luck.one_of((5.0, luck.magnitude(0.1, 10.0))),
        ),
        throttle=_draw_throttle(luck),
        retry=_draw_retry(luck),
        active_limit=luck.one_of((100, luck.size(1, 100))),
        ask_seconds=luck.one_of((0.05, luck.magnitude(0.001, 0.2))),
    )


def draw_backend_task(luck: Luck, *, customers: Sequence[str], cpus: float) -> BackendTaskConfig:
    """Draw how every backend behaves; `cpus` is what customers may be promised parts of."""
    first_attempts = luck.one_of((1000, luck.size(10, 1000)))
    return BackendTaskConfig(
        limits_queue=not luck.chance(0.1),
        utilization=UtilizationConfig(combine="maximum" if luck.chance(0.2) else "individual"),
        quota=_draw_quota(luck, customers, cpus) if customers and luck.chance(0.5) else None,
        attempts=AttemptHistogramConfig(
            first_attempts=first_attempts,
            widespread_ratio=luck.one_of((0.05, luck.number(0.0, 0.5))),
            min_arrivals=min(100, first_attempts),
        ),
        drain_seconds=luck.one_of((30.0, luck.magnitude(0.1, 5.0))),
        quiet_seconds=luck.one_of((1.0, luck.number(0.0, 2.0))),
    )


def _draw_weights(luck: Luck) -> WeightConfig:
    if luck.chance(0.3):
        return WeightConfig()
    # Shorter than the defaults, which are as long as a whole story here.
    return WeightConfig(
        blackout_seconds=luck.number(0.0, 2.0),
        expiry_seconds=luck.magnitude(0.5, 180.0),
        slow_start_seconds=luck.number(0.0, 3.0),
    )


def _draw_health(luck: Luck) -> HealthConfig:
    if luck.chance(0.5):
        return HealthConfig()
    first = luck.magnitude(0.05, 1.0)
    return HealthConfig(
        check_seconds=luck.magnitude(0.1, 1.0),
        unanswered_checks=luck.whole(1, 4),
        silent_max_ratio=luck.number(0.0, 1.0),
        backoff_first_seconds=first,
        backoff_max_seconds=luck.one_of((first, 2.0, 120.0)),
        backoff_jitter_ratio=luck.number(0.0, 0.5),
    )


def _draw_throttle(luck: Luck) -> ThrottleConfig:
    config = ThrottleConfig(name=luck.one_of(THROTTLES))
    if luck.chance(0.5):
        return config
    return replace(
        config,
        responsive=ResponsiveThrottleConfig(
            send_anyway_seconds=luck.magnitude(0.2, 10.0),
            ask_after_seconds=luck.magnitude(0.2, 10.0),
        ),
        adaptive=AdaptiveThrottleConfig(
            accepts_multiplier=luck.number(1.1, 3.0), window_seconds=luck.magnitude(1.0, 120.0)
        ),
    )


def _draw_retry(luck: Luck) -> RetryConfig:
    initial = luck.one_of((3.0, luck.number(0.0, 10.0)))
    return RetryConfig(
        attempts=luck.whole(1, 4),
        budget_ratio=luck.one_of((0.1, 0.0, 1.0, luck.number(0.0, 0.5))),
        initial_balance=initial,
        max_balance=luck.one_of((100.0, initial)),
    )


def _draw_quota(luck: Luck, customers: Sequence[str], cpus: float) -> QuotaConfig:
    """Draw limits for some of the customers; the others share the default."""
    listed = luck.some_of(customers, luck.whole(1, len(customers)))
    limits = {name: luck.magnitude(0.05, 2.0) * cpus for name in listed}
    further = {
        name: {luck.one_of(tuple(Criticality)): luck.number(0.1, 1.0) * limits[name]}
        for name in listed
        if luck.chance(0.3)
    }
    return QuotaConfig(
        limits=limits,
        default_limit=luck.number(0.0, 1.0) * cpus,
        criticality_limits=further,
        burst_seconds=luck.one_of((1.0, luck.magnitude(0.1, 3.0))),
    )
