"""Say what can be done to the fleet, and refuse what cannot.

Names and arguments come from a page or from the command line, so all of them are checked here, with
what was wrong, the value and the bound.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from evenly.core import check
from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig
from evenly.core.overload.throttle_catalogue import THROTTLES, ThrottleConfig
from evenly.errors import ConfigError
from evenly.lab.demo.bounds import LEAST_LOAD, MOST_LOAD
from evenly.lab.demo.frames import SLOW_FACTOR, plan_clients
from evenly.lab.demo.plan import CUSTOMERS, USUAL_LOAD, WILD, Plan
from evenly.lab.demo.stories import STORIES, find_story
from evenly.lab.demo.totals import CRITICALITIES, REASONS

__all__ = ["CONTROLS", "Settings", "checked", "description"]

CONTROLS: Final[Mapping[str, tuple[str, ...]]] = {
    "load": ("load",),
    "policy": ("policy",),
    "throttle": ("throttle",),
    "protect": ("is_on",),
    "wild": ("is_on",),
    "kill": ("backend",),
    "terminate": ("backend",),
    "rolling_restart": (),
    "stop": ("backend",),
    "cont": ("backend",),
    "slow": ("backend", "is_on"),
    "fail": ("backend", "is_on"),
    "story": ("story",),
    "end_story": (),
    "reset": (),
}
"""The controls, each with the names of its arguments."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold what is set for the whole fleet; the defaults are those of the start."""

    load: float = USUAL_LOAD
    """What clients ask for, in units of the capacity."""
    policy: str = PolicyConfig().name
    throttle: str = ThrottleConfig().name
    is_protected: bool = True
    is_wild: bool = False
    """Whether one customer runs wild."""

    def describe(self) -> dict[str, Any]:
        """Return them for a frame."""
        return asdict(self)


def description(plan: Plan) -> dict[str, object]:
    """Return what a page needs to know once: what runs, and what can be chosen."""
    return {
        "plan": {
            "backends": [
                asdict(backend) | {"capacity": round(plan.capacity_of(backend), 4)}
                for backend in plan.backends
            ],
            "clients": plan_clients(plan),
            "subset_size": plan.subset_size,
            "work_seconds": plan.work_seconds,
            "timeout_seconds": plan.timeout_seconds,
            "transport": plan.transport,
            "is_real_cpu": plan.is_real_cpu,
            "capacity": round(plan.capacity, 4),
        },
        "settings": Settings().describe(),
        "load": {"least": LEAST_LOAD, "most": MOST_LOAD},
        "slow_factor": SLOW_FACTOR,
        "policies": list(POLICIES),
        "throttles": list(THROTTLES),
        "criticalities": list(CRITICALITIES),
        "reasons": list(REASONS),
        "customers": [*CUSTOMERS, WILD],
        "stories": [story.describe() for story in STORIES.values()],
    }


def checked(
    name: str, arguments: Mapping[str, object], *, backends: Collection[str]
) -> dict[str, Any]:
    """Return the arguments of a control, or raise `ConfigError`."""
    if not isinstance(name, str) or name not in CONTROLS:
        raise ConfigError(f"do must be one of {', '.join(CONTROLS)}, not {reprlib.repr(name)}")
    wanted = CONTROLS[name]
    if set(arguments) != set(wanted):
        text = " and ".join(wanted) if wanted else "nothing"
        given = ", ".join(sorted(map(reprlib.repr, arguments))) or "nothing"
        raise ConfigError(f"{name} must be told {text}, not {given}")
    for argument in wanted:
        _check(argument, arguments[argument], backends)
    return dict(arguments)


def _check(argument: str, value: Any, backends: Collection[str]) -> None:  # noqa: ANN401 -- JSON
    match argument:
        case "load":
            check.number("load", value, LEAST_LOAD, MOST_LOAD)
        case "policy":
            _check_choice(argument, value, POLICIES)
        case "throttle":
            _check_choice(argument, value, THROTTLES)
        case "story":
            find_story(value)
        case "backend":
            _check_choice(argument, value, backends)
        case _:
            if not isinstance(value, bool):
                raise ConfigError(f"{argument} must be true or false, not {reprlib.repr(value)}")


def _check_choice(argument: str, value: object, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        one_of = ", ".join(choices)
        raise ConfigError(f"{argument} must be one of {one_of}, not {reprlib.repr(value)}")
