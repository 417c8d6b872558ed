"""Every config in one place: what can be set about a client task and about a backend.

    evenly.config.ClientTaskConfig(retry=evenly.config.RetryConfig(attempts=1))

Each is frozen, checks its values when it is made, and has the defaults that `docs/` explains.
"""

from __future__ import annotations

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.overload.utilization_config import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)

__all__ = [
    "BackendTaskConfig",
    "ClientTaskConfig",
    "CostConfig",
    "HealthConfig",
    "MembershipConfig",
    "PolicyConfig",
    "QuotaConfig",
    "Ramp",
    "RetryConfig",
    "SignalConfig",
    "ThrottleConfig",
    "UtilizationConfig",
    "default_signals",
]
