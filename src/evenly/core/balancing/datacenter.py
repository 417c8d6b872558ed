"""Share each origin's demand out over datacenters: nearest first, spilling before one is full.

SRE book, chapter 21: "balance traffic across datacenters such that no datacenter receives more
traffic than it has the capacity to process".  The book names the aim and no algorithm; this one is
a waterfall, in three stages that each take what the one before has left over:

1. *Nearest first.*  Pairs of origin and datacenter are served in order of distance, each until the
   origin has no demand left or the datacenter is filled to `fill_ratio` of its capacity.
2. *Headroom.*  What found no place goes into the rest of the capacities, all filling up together.
3. *Overload.*  What is still left is spread in proportion to capacity, so that no datacenter
   collapses first and hands its load to the next.

Within a stage and a distance everything flows at once: each origin pours at a rate in proportion to
what it has left, into its datacenters that still have room, in proportion to the room that they
had.  So every request has the same chance of a contested place, whatever the size of its origin.

It does not oscillate, for two reasons.  Shares follow from demand, which does not depend on where
it is sent, and never from the load on a datacenter, which does: there is no loop to swing in.  And
loads are continuous: one CPU more of demand changes the loads by one CPU in total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from evenly.core import check
from evenly.errors import ConfigError

__all__ = ["DatacenterConfig", "Shares", "approach", "loads", "waterfall"]

Shares = Mapping[str, Mapping[str, float]]
"""For each origin the share of its demand per datacenter; each origin's shares sum to 1."""

# More than all CPUs there are, and far enough from the largest float that no sum overflows.
_MOST = 1e15
# A part of an origin or of a datacenter's room that is nothing: what rounding leaves of 1 after a
# few dozen subtractions (each off by 1.1e-16), with a wide margin.
_DUST = 1e-13


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DatacenterConfig:
    """Say how full a datacenter may get before spilling, and how fast shares may move."""

    fill_ratio: float = 0.9
    """The part of its capacity to which a datacenter is filled before anything spills."""
    # The book's limit is the capacity itself (1.0), for a balancer that knows everything at once.
    # Ours learns demand an update late; the tenth that we leave pays for what demand grows by in
    # the meantime, and is used in the end, when nothing else is free.

    max_step_ratio: float = 0.1
    """The part of an origin's demand that may change its datacenter in one update."""
    # A complete move takes ten updates: time for caches, connections and autoscalers to follow.

    def __post_init__(self) -> None:
        check.fraction("fill_ratio", self.fill_ratio)
        # At 0 nothing would ever move; a thousand updates are slow enough for anyone.
        check.number("max_step_ratio", self.max_step_ratio, 0.001, 1.0)


_DEFAULT = DatacenterConfig()


def waterfall(
    demand: Mapping[str, float],
    capacity: Mapping[str, float],
    distance: Mapping[str, Mapping[str, float]],
    *,
    config: DatacenterConfig = _DEFAULT,
) -> dict[str, dict[str, float]]:
    """Return each origin's shares per datacenter, those of 0 left out.

    `demand` per origin and `capacity` per datacenter are in CPU seconds per second.  Demand is what
    the origin wants done, including what was rejected: if it fell because a datacenter rejects, it
    would depend on load.  `distance` is in any one unit for all origins, for example milliseconds;
    only its order matters, equal numbers are equally near, and a datacenter that is left out cannot
    be reached.  Origins of `distance` that `demand` does not name are not looked at; an origin with
    a demand of 0 gets the shares that its first request would have.
    """
    _check(demand, capacity, distance)
    stream = _Stream(demand)
    room = {name: config.fill_ratio * most for name, most in capacity.items()}
    headroom = {name: most - room[name] for name, most in capacity.items()}
    for nearest in _by_distance(demand, distance):
        stream.pour(nearest, room, weight=dict(room))
    # Who has something left by now has filled all that it reaches, and distance is used up.
    reach = {origin: list(distance[origin]) for origin in demand}
    stream.pour(reach, headroom, weight=dict(headroom))
    stream.pour(reach, dict.fromkeys(capacity, math.inf), weight=capacity)
    return stream.shares()


def loads(demand: Mapping[str, float], shares: Shares) -> dict[str, float]:
    """Return what each datacenter gets of this demand, in CPU seconds per second."""
    load: dict[str, float] = {}
    for origin, wanted in demand.items():
        for name, share in shares[origin].items():
            load[name] = load.get(name, 0.0) + wanted * share
    return load


def approach(
    current: Shares, target: Shares, *, max_step_ratio: float
) -> dict[str, dict[str, float]]:
    """Return shares on the straight way from `current` to `target`, at most one step along.

    All origins go the same part of their way, so that the one with the longest moves
    `max_step_ratio` of its demand.  Hence no share overshoots; the target is reached exactly, after
    (longest way / max_step_ratio) updates; and as every load on the way lies between what it was
    and what it will be, no datacenter is overloaded only in passing.

    An origin that `current` does not know starts at its target; one that `target` does not know is
    forgotten.  A datacenter that is dead rather than drained should not be left step by step: then
    use a `max_step_ratio` of 1.
    """
    check.number("max_step_ratio", max_step_ratio, 0.001, 1.0)
    _check_shares("current", current)
    _check_shares("target", target)
    longest = max((_way(current[o], target[o]) for o in target if o in current), default=0.0)
    if longest <= max_step_ratio:
        return {origin: dict(shares) for origin, shares in target.items()}
    part = max_step_ratio / longest
    return {
        origin: _between(current[origin], shares, part) if origin in current else dict(shares)
        for origin, shares in target.items()
    }


@final
class _Stream:
    """Follow what is left of each origin while it is poured into datacenters."""

    __slots__ = ("_demand", "_left", "_shares")

    def __init__(self, demand: Mapping[str, float]) -> None:
        self._demand = demand
        # Parts of an origin rather than CPUs, so that an origin without demand has shares too.
        self._left = dict.fromkeys(demand, 1.0)
        self._shares: dict[str, dict[str, float]] = {origin: {} for origin in demand}

    def pour(
        self,
        reach: Mapping[str, list[str]],
        room: dict[str, float],
        *,
        weight: Mapping[str, float],
    ) -> None:
        """Pour what these origins have left into the room that they reach, and lessen the room.

        Everyone begins together, at the speed that would leave nothing after one unit of time.
        Whenever a datacenter is full, those who poured into it turn to their others.
        """
        speed = dict(self._left)
        remaining = 1.0
        while remaining > 0.0:
            flows = self._flows(reach, speed, room, weight)
            if not flows:
                return
            inflow: dict[str, float] = {}
            for origin, name, part in flows:
                inflow[name] = inflow.get(name, 0.0) + part * self._demand[origin]
            duration = remaining
            first_full: str | None = None
            for name, rate in inflow.items():
                if rate * duration > room[name]:
                    duration, first_full = room[name] / rate, name
            for origin, name, part in flows:
                self._left[origin] -= part * duration
                shares = self._shares[origin]
                shares[name] = shares.get(name, 0.0) + part * duration
            for name, rate in inflow.items():
                after = room[name] - rate * duration
                room[name] = after if after > _DUST * weight[name] else 0.0
            if first_full is None:
                return
            room[first_full] = 0.0  # Whatever the rounding: each round closes at least one.
            remaining -= duration

    def shares(self) -> dict[str, dict[str, float]]:
        """Return the shares without their dust, scaled to a sum of 1."""
        result = {}
        for origin, shares in self._shares.items():
            kept = {name: share for name, share in shares.items() if share > _DUST}
            whole = math.fsum(kept.values())
            result[origin] = {name: share / whole for name, share in kept.items()}
        return result

    def _flows(
        self,
        reach: Mapping[str, list[str]],
        speed: Mapping[str, float],
        room: Mapping[str, float],
        weight: Mapping[str, float],
    ) -> list[tuple[str, str, float]]:
        flows = []
        for origin, names in reach.items():
            if self._left[origin] <= _DUST:
                continue
            open_names = [name for name in names if room[name] > 0.0]
            total = math.fsum(weight[name] for name in open_names)
            flows += [(origin, name, speed[origin] * weight[name] / total) for name in open_names]
        return flows


def _by_distance(
    origins: Iterable[str], distance: Mapping[str, Mapping[str, float]]
) -> Iterator[dict[str, list[str]]]:
    """Yield who reaches what at the smallest distance, at the next, and so on."""
    levels: dict[float, dict[str, list[str]]] = {}
    for origin in origins:
        for name, far in distance[origin].items():
            levels.setdefault(far, {}).setdefault(origin, []).append(name)
    for far in sorted(levels):
        yield levels[far]


def _way(current: Mapping[str, float], target: Mapping[str, float]) -> float:
    """Return the part of the demand that has to change its datacenter."""
    return math.fsum(max(0.0, share - current.get(name, 0.0)) for name, share in target.items())


def _between(
    current: Mapping[str, float], target: Mapping[str, float], part: float
) -> dict[str, float]:
    between = {}
    for name in {**current, **target}:
        share = current.get(name, 0.0)
        between[name] = share + part * (target.get(name, 0.0) - share)
    return between


def _check(
    demand: Mapping[str, float],
    capacity: Mapping[str, float],
    distance: Mapping[str, Mapping[str, float]],
) -> None:
    for name, most in capacity.items():
        check.number(f"capacity of datacenter {name!r}", most, 0.0, _MOST)
    for origin, wanted in demand.items():
        check.number(f"demand of origin {origin!r}", wanted, 0.0, _MOST)
        reachable = distance.get(origin, {})
        for name, far in reachable.items():
            if name not in capacity:
                raise ConfigError(f"origin {origin!r} names an unknown datacenter {name!r}")
            check.number(f"distance from {origin!r} to {name!r}", far, 0.0, _MOST)
        if not any(capacity[name] > 0.0 for name in reachable):
            raise ConfigError(f"origin {origin!r} reaches no datacenter that has capacity")


def _check_shares(which: str, shares: Shares) -> None:
    for origin, by_name in shares.items():
        for name, share in by_name.items():
            check.fraction(f"{which} share of origin {origin!r} in {name!r}", share)
        whole = math.fsum(by_name.values())
        if abs(whole - 1.0) > 1e-9:  # Far above what rounding does, far below what matters.
            raise ConfigError(f"{which} shares of origin {origin!r} must sum to 1, not {whole!r}")
