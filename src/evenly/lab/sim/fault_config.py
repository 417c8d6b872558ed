"""Describe what goes wrong, or is done, in a scenario: one class per kind of fault.

In a scenario's file a fault is a table whose `kind` says which class it is of; its other keys are
the fields of that class.  A key that the class does not have is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar, Final, TypeAlias, final, get_args

from evenly.core import check

__all__ = [
    "FAULTS",
    "CrashFault",
    "FastFailFault",
    "FaultConfig",
    "FaultInTurn",
    "FaultOfBackends",
    "LossFault",
    "MomentaryFault",
    "PartitionFault",
    "RestartClientsFault",
    "RestartFault",
    "SlowFault",
    "StallFault",
    "SurgeFault",
]

_seconds: Final = partial(check.number, low=0.0, high=86_400.0)
_CHECKS: Final[Mapping[str, Callable[..., None]]] = {
    "at_seconds": _seconds,
    "seconds": _seconds,
    "every_seconds": _seconds,
    "first": partial(check.count, low=0, high=10_000),
    "backends": partial(check.count, low=0, high=10_000),
    "clients": partial(check.count, low=0, high=100_000),
    "ratio": partial(check.number, low=0.0, high=1_000.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    kind: ClassVar[str]

    at_seconds: float

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in _CHECKS:
                _CHECKS[field.name](field.name, getattr(self, field.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOfBackends(_Fault):
    """A fault that hits backends."""

    service: str = ""
    """Whose backends; empty: the topmost service's."""
    first: int = 0
    backends: int = 1
    """From backend `first` on, so many; 0: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInTurn(FaultOfBackends):
    """A fault that hits one backend after another."""

    every_seconds: float = 0.0
    """The time between two backends; 0: all at once."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartFault(FaultInTurn):
    """SIGTERM to backend after backend: lame duck, drain, gone, warm up."""

    kind: ClassVar[str] = "restart"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CrashFault(FaultInTurn):
    """`kill -9`; a successor starts."""

    kind: ClassVar[str] = "crash"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StallFault(FaultInTurn):
    """SIGSTOP, and later SIGCONT."""

    kind: ClassVar[str] = "stall"
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFault(FaultInTurn):
    """Backends run at `ratio` of their speed."""

    kind: ClassVar[str] = "slow"
    ratio: float
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""

    def __post_init__(self) -> None:
        _Fault.__post_init__(self)  # `super()` does not work with slots.
        check.number("ratio", self.ratio, 0.001, 1_000.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FastFailFault(FaultInTurn):
    """Backends answer every request with an error, at once."""

    kind: ClassVar[str] = "fast_fail"
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFault(FaultOfBackends):
    """Nothing passes between these clients and these backends."""

    kind: ClassVar[str] = "partition"
    clients: int = 0
    """From client 0 on, so many; 0: all."""
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LossFault(_Fault):
    """The network's `loss_ratio` is `ratio`."""

    kind: ClassVar[str] = "loss"
    ratio: float
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""

    def __post_init__(self) -> None:
        _Fault.__post_init__(self)  # The same.
        check.number("ratio", self.ratio, 0.0, 0.9)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartClientsFault(_Fault):
    """Client tasks start anew, all at once, and connect."""

    kind: ClassVar[str] = "restart_clients"
    clients: int = 0
    """From client 0 on, so many; 0: all."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeFault(_Fault):
    """A customer sends `ratio` times as much."""

    kind: ClassVar[str] = "surge"
    customer: str
    ratio: float
    seconds: float = 0.0
    """How long it lasts; 0: to the end."""


FaultConfig: TypeAlias = (
    RestartFault
    | CrashFault
    | StallFault
    | SlowFault
    | FastFailFault
    | PartitionFault
    | LossFault
    | RestartClientsFault
    | SurgeFault
)

MomentaryFault: TypeAlias = RestartFault | CrashFault | RestartClientsFault
"""What has no length of its own; the others last for `seconds`."""

FAULTS: Final[Mapping[str, type[FaultConfig]]] = {one.kind: one for one in get_args(FaultConfig)}
"""The classes by their kinds."""
