"""Every config in one place: what can be set about a client task and about a backend.

    evenly.config.ClientTaskConfig(retry=evenly.config.RetryConfig(attempts=1))

Each is frozen, checks its values when it is made, and has the defaults that `docs/` explains.
"""

from __future__ import annotations

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.balancing.policies.prequal import PrequalConfig
from evenly.core.balancing.policies.probing import ProbingConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.adaptive_throttle import AdaptiveThrottleConfig
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota import QuotaConfig
from evenly.core.overload.responsive_throttle import ResponsiveThrottleConfig
from evenly.core.overload.retry import AttemptHistogramConfig, RetryConfig
from evenly.core.overload.send_probability import SendProbabilityConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.overload.utilization_config import (
    Ramp,
    SignalConfig,
    UtilizationConfig,
    default_signals,
)
from evenly.probe.config import ProbeConfig
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

__all__ = [
    "AdaptiveThrottleConfig",
    "AttemptHistogramConfig",
    "BackendConfig",
    "BackendTaskConfig",
    "ClientConfig",
    "ClientTaskConfig",
    "CostConfig",
    "HealthConfig",
    "MembershipConfig",
    "PolicyConfig",
    "PrequalConfig",
    "ProbeConfig",
    "ProbingConfig",
    "QuotaConfig",
    "Ramp",
    "ResponsiveThrottleConfig",
    "RetryConfig",
    "SendProbabilityConfig",
    "SignalConfig",
    "ThrottleConfig",
    "UtilizationConfig",
    "WeightConfig",
    "default_signals",
]
