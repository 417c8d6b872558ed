"""What a user may set about the calling side, whatever the transport."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

from evenly.core import check
from evenly.core.client_task import ClientTaskConfig
from evenly.discovery.client_index import client_index
from evenly.errors import ConfigError
from evenly.probe.config import ProbeConfig

__all__ = ["ClientConfig"]

# HTTP's have the method before the path.
_IS_METHOD: Final = re.compile(r"(?:[^\s/]+ )?/.*", re.DOTALL).fullmatch


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Set how this process talks to one service."""

    task: ClientTaskConfig = field(default_factory=ClientTaskConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    idempotent_methods: tuple[str, ...] = ()
    """Methods that may be done twice, and so be tried again after a lost connection.  gRPC:
    `/package.Service/Method`, or `/package.Service/*` for all of a service.  HTTP: `POST /search`,
    or `POST /search/*` for all right below."""
    connect_seconds: float = 5.0
    """A connection that does not stand after so long is refused."""
    patience_seconds: float = 0.25
    """A request that has waited so long for a connection goes elsewhere, if another stands."""
    discovery_seconds: float = 5.0
    """How long the first requests wait for the first list of backends."""
    orca_seconds: float = 1.0
    """How often a gRPC backend that does not report in our words is to say its load out of band,
    if it offers that; 0 asks none."""

    def __post_init__(self) -> None:
        check.positive("connect_seconds", self.connect_seconds)
        check.positive("patience_seconds", self.patience_seconds)
        check.number("discovery_seconds", self.discovery_seconds, 0.0, 3600.0)
        check.number("orca_seconds", self.orca_seconds, 0.0, 3600.0)
        if not (
            isinstance(self.idempotent_methods, tuple)
            and all(isinstance(method, str) for method in self.idempotent_methods)
        ):
            raise ConfigError(
                f"idempotent_methods must be a tuple of names, not {self.idempotent_methods!r}"
            )
        for method in self.idempotent_methods:
            if not _IS_METHOD(method):
                raise ConfigError(
                    "idempotent_methods must be like /package.Service/Method for gRPC and like"
                    f" POST /path for HTTP, not {method!r:.100}"
                )

    def is_idempotent(self, method: str) -> bool:
        """Return whether this method was declared idempotent."""
        service = method.rpartition("/")[0]
        return method in self.idempotent_methods or f"{service}/*" in self.idempotent_methods

    def resolved_task(self, environ: Mapping[str, str]) -> ClientTaskConfig:
        """Return the task's config with what the environment says, and what probes allow."""
        task = self.task
        if task.membership.client_index is None:
            membership = replace(task.membership, client_index=client_index(environ))
            task = replace(task, membership=membership)
        if not self.probe.is_on and task.policy.name == "probing":
            # What `probing` falls back to where nobody answers, without the time to find out.
            task = replace(task, policy=replace(task.policy, name="weighted_least_loaded"))
        return task
