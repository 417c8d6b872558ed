"""The serving side's façade: every decision that a backend makes about the requests it gets.

SRE book, chapter 21: "a backend task provisioned to serve a certain traffic rate should continue to
serve traffic at that rate without any significant impact on latency, regardless of how much excess
traffic is thrown at the task".  It never awaits, sleeps or reads the system: a transport brings the
requests, and the readers in `evenly.signals` the numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, final, overload

from evenly.core import check
from evenly.core.admission import Admission
from evenly.core.averages import Averages
from evenly.core.backend_task_config import BackendTaskConfig
from evenly.core.clock import Clock
from evenly.core.criticality import Criticality
from evenly.core.level import draw_luck
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.cost import COST_MOST_SECONDS, CostKeeper
from evenly.core.overload.cut_line import CutLine
from evenly.core.overload.quota import CustomerSnapshot, Quotas, Reservation
from evenly.core.overload.retry import AttemptHistogram
from evenly.core.overload.runnable import Runnable
from evenly.core.overload.utilization import Utilization, UtilizationSnapshot
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.core.window import DecayingCount
from evenly.errors import UsageError

__all__ = ["Admission", "BackendTask", "BackendTaskConfig", "BackendTaskSnapshot"]

Kind = TypeVar("Kind", bound=Admission)

_OK = Outcome.OK
_EXPIRED = Rejection(Reason.EXPIRED, retryable=False)
_OVERLOADED = Rejection(Reason.OVERLOADED, retryable=True)
_DONT_RETRY = Rejection(Reason.DONT_RETRY, retryable=False)
_RUNNABLE = "runnable"
# What arrives and ends within so long is counted together: arrivals as having come with the last.
_COUNT_SECONDS = 0.01
# How much of a criticality is refused before it is shown: a line may move to and fro at its border.
_SHUT_FROM = 0.125


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTaskSnapshot:
    """Show what a backend is doing."""

    active: int
    reported_utilization: float
    """What clients are told; 0 is unknown."""
    is_lame_duck: bool
    is_drained: bool
    cut: float
    """Requests below this level are refused now."""
    rejection_probabilities: tuple[float, ...]
    """One per criticality, SHEDDABLE first, for a request that nobody gave its luck."""
    utilization: UtilizationSnapshot
    customers: Mapping[str, CustomerSnapshot]
    attempts: tuple[int, ...]
    """How many recent arrivals were a first attempt, a second, and so on."""


@final
class BackendTask:
    """Decide which requests one backend serves, and say how it is.

    It starts as a lame duck, so that clients can connect while it warms up, and is healthy from
    `announce_healthy` on.
    """

    def __init__(
        self,
        config: BackendTaskConfig,
        *,
        clock: Clock,
        rng: random.Random,
        boot: int,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        check.count("boot", boot, 0, 2**63 - 1)
        self._config = config
        self._clock = clock
        self._rng = rng
        self._boot = boot
        self._observer = observer
        self._utilization = Utilization(config.utilization)
        self._quotas = None if config.quota is None else Quotas(config.quota)
        self._cost = CostKeeper(config.cost)
        self._attempts = AttemptHistogram(config.attempts)
        self._served = DecayingCount(config.rate_seconds)
        self._failed = DecayingCount(config.rate_seconds)
        # Whether nobody asks what each single request has cost.
        self._is_plain = config.quota is None and observer is NO_OBSERVER
        self._averages = Averages()
        # Requests finished and averaged, admitted and counted, and the last arrival.
        self._finished = self._arrived = 0
        self._arrived_at = self._count_at = -math.inf
        self.active = 0
        """Requests admitted and not finished."""
        self.limits_queue = config.limits_queue
        """Whether the queue's cut-line holds; it may change at any time."""
        now = clock()
        self._runnable = Runnable(config.cores, config.rate_seconds, now)
        self._cut_line = CutLine(self._runnable, config.cores, now)
        # The highest of what the queue and the signals say, as of the last count.
        self._cut = 0.0
        self._used_seconds_total = 0.0
        self._alarm_at = math.inf
        self._sequence = 0
        self._is_lame_duck = True
        self._leaving_since: float | None = None
        self._busy_at = now
        # How many criticalities the observer has been told are refused.
        self._shut = 0
        self._probe_port = config.probe_port

    def update_boot(self, boot: int) -> None:
        """Speak for another process from now on: a fork has copied this one into it."""
        check.count("boot", boot, 0, 2**63 - 1)
        self._boot = boot

    @property
    def cut(self) -> float:
        """The level below which it refuses, as of the last count; may be read at any time."""
        return self._cut

    @property
    def wait_seconds(self) -> float:
        """How long a request that arrives now takes; 0 where nobody waits, or it does not count."""
        return self._cut_line.wait_seconds if self.limits_queue else 0.0

    @property
    def finished(self) -> int:
        """Requests finished since the start."""
        return self._finished + self._averages.count

    @overload
    def admit(
        self,
        request: Request,
        attempt: int = 1,
        *,
        seconds_left: float | None = None,
        luck: float | None = None,
        line: float = 0.0,
    ) -> Admission | Rejection: ...
    @overload
    def admit(
        self,
        request: Request,
        attempt: int,
        kind: type[Kind],
        seconds_left: float | None = None,
        *,
        luck: float | None = None,
        line: float = 0.0,
    ) -> Kind | Rejection: ...
    def admit(  # noqa: C901, PLR0912 -- written out: once per request
        self,
        request: Request,
        attempt: int = 1,
        kind: type[Admission] = Admission,
        seconds_left: float | None = None,
        *,
        luck: float | None = None,
        line: float = 0.0,
    ) -> Admission | Rejection:
        """Take a request or refuse it, before its body is read; `kind` is made of it.

        `seconds_left` until the deadline and `luck` are for a `request` that others share, and
        replace its own.  `line` is the level below which its client task sends nothing.  Nothing
        that a caller may claim raises here, by way of `evenly.core.claim.believe`.
        A lame duck still serves: whoever sends to it has not heard yet, or has nobody else.
        """
        clock = self._clock  # A call of an attribute takes the slow way; so does one in `finish`.
        now = clock()
        if attempt != 1 or not self._attempts.is_peaceful:
            self._attempts.record(attempt)
        deadline_at = request.deadline_at
        if seconds_left is not None:
            deadline_at = now + seconds_left
            if not self._is_plain:
                request = request.until(deadline_at)
        if deadline_at is not None and not deadline_at > now:
            return self._reject(request, _EXPIRED, now)
        reservation: Reservation | None = None
        if self._quotas is not None:
            reservation = self._quotas.admit(request.customer, request.criticality, now)
            if reservation is None:
                return self._reject(request, _out_of_quota(self._quotas, request, now), now)
        if now >= self._count_at:
            self._count(now)
        if luck is None:
            luck = request.luck
        cut_line = self._cut_line
        criticality = request.criticality
        cut_line.arrived[criticality] += 1
        if line:
            cut_line.hold_back(criticality, line)
        if criticality < self._cut or (cut_line.wait_seconds and self.limits_queue):
            if luck is None:
                luck = draw_luck(self._rng)
            if self._is_too_much(criticality + luck, deadline_at, now):
                if reservation is not None:
                    reservation.cancel(now)
                widespread = self._attempts.retries_are_widespread
                return self._reject(request, _DONT_RETRY if widespread else _OVERLOADED, now)
        admission = kind()
        admission.task = self
        admission._said = request  # noqa: SLF001 -- its own
        admission.deadline_at = deadline_at
        admission.luck = luck
        admission.reservation = reservation
        admission.admitted_at = now
        admission.is_finished = False
        self.active += 1
        self._arrived_at = now
        if not self._is_plain:
            self._observer.request_admitted(request)
        return admission

    def _is_too_much(self, level: float, deadline_at: float | None, now: float) -> bool:
        """Return whether a request is below the line, or would be answered too late."""
        return level < self._cut or (
            deadline_at is not None and deadline_at - now < self.wait_seconds
        )

    def pass_on(self, admission: Admission, cpu_seconds: float = 0.0) -> Rejection:
        """End a request whose handler let a rejection from below out; return what to answer.

        That is "don't retry", whatever was said below: "requests should only be retried at the
        layer immediately above the layer that is rejecting them" (book), or retries multiply.
        """
        self.finish(admission, Outcome.DONT_RETRY, cpu_seconds)
        return self._reject(admission.request, _DONT_RETRY, self._busy_at)

    def check_signal(self, name: str) -> None:
        """Raise unless there is such a signal; any thread may ask."""
        if name != _RUNNABLE:
            self._utilization.check(name)

    def record_signal(self, name: str, value: float) -> None:
        """Learn a signal's value; `runnable` is a count of requests, for all cores together.

        A value that is no finite number of at least 0 is ignored: readers may misbehave.
        """
        now = self._clock()
        if name == _RUNNABLE:
            self._runnable.record(value, now)
        else:
            self._utilization.record(name, value, now)
            self._count_at = -math.inf  # What follows from it holds at once.
        if now >= self._count_at or self._runnable.count > self._alarm_at:
            self._count(now)

    def record_process(self, cpu_seconds_total: float) -> None:
        """Learn the process's CPU clock, so that what no handler used is spread over requests."""
        self._average()
        self._cost.record_process(cpu_seconds_total, self._clock())

    def report(self) -> LoadReport:
        """Return what to say in a response or in a probe's answer."""
        now = self._clock()
        seconds = self._config.rate_seconds
        self._count(now)
        ended = self._averages
        runnable = self._runnable.reported(self.active, now)
        if self._cut > self._cut_line.value:
            # A backend that is short of memory, or of something of its own, has an empty queue:
            # clients that send where the queue is shortest would all send there.
            runnable = max(runnable, (1.0 + self._cut) * self._cut_line.target())
        return LoadReport(
            boot=self._boot,
            sequence=self._sequence,
            lame_duck=self._is_lame_duck,
            cut=self._cut,
            runnable=runnable,
            active=self.active,
            utilization=self._reported_utilization(now),
            qps=self._served.value(now) / seconds,
            eps=self._failed.value(now) / seconds,
            # Scaled to the present: one that nobody sends to would go on telling what was, and so
            # be sent nothing for ever.
            latency_seconds=ended.latency_seconds * (self.active + 1.0) / ended.usual_active,
            compute_units=self._config.cost.compute_units,
            probe_port=self._probe_port,
        )

    def announce_probe_port(self, port: int | None) -> None:
        """Say from now on at which UDP port probes are answered; `None` is the service's own."""
        if port is not None:
            check.count("probe_port", port, 1, 65535)
        self._probe_port = port

    def should_degrade(self, level: float) -> bool:
        """Return whether a cheaper answer is wanted for a request; any thread may ask.

        That begins when the queue is longer than it should be, and where the line is within a
        criticality of the request: who is not refused yet makes do with less.
        """
        cut = self._cut
        return (
            (self.limits_queue and self._cut_line.is_long)
            or (cut > 0.0 and cut > level - 1.0)
            or self._utilization.should_degrade(self._clock())
        )

    def announce_healthy(self) -> bool:
        """Leave the lame duck state, warmed up; return False if it has begun to shut down."""
        if self._leaving_since is not None:
            return False
        self._set_lame_duck(is_lame_duck=False)
        return True

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere, for good: step 2 of the book's clean shutdown."""
        if self._leaving_since is None:
            self._leaving_since = self._busy_at = self._clock()
            self._set_lame_duck(is_lame_duck=True)

    def is_drained(self) -> bool:
        """Return whether the process may exit: nobody is left, or time is up."""
        return self._clock() >= self._drained_at()

    def next_wake_at(self) -> float:
        """Return when to look again whether it is drained; `inf` unless it is leaving.

        Ask again whenever a request has finished: the last one makes it sooner.
        """
        return self._drained_at()

    def quota_demand(self) -> Mapping[str, float]:
        """Return what customers ask of this backend, for whoever aggregates it."""
        return {} if self._quotas is None else self._quotas.demand(self._clock())

    def update_quotas(self, effective: Mapping[str, float]) -> None:
        """Take this backend's effective limits."""
        if self._quotas is not None:
            self._quotas.update_limits(effective, self._clock())

    def snapshot(self) -> BackendTaskSnapshot:
        """Return what is known now."""
        now = self._clock()
        self._count(now)
        return BackendTaskSnapshot(
            active=self.active,
            reported_utilization=self._reported_utilization(now),
            is_lame_duck=self._is_lame_duck,
            is_drained=now >= self._drained_at(),
            cut=self._cut,
            rejection_probabilities=tuple(
                min(1.0, max(0.0, self._cut - criticality)) for criticality in Criticality
            ),
            utilization=self._utilization.snapshot(now),
            customers={} if self._quotas is None else self._quotas.snapshot(now),
            attempts=self._attempts.snapshot().counts,
        )

    def _count(self, now: float) -> None:
        """Count what has arrived and ended, and find the cut-line: for many requests together."""
        arrived = self.active + self.finished
        if arrived > self._arrived:
            self._served.add(self._arrived_at, float(arrived - self._arrived))
            self._arrived = arrived
        self._average()
        self._count_at = now + _COUNT_SECONDS
        cut = self._utilization.cut(now)
        cut_line = self._cut_line
        cut_line.fold(self._passed(), self._used_seconds_total, now)
        # A burst is seen while it comes, and not 10 ms later.
        self._alarm_at = max(2.0 * cut_line.target(), 1.5 * self._runnable.count)
        if cut_line.value > cut and self.limits_queue:
            cut = cut_line.value
        self._cut = cut
        if self._observer is not NO_OBSERVER:
            self._show_admits()

    def _passed(self) -> float:
        """Return how many requests have passed the queue; 0 as long as none has ended."""
        finished = float(self._finished)
        return max(finished, self.active + finished - self._runnable.count) if finished else 0.0

    def _average(self) -> None:
        """Take what has ended into the averages; before anything is made of them."""
        ended = self._averages
        if ended.count:
            self._finished += ended.count
            cost = self._cost.settle(ended.cpu_seconds, ended.count)
            used_seconds = self._used_seconds(cost, ended.count)
            self._used_seconds_total += used_seconds
            ended.take(used_seconds)

    def _used_seconds(self, cost: float, count: int = 1) -> float:
        """Return what requests used by this machine's clock, paid for or not."""
        return cost / self._config.cost.compute_units + count * self._cost.unpaid_seconds

    def _reported_utilization(self, now: float) -> float:
        cpu = self._utilization.value(now)
        return cpu if cpu > 0.0 else self._runnable.busy_ratio(now)

    def _reject(self, request: Request, rejection: Rejection, now: float) -> Rejection:
        self._busy_at = now
        self._observer.request_rejected(request, rejection.reason)
        return rejection

    def finish(self, admission: Admission, outcome: Outcome, cpu_seconds: float = 0.0) -> None:
        """End a request, on every path and exactly once: `Admission.finish` does the same."""
        if admission.is_finished:
            raise UsageError(
                f"finish({outcome.name}): this request has finished already: {admission!r}"
            )
        admission.is_finished = True
        clock = self._clock
        self._busy_at = now = clock()
        active = self.active
        self.active = active - 1
        seconds = now - admission.admitted_at
        if seconds < 0.0:  # A clock may step back.
            seconds = 0.0
        if (
            outcome is _OK
            and self._is_plain
            and type(cpu_seconds) is float
            and 0.0 < cpu_seconds <= COST_MOST_SECONDS
        ):
            ended = self._averages
            ended.count += 1
            ended.active += active
            ended.seconds += seconds
            ended.cpu_seconds += cpu_seconds
        else:
            self._finish_alone(admission, outcome, cpu_seconds, seconds)

    def _finish_alone(
        self, admission: Admission, outcome: Outcome, cpu_seconds: float, seconds: float
    ) -> None:
        self._average()  # those before it
        self._finished += 1
        cost = self._cost.settle(cpu_seconds)
        if admission.reservation is not None:
            is_typical = outcome is not Outcome.CANCELLED
            admission.reservation.finish(cost, self._busy_at, is_typical=is_typical)
        used_seconds = self._used_seconds(cost)
        self._used_seconds_total += used_seconds
        if outcome is Outcome.ERROR:
            self._failed.add(self._busy_at)
        elif outcome is _OK:
            self._averages.record(1, seconds, self.active + 1.0, used_seconds)
        self._observer.request_finished(admission.request, outcome, cost, seconds)

    def _drained_at(self) -> float:
        since = self._leaving_since
        if since is None:
            return math.inf
        latest = since + self._config.drain_seconds
        return latest if self.active else min(latest, self._busy_at + self._config.quiet_seconds)

    def _set_lame_duck(self, *, is_lame_duck: bool) -> None:
        if self._is_lame_duck != is_lame_duck:
            self._is_lame_duck = is_lame_duck
            self._sequence += 1
            self._observer.lame_duck_changed(is_lame_duck=is_lame_duck)

    def _show_admits(self) -> None:
        """Show which criticalities are refused, all or some: a line that is hardly there is not."""
        while self._cut > self._shut + _SHUT_FROM:
            self._observer.admission_changed(Criticality(self._shut), is_admitted=False)
            self._shut += 1
        while self._shut and self._cut <= self._shut - 1:
            self._shut -= 1
            self._observer.admission_changed(Criticality(self._shut), is_admitted=True)


def _out_of_quota(quotas: Quotas, request: Request, now: float) -> Rejection:
    seconds = quotas.seconds_until(request.customer, request.criticality, now)
    after = seconds if seconds < math.inf else None
    return Rejection(Reason.OUT_OF_QUOTA, retryable=False, retry_after_seconds=after)
