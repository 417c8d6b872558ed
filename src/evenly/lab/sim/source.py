"""Where requests come from: a Poisson stream per client task, whose rate follows the story."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Protocol, final

from evenly.core.criticality import Criticality
from evenly.core.level import draw_luck
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.job import Call
from evenly.lab.sim.scenario import Scenario, WorkloadConfig
from evenly.lab.sim.stage import Stage

__all__ = ["Mix", "Profile", "Sender", "Source"]


class Sender(Protocol):
    """Be what a call site calls."""

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request."""


@final
class Profile:
    """Know the offered load at every instant, as pieces of constant load."""

    __slots__ = ("_loads", "_starts", "end")

    def __init__(self, scenario: Scenario, load: float) -> None:
        pieces: list[tuple[float, float]] = []
        at = 0.0
        if scenario.phases:
            for phase in scenario.phases:
                pieces.append((at, load if phase.load is None else phase.load))
                at += phase.seconds
        else:
            pieces.append((0.0, load))
        self.end = scenario.total_seconds
        pieces = _with_bursts(pieces, scenario.workload, self.end)
        self._starts = [start for start, _ in pieces]
        self._loads = [height for _, height in pieces]

    def piece(self, now: float) -> tuple[float, float]:
        """Return the load at an instant, and until when it holds."""
        place = bisect_right(self._starts, now)
        until = self._starts[place] if place < len(self._starts) else self.end
        return self._loads[place - 1], until


@final
class Mix:
    """Draw who asks and how much it matters; a customer may surge."""

    def __init__(self, workload: WorkloadConfig) -> None:
        self._criticalities = list(workload.criticalities)
        self._criticality_sums = _sums(list(workload.criticalities.values()))
        self._customers = [customer.name for customer in workload.customers] or [""]
        self._shares = [customer.share for customer in workload.customers] or [1.0]
        self._customer_sums = _sums(self._shares)
        self._surges: dict[str, float] = {}
        self.factor = 1.0
        """How much more is sent in all because of surges."""
        self.on_surge: list[Callable[[], None]] = []
        """Who is to draw again when that changes."""

    def surge(self, customer: str, ratio: float) -> None:
        """Let a customer send `ratio` times as much as its share."""
        self._surges[customer] = ratio
        shares = [
            share * self._surges.get(name, 1.0)
            for name, share in zip(self._customers, self._shares, strict=True)
        ]
        self.factor = sum(shares) / sum(self._shares)
        self._customer_sums = _sums(shares)
        for draw_again in self.on_surge:
            draw_again()

    def criticality(self, luck: float) -> Criticality:
        """Draw a criticality."""
        return self._criticalities[bisect_right(self._criticality_sums, luck)]

    def customer(self, luck: float) -> str:
        """Draw a customer."""
        return self._customers[bisect_right(self._customer_sums, luck)]

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to draw."""
        return len(self._criticalities) == 1 and len(self._customers) == 1


@final
class _User:
    """Be one user's page, which takes several calls."""

    __slots__ = ("calls", "served")

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.served = 0


@final
class Source:
    """Be the call sites of one client task."""

    def __init__(
        self,
        stage: Stage,
        sender: Sender,
        *,
        name: str,
        requests_per_second: float,
        profile: Profile,
        mix: Mix,
        is_seldom: bool = False,
    ) -> None:
        self.sender = sender
        """Where requests go: a client task that restarts is replaced here."""
        self._stage = stage
        self._events = stage.events
        self._rng = stage.rng(f"{name}/source")
        self._random = self._rng.random
        self._luck = stage.rng(f"{name}/luck")
        self._calls = stage.scenario.workload.calls_per_user
        self._shares_luck = stage.scenario.workload.shares_luck
        self._is_seldom = is_seldom
        self._users_per_second = requests_per_second / self._calls
        self._profile = profile
        self._mix = mix
        self._timeout_seconds = stage.scenario.workload.timeout_seconds
        self._idempotent = stage.scenario.workload.idempotent
        self._is_plain = mix.is_plain
        self._has_customers = len(stage.scenario.workload.customers) > 1
        self._only = mix.criticality(0.0), mix.customer(0.0)
        self._rate = 0.0
        self._until = 0.0
        self._next_at = math.inf

    def start(self) -> None:
        """Begin to send."""
        self._mix.on_surge.append(self._draw_again)
        self._schedule()

    def _draw_again(self) -> None:
        self._until = 0.0
        self._schedule()

    def _schedule(self) -> None:
        """Draw the next arrival; where the rate changes before it, draw again from there.

        An exponential has no memory, so that is exact.
        """
        now = self._events.now
        self._next_at = math.inf
        while now < self._profile.end:
            if now >= self._until:
                load, self._until = self._profile.piece(now)
                self._rate = load * self._users_per_second
            rate = self._rate * self._mix.factor
            if rate > 0.0:
                at = now - math.log(1.0 - self._random()) / rate
                if at < self._until:
                    self._next_at = at
                    self._events.at(at, self._arrive)
                    return
            now = self._until

    def _arrive(self) -> None:
        if self._events.now != self._next_at:
            return  # A surge has moved it.
        self._schedule()
        if self._is_plain:
            criticality, customer = self._only
        else:
            criticality = self._mix.criticality(self._random())
            customer = self._mix.customer(self._random())
        if self._calls == 1:
            self._issue(criticality, customer, None, self._ended)
            return
        # All calls of a user at once; whoever gets less than all has got nothing.
        user = _User(self._calls)
        luck = draw_luck(self._luck) if self._shares_luck else None
        self._stage.recorder.second.users.setdefault(criticality, [0, 0])[0] += 1
        for _ in range(self._calls):
            self._issue(criticality, customer, luck, partial(self._ended_for, user))

    def _issue(
        self,
        criticality: Criticality,
        customer: str,
        luck: float | None,
        on_end: Callable[[Call, Outcome | Reason], None],
    ) -> None:
        request = Request(
            criticality=criticality,
            customer=customer,
            deadline_at=self._events.now + self._timeout_seconds,
            idempotent=self._idempotent,
            luck=luck,
        )
        second = self._stage.recorder.second
        second.offered[criticality] += 1
        if self._is_seldom:
            second.seldom_offered[criticality] += 1
        if self._has_customers:
            second.customers.setdefault(customer, [0, 0])[0] += 1
        self.sender.issue(request, on_end)

    def _ended_for(self, user: _User, call: Call, end: Outcome | Reason) -> None:
        user.served += end is Outcome.OK
        if user.served == user.calls:
            call.second.users[call.request.criticality][1] += 1
        self._ended(call, end)

    def _ended(self, call: Call, end: Outcome | Reason) -> None:
        second = call.second
        if end is Outcome.OK:
            second.succeeded[call.request.criticality] += 1
            if self._is_seldom:
                second.seldom_succeeded[call.request.criticality] += 1
            self._stage.recorder.second.completed += 1
            second.latencies.append(self._events.now - call.begun_at)
            if self._has_customers:
                second.customers[call.request.customer][1] += 1
        elif isinstance(end, Reason) or end.is_rejection:
            second.refused[call.request.criticality] += 1


def _sums(shares: list[float]) -> list[float]:
    """Return the upper ends of the shares' parts of [0, 1), the last left open."""
    total = sum(shares) or 1.0  # Where all are silent, nobody is drawn.
    return [part / total for part in accumulate(shares)][:-1]


def _with_bursts(
    pieces: list[tuple[float, float]], workload: WorkloadConfig, end: float
) -> list[tuple[float, float]]:
    bursts = workload.bursts
    if bursts is None:
        return pieces
    edges = {start for start, _ in pieces}
    count = math.ceil(end / bursts.every_seconds)
    for i in range(1, count):
        edges |= {i * bursts.every_seconds, i * bursts.every_seconds + bursts.seconds}
    result = []
    for edge in sorted(edge for edge in edges if edge < end):
        load = next(height for start, height in reversed(pieces) if start <= edge)
        turn = int(edge / bursts.every_seconds + 1e-9)  # The edge is on it, but for rounding.
        is_burst = turn >= 1 and edge < turn * bursts.every_seconds + bursts.seconds
        result.append((edge, load * bursts.factor if is_burst else load))
    return result
