"""Make frames of the children's lines: what happened in half a second, and how things stand.

Pure: told what each child has said, and when a frame is wanted.  Children count from their start,
so a frame is a difference of sums (`evenly.lab.demo.totals`): lines that come late, twice or not
at all move a count to another frame and lose none.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from evenly.lab.demo.plan import WILD_LOAD, BackendPlan, Plan
from evenly.lab.demo.totals import CRITICALITIES, ENDINGS, REASONS, Ledger, Totals, flatten

__all__ = ["FRAME_SECONDS", "SLOW_FACTOR", "Frame", "Frames", "Standing", "plan_clients"]

FRAME_SECONDS: Final = 0.5
SLOW_FACTOR: Final = 4.0
"""How much slower a backend is that has been slowed down."""
SILENT_SECONDS: Final = 1.5
"""A child that has said nothing for so long stands still.  Six of its lines: a busy machine may
well delay a few."""

_CLIENT_COUNTERS: Final = (
    *ENDINGS,
    "failed_by",
    "customers",
    "attempts",
    "retries",
    "latency",
)
_BACKEND_COUNTERS: Final = ("ok", "failed", "rejected")
_CPU: Final = ("cpu_seconds",)
_LIVE: Final = ("healthy", "lame duck")
# Enough for charts, and a sum over an hour of frames is still right to a request.
_DIGITS: Final = 4
_LATENCY_FRAMES: Final = 8

Frame = dict[str, Any]
Line = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Say what the supervisor knows of a child: what no line of it can tell."""

    is_running: bool = False
    is_stopped: bool = False
    """Whether it was stopped (SIGSTOP)."""
    pid: int | None = None
    address: str = ""
    metrics: str | None = None
    """Where its metrics are: a URL."""
    faults: tuple[str, ...] = ()


@final
class _Seen:
    """What one child has said."""

    def __init__(self) -> None:
        self.counts = Ledger()
        self.cpu = Ledger()
        self.line: Line | None = None
        self.pid: int | None = None
        self.was_healthy = False
        self.at = float("-inf")
        self.before = Totals()

    def saw(self, pid: int, line: Line, now: float, names: Iterable[str]) -> None:
        self.counts.record(pid, flatten(line, names))
        self.cpu.record(pid, flatten(line, _CPU))
        is_healthy = line.get("state") == "healthy"
        self.was_healthy = is_healthy or (self.was_healthy and pid == self.pid)
        self.line, self.pid, self.at = line, pid, now

    def since_before(self) -> Totals:
        """Return what was counted since this was asked last."""
        totals = Totals.of(0.0, [self.counts])
        since, self.before = totals - self.before, totals
        return since

    def current(self, standing: Standing) -> Line | None:
        """Return the latest line of the process that runs now, if it has said anything."""
        return self.line if standing.is_running and standing.pid == self.pid else None


@final
@dataclass(slots=True)
class _Shares:
    """What clients know of one backend."""

    weight: float = 0.0
    clients: int = 0


@final
class Frames:
    """Make one frame after the other; `now` is the fleet's clock, `began_at` its start on it."""

    def __init__(self, plan: Plan, *, began_at: float, cpu_seconds: float = 0.0) -> None:
        self._plan = plan
        self._capacity = plan.capacity  # Reads the system where CPU is real.
        self._began_at = began_at
        self._made_at = began_at
        self._backends = {backend.name: _Seen() for backend in plan.backends}
        self._clients = {name: _Seen() for name in plan_clients(plan)}
        self._before = Totals()
        self._recent = deque([Totals()], maxlen=_LATENCY_FRAMES)
        self._cpu_seconds = cpu_seconds

    def saw(self, name: str, pid: int, line: Line, now: float) -> None:
        """Learn a line of a backend or a client; others are not ours."""
        if line.get("is") == "backend" and name in self._backends:
            self._backends[name].saw(pid, line, now, _BACKEND_COUNTERS)
        elif line.get("is") == "client" and name in self._clients:
            self._clients[name].saw(pid, line, now, _CLIENT_COUNTERS)

    def totals(self, now: float) -> Totals:
        """Return what all clients have counted since the start, exactly."""
        return Totals.of(now, (seen.counts for seen in self._clients.values()))

    def make(
        self,
        now: float,
        *,
        settings: Mapping[str, Any],
        standings: Mapping[str, Standing],
        cpu_seconds: float,
        story: Mapping[str, Any] | None = None,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> Frame:
        """Return the frame from the last one until now."""
        seconds = now - self._made_at
        self._made_at = now
        totals = self.totals(now)
        part, self._before = totals - self._before, totals
        per = 1 / seconds if seconds > 0 else 0.0
        backends = self._backend_rows(now, standings, per)
        return {
            "t": round(now - self._began_at, 3),
            "seconds": round(seconds, 6),
            "settings": dict(settings),
            "capacity": _short(self._capacity),
            "capacity_now": _short(self._capacity_now(backends)),
            "offered": _short(_load(settings) * self._capacity),
            **_rates(part, per),
            "latency_ms": _latency_ms(totals - self._earlier(totals)),
            "active": self._active(standings),
            **_utilization(backends),
            "backends": backends,
            "clients": self._client_rows(standings, per),
            "story": None if story is None else dict(story),
            "events": [dict(event) for event in events],
            "demo_cores": _short(self._cpu_since(cpu_seconds) * per),
        }

    def _earlier(self, totals: Totals) -> Totals:
        """Return what had been counted some frames ago: one has too few answers for a p99."""
        earlier = self._recent[0]
        self._recent.append(totals)
        return earlier

    def _backend_rows(
        self, now: float, standings: Mapping[str, Standing], per: float
    ) -> list[dict[str, Any]]:
        shares = self._shares(standings)
        return [
            self._backend_row(plan, standings.get(plan.name, Standing()), now, per)
            | {
                "weight": _short(shares[plan.name].weight),
                "clients": shares[plan.name].clients,
            }
            for plan in self._plan.backends
        ]

    def _backend_row(
        self, plan: BackendPlan, standing: Standing, now: float, per: float
    ) -> dict[str, Any]:
        seen = self._backends[plan.name]
        since = seen.since_before()
        line = seen.current(standing)
        state = _state(standing, line if seen.was_healthy else None, now - seen.at)
        is_live = line is not None and state in _LIVE
        said = line if line is not None and is_live else {}
        faults = [fault for fault in standing.faults if fault != "stopped"]
        return {
            "name": plan.name,
            "address": standing.address,
            "pid": standing.pid if standing.is_running else None,
            "state": state,
            "speed": plan.speed,
            "capacity": _short(self._plan.capacity_of(plan)),
            "utilization": _short(_number(said.get("utilization"))),
            "active": int(_number(said.get("active"))),
            "waiting": int(_number(said.get("waiting"))),
            "cut": _short(_number(said.get("cut"))),
            "ok": _short(since.count("ok") * per),
            "failed": _short(since.count("failed") * per),
            "rejected": _short(since.count("rejected") * per),
            "faults": faults + ["stopped"] * (state == "stopped"),
            "metrics": standing.metrics,
        }

    def _shares(self, standings: Mapping[str, Standing]) -> dict[str, _Shares]:
        """Return each backend's mean share of the clients' weights; all together are 1."""
        shares = {plan.name: _Shares() for plan in self._plan.backends}
        names = {standing.address: name for name, standing in standings.items()}
        subsets = [
            _subset(line, names)
            for name, seen in self._clients.items()
            if (line := seen.current(standings.get(name, Standing()))) is not None
        ]
        for subset in subsets:
            total = sum(_number(entry.get("weight")) for _, entry in subset)
            for name, entry in subset:
                shares[name].clients += 1
                if total > 0:
                    shares[name].weight += _number(entry.get("weight")) / total / len(subsets)
        return shares

    def _client_rows(self, standings: Mapping[str, Standing], per: float) -> list[dict[str, Any]]:
        names = {standing.address: name for name, standing in standings.items()}
        return [
            _client_row(name, seen, standings.get(name, Standing()), names, per)
            for name, seen in self._clients.items()
        ]

    def _active(self, standings: Mapping[str, Standing]) -> int:
        lines = [
            seen.current(standings.get(name, Standing())) for name, seen in self._clients.items()
        ]
        return sum(int(_number(line.get("active"))) for line in lines if line is not None)

    def _capacity_now(self, backends: Iterable[Mapping[str, Any]]) -> float:
        """Return what the backends can serve that take new requests and do not fail them."""
        return sum(
            _slowed(backend)
            for backend in backends
            if backend["state"] == "healthy" and "fail" not in backend["faults"]
        )

    def _cpu_since(self, own_cpu_seconds: float) -> float:
        seen = (*self._backends.values(), *self._clients.values())
        cpu_seconds = own_cpu_seconds + sum(child.cpu.total(*_CPU) for child in seen)
        since, self._cpu_seconds = cpu_seconds - self._cpu_seconds, cpu_seconds
        return since


def plan_clients(plan: Plan) -> list[str]:
    """Return the names of the clients: c1, c2 and so on."""
    return [f"c{number}" for number in range(1, plan.clients + 1)]


def _state(standing: Standing, line: Line | None, silent_seconds: float) -> str:
    if not standing.is_running:
        return "down"
    if standing.is_stopped:
        return "stopped"
    if line is None:  # Until it is healthy for the first time it says that it is a lame duck.
        return "starting"
    if silent_seconds > SILENT_SECONDS:
        return "stopped"
    return str(line.get("state", "healthy"))


def _rates(part: Totals, per: float) -> Frame:
    ratio = part.retry_ratio
    return {
        "rates": {
            name: _short(part.count(name) * per) for name in (*ENDINGS, "attempts", "retries")
        },
        "retry_ratio": None if ratio is None else _short(ratio),
        "refused_by": {reason: _short(part.count("refused", reason) * per) for reason in REASONS},
        "failed_by": {kind: _short(number * per) for kind, number in part.failed_by().items()},
        "of": {
            criticality: {
                ending: _short(part.of_criticality(ending, criticality) * per) for ending in ENDINGS
            }
            for criticality in CRITICALITIES
        },
        "customers": {
            customer: {
                ending: _short(part.count("customers", customer, ending) * per)
                for ending in ENDINGS
            }
            for customer in part.customers()
        },
    }


def _latency_ms(part: Totals) -> dict[str, float] | None:
    found = {name: part.latency_ms(ratio) for name, ratio in _PERCENTILES.items()}
    return {name: round(value, 1) for name, value in found.items() if value is not None} or None


def _load(settings: Mapping[str, Any]) -> float:
    """Return what clients ask for, in units of the capacity."""
    return float(settings["load"]) + (WILD_LOAD if settings.get("is_wild") else 0.0)


_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _utilization(backends: Iterable[Mapping[str, Any]]) -> Frame:
    """Return how evenly the healthy backends are used; what leaves or starts is meant to idle.

    The mean is weighted by capacity: it is what the fleet uses of what it has.  If the busiest is
    full, 1 − mean/most of the capacity idles and cannot be had.  Work in line is no use of a
    machine, so that for this nobody counts for more than full.
    """
    live = [backend for backend in backends if backend["state"] == "healthy"]
    capacity = sum(map(_slowed, live))
    if not live or not capacity:
        return {"utilization": {"mean": 0.0, "most": 0.0, "least": 0.0}, "wasted": 0.0}
    each = [(backend["utilization"], _slowed(backend) / capacity) for backend in live]
    used = sum(min(value, 1.0) * share for value, share in each)
    most = min(max(value for value, _ in each), 1.0)
    return {
        "utilization": {
            "mean": _short(sum(value * share for value, share in each)),
            "most": max(value for value, _ in each),
            "least": min(value for value, _ in each),
        },
        "wasted": _short(max(0.0, 1 - used / most)) if most > 0 else 0.0,
    }


def _slowed(backend: Mapping[str, Any]) -> float:
    capacity = float(backend["capacity"])
    return capacity / SLOW_FACTOR if "slow" in backend["faults"] else capacity


def _client_row(
    name: str, seen: _Seen, standing: Standing, names: Mapping[str, str], per: float
) -> dict[str, Any]:
    since = seen.since_before()
    line = seen.current(standing) or {}
    subset = _subset(line, names)
    probability = line.get("throttle_probability")
    return {
        "name": name,
        "pid": standing.pid if standing.is_running else None,
        "asked": _short(since.count("asked") * per),
        "ok": _short(since.count("ok") * per),
        "subset": [backend for backend, _ in subset],
        "states": {backend: str(entry.get("state")) for backend, entry in subset},
        "line": _short(_number(line.get("line"))),
        "throttle_probability": {
            criticality: _short(_number(probability.get(criticality)))
            for criticality in CRITICALITIES
        }
        if isinstance(probability, dict)
        else {},
        "metrics": standing.metrics,
    }


def _subset(line: Line, names: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the backends of a client's subset that we know, in the order of their names."""
    subset = line.get("subset")
    if not isinstance(subset, list):
        return []
    entries: Collection[tuple[str, Mapping[str, Any]]] = [
        (names[str(entry["address"])], entry)
        for entry in subset
        if isinstance(entry, dict) and str(entry.get("address")) in names
    ]
    return sorted(entries, key=lambda pair: (len(pair[0]), pair[0]))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _short(value: float) -> float:
    return round(value, _DIGITS)
