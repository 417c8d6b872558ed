"""The calling side's façade: every decision that a client task makes about one service.

It never awaits, sleeps or opens anything: it says what to do next, and is told what happened.  A
transport (gRPC, HTTP, or the simulator) does the rest:

- after `update`, `wake`, every `record_*`, and a `begin` that finds no backend, or one without a
  connection: do what `take_connections` says;
- after `wake` and `begin`: probe what `take_probes` says;
- at `next_wake_at`: call `wake`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import final

from evenly.core import check
from evenly.core.attempt import Ask, Attempt
from evenly.core.balancing.backend import Backend, BackendSnapshot, BackendView
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.membership import (
    ConnectionEvent,
    ConnectionOrders,
    Membership,
    MembershipConfig,
)
from evenly.core.balancing.out_of_band import OutOfBand
from evenly.core.balancing.policies.catalogue import PolicyConfig, make_policy
from evenly.core.clock import Clock
from evenly.core.level import draw_luck, level_of
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.retry import RetryBudget, RetryConfig, may_retry
from evenly.core.overload.throttle import Throttle, ThrottleSnapshot
from evenly.core.overload.throttle_catalogue import ThrottleConfig, make_throttle
from evenly.core.report import LoadReport
from evenly.core.request import Cause, Next, Outcome, Reason, Rejection, Request
from evenly.errors import UsageError

__all__ = ["ClientTask", "ClientTaskConfig", "ClientTaskMemory", "ClientTaskSnapshot"]

_THROTTLED = {cause: Rejection(Reason.THROTTLED, retryable=False, cause=cause) for cause in Cause}
_EXPIRED = Rejection(Reason.EXPIRED, retryable=False)
_NO_BACKEND = Rejection(Reason.NO_BACKEND, retryable=False)
_AT_LIMIT = Rejection(Reason.AT_LIMIT, retryable=True)
# By their own names, because an enum's members take long to look up.
_OK = Outcome.OK
_NOT_SENT = Outcome.NOT_SENT
_TIMEOUT = Outcome.TIMEOUT
_DONE = Next.DONE
# How often the policy learns weights anew and errors fade; its constants are per second.
_POLICY_SECONDS = 1.0
# How fast the average round trip follows new ones: about the last ten count.
_ROUND_TRIP_GAIN = 0.1
# How often a request is sent elsewhere because its connection could not be had.
_NOT_SENT_MAX = 3
# A report of fewer errors per second than this does not know of the error that it came with.
_LEAST_EPS = 0.05
# For how long a report stands for the ones that are left out: backends make one every 10 ms.
_REPEAT_SECONDS = 0.02
# How many backends a throttled client task asks whether it may send again.
_THROTTLE_PROBES = 2
# A backend that is known to refuse a request is passed over so often, ...
_REPICKS = 3
# ... if that was heard so lately.
_CUT_SECONDS = 0.3
# Who refuses is counted so often, among those that were heard so lately.
_COUNT_SECONDS = 0.01
_KNOWN_SECONDS = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTaskConfig:
    """Set how one client task talks to one service."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    throttle: ThrottleConfig = field(default_factory=ThrottleConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    active_limit: int = 100
    """Active requests per backend from this client task (book)."""
    ask_seconds: float = 0.05
    """The most that a request waits for probes before it is sent."""

    def __post_init__(self) -> None:
        check.count("active_limit", self.active_limit, 1, 1_000_000)
        check.number("ask_seconds", self.ask_seconds, 0.0, 10.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTaskSnapshot:
    """Show what a client task knows."""

    policy: str
    known: int
    """Backends of the service, in the subset or not."""
    active: int
    """Attempts begun and not finished."""
    backends: tuple[BackendSnapshot, ...]
    """The subset, and what has left it with attempts unfinished."""
    throttle: ThrottleSnapshot
    retry_balance: float
    """Retries that the budget has left."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTaskMemory:
    """Be what a client task has learnt of a service's overload, and the next one needs.

    It has one user at a time, and all have the same clock and the same configs of the two.
    """

    throttle: Throttle
    retry_budget: RetryBudget


@final
class ClientTask:
    """Decide, for one service and one process, which backend gets each request."""

    def __init__(
        self,
        config: ClientTaskConfig,
        *,
        clock: Clock,
        rng: random.Random,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        now = clock()
        self._config = config
        self._clock = clock
        self._observer = observer
        self._rng = rng
        self.remember(self._new_memory(now))
        self._policy = make_policy(config.policy, rng=rng, now=now)
        self._candidates = Candidates(self._policy, active_limit=config.active_limit)
        self._membership = Membership(
            config.membership, self._candidates, rng=rng, observer=observer
        )
        self._erring: dict[BackendView, None] = {}
        # When a backend last said that it refuses something, and whether most do.
        self._cut_at = self._counted_at = -math.inf
        self._most_refuse = True
        self._probes_due: list[BackendView] = []
        self._round_trip_seconds: float | None = None
        self._is_worth_asking = True
        self._check_seconds = config.membership.health.check_seconds
        # Client tasks that start together must not go on in step.
        self._check_at = now + self._check_seconds * (0.5 + rng.random())
        self._policy_at = now + _POLICY_SECONDS * (0.5 + rng.random())
        self._finish_attempt = self._finish  # Bound once rather than per attempt.

    def remember(self, memory: ClientTaskMemory) -> None:
        """Go on with what another client task of this service has learnt, and has left."""
        self._throttle = memory.throttle
        self._retry_budget = memory.retry_budget

    def leave_memory(self) -> ClientTaskMemory:
        """Return what was learnt, for another, and begin anew: what ends later is not in it."""
        left = ClientTaskMemory(throttle=self._throttle, retry_budget=self._retry_budget)
        self.remember(self._new_memory(self._clock()))
        return left

    def _new_memory(self, now: float) -> ClientTaskMemory:
        return ClientTaskMemory(
            throttle=make_throttle(self._config.throttle, rng=self._rng, now=now),
            retry_budget=RetryBudget(self._config.retry),
        )

    def update(self, backends: Sequence[Backend]) -> None:
        """Learn the service's backends.  An empty list is one: every request is rejected then.

        Raises `ConfigError`, and changes nothing, if two backends share an address or an index.
        """
        self._membership.update(backends, self._clock())

    def begin(self, request: Request, previous: Attempt | None = None) -> Attempt | Ask | Rejection:
        """Choose a backend for a request; `previous` makes it a retry, elsewhere if possible.

        A retry neither asks nor is throttled: it was allowed, and paid for, when the attempt before
        ended with `Next.RETRY`.
        """
        now = self._clock()
        if previous is not None:
            return self._retry(request, previous, now)
        if request.deadline_at is not None and not request.deadline_at > now:
            return self.refuse(request, _EXPIRED)
        throttle = self._throttle
        views: Sequence[BackendView]
        if throttle.is_troubled:
            level = level_of(request, self._rng)
            if throttle.should_ask(level, now):
                views = self._candidates.some(_THROTTLE_PROBES)
                if views:
                    return self._ask(self._resume_throttled, request, views, now)
            left = _seconds_left(request, now)
            if not throttle.admit(level, request.customer, now, left):
                return self.refuse(request, _THROTTLED[throttle.cause])
        policy = self._policy
        if policy.asks and self._is_worth_asking and self._candidates.are_healthy:
            views = policy.ask(now)
            if views:
                return self._ask(self._resume, request, views, now)
        return self._start(request, None, now)

    def withdraw(self) -> None:
        """Learn that a request that was never sent is to be begun anew: it counts once."""
        self._retry_budget.unearn()

    def record_report(
        self, backend: Backend, report: LoadReport, *, is_probe: bool = False
    ) -> None:
        """Learn what a backend says of itself, whenever and however that arrives.

        `is_probe` says that it answers a probe by UDP, rather than coming with a response.  Ignored
        are a backend that is not in the subset, and a report older than one already known.
        """
        now = self._clock()
        view = self._membership.view(backend)
        if view is None:
            return
        if is_probe:
            self._time_probe(view, now)
        health = view.health
        before = health.state
        health.heard()
        is_current = health.said(report.boot, report.sequence, now, lame_duck=report.lame_duck)
        is_news = health.state is not before
        if is_news:
            self._membership.moved(view, now)
        if not is_current:
            return
        is_another = view.report is not None and view.report.boot != report.boot
        if is_another and not health.is_shared:
            # Another process: it is cold, and its predecessor's rates say nothing about it.
            self._candidates.renew(view, now)
        view.report = report
        view.reported_at = now
        if not is_probe:
            view.told_at = now
        self._record_cut(report.cut, now)
        # That a backend is healthy again is told to everyone at once; were its empty queue a fact
        # to go by, everyone's next request would meet there.
        if not is_news:
            self._policy.record_report(view, report, now, is_probe=is_probe)

    def record_repeat(self, backend: Backend) -> None:
        """Learn that a backend answered well and without a report: what it said last still holds.

        A backend says nothing twice over one connection.  Where its last word is not of a moment
        ago, this says nothing: it may be one that does not report at all.
        """
        now = self._clock()
        view = self._membership.view(backend)
        if view is None or now - view.told_at > _REPEAT_SECONDS or view.report is None:
            return
        view.reported_at = now
        self._record_cut(view.report.cut, now)
        self._policy.record_report(view, view.report, now, is_probe=False)

    def _record_cut(self, cut: float, now: float) -> None:
        """Learn where a backend cuts; it speaks for all only where most of them refuse something.

        A single one may be short of memory, and is passed over.
        """
        if cut:
            self._cut_at = now
            if not self._do_most_refuse(now):
                cut = 0.0
        self._throttle.record_report(cut, now)

    def _do_most_refuse(self, now: float) -> bool:
        if abs(now - self._counted_at) >= _COUNT_SECONDS:
            self._counted_at = now
            cuts = [
                view.report.cut
                for view in self._membership.views
                if view.in_subset
                and view.report is not None
                and now - view.reported_at <= _KNOWN_SECONDS
            ]
            self._most_refuse = 2 * sum(cut > 0.0 for cut in cuts) >= len(cuts)
        return self._most_refuse

    def wants_orca(self, view: BackendView) -> bool:
        """Return whether what a response says in ORCA is news: our own words are, or were it."""
        return self._clock() - max(view.reported_at, view.orca_at) > _REPEAT_SECONDS

    def record_orca(self, backend: Backend, report: LoadReport) -> None:
        """Learn what a backend that is not ours says of its load: it makes its weight."""
        view = self._membership.view(backend)
        if view is not None:
            view.orca = report
            view.orca_at = self._clock()

    def out_of_band(self, backend: Backend) -> OutOfBand | None:
        """Return what decides when to ask for ORCA, over a connection that stands from now on."""
        view = self._membership.view(backend)
        return None if view is None else OutOfBand(view, self._clock(), rng=self._rng)

    def record_serving(self, backend: Backend, *, serving: bool) -> None:
        """Learn what `grpc.health.v1` Watch, or a readiness check, says of a backend."""
        now = self._clock()
        view = self._membership.view(backend)
        if view is not None:
            view.health.heard()
            view.health.watched(serving=serving)
            self._membership.moved(view, now)

    def record_connection(self, backend: Backend, event: ConnectionEvent) -> None:
        """Learn what happened to the connection to a backend."""
        now = self._clock()
        view = self._membership.view(backend)
        if view is not None:
            self._membership.connection(view, event, now)

    @property
    def line(self) -> float:
        """The level below which nothing is sent now, because backends would refuse it."""
        return self._throttle.line(self._clock())

    def is_resting(self) -> bool:
        """Return whether some backend has no connection because nobody used it."""
        return any(view.in_subset and view.health.is_idle for view in self._membership.views)

    def is_connected_without(self, attempt: Attempt) -> bool:
        """Return whether a connection stands to some other backend than an attempt's."""
        return any(
            view.in_subset and view.health.is_connected and not view.health.is_refusing
            for view in self._membership.views
            if view is not attempt.view
        )

    def demand_one(self) -> None:
        """Have a connection opened to one backend that rests: somebody wants to see it stand.

        Where all refuse, one of them is tried, as for a request.
        """
        now = self._clock()
        for view in self._membership.views:
            if view.in_subset and view.health.is_idle:
                self._membership.demand(view, now)
                return
        if not self._candidates.exist:
            self._membership.want(now)

    def take_connections(self) -> ConnectionOrders:
        """Return what to disconnect from and what to connect to, in this order; each is said once.

        A backend that left and came back in between is in both.
        """
        return self._membership.take_connections(self._clock())

    def take_probes(self) -> Sequence[Backend]:
        """Return the backends to probe in the background; each is said once.

        These are health checks, and what the policy wants for later picks.
        """
        due = self._probes_due
        if not due and not self._policy.wants_probes:
            return ()
        wanted = self._policy.take_probes()
        now = self._clock()
        self._probes_due = []
        probes: list[Backend] = []
        for view in dict.fromkeys((*due, *wanted)):
            if view.in_subset:
                self._note_probe(view, now)
                probes.append(view.backend)
        return probes

    def next_wake_at(self) -> float:
        """Return when `wake` is to be called, on this task's clock."""
        return min(self._check_at, self._policy_at, self._membership.connect_at)

    def wake(self) -> None:
        """Do the periodic work that is due."""
        now = self._clock()
        if now >= self._policy_at:
            self._policy_at = now + _POLICY_SECONDS
            self._fade_errors(now)
            self._policy.wake(now)
            self._is_worth_asking = self._are_answers_worth_their_wait()
        if now >= self._check_at:
            self._check_at = now + self._check_seconds
            self._probes_due = self._membership.check_health(now)
        if now >= self._membership.connect_at:
            self._membership.reconnect(now)

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known now."""
        now = self._clock()
        views = self._membership.views
        return ClientTaskSnapshot(
            policy=self._config.policy.name,
            known=self._membership.known,
            active=sum(view.active for view in views),
            backends=tuple(view.snapshot(now) for view in views),
            throttle=self._throttle.snapshot(now),
            retry_balance=self._retry_budget.balance,
        )

    def _ask(
        self,
        resume: Callable[[Ask], Attempt | Rejection],
        request: Request,
        views: Sequence[BackendView],
        now: float,
    ) -> Ask:
        for view in views:
            self._note_probe(view, now)
        wait_seconds = self._config.ask_seconds
        if self._round_trip_seconds is not None:
            # "About two round trips": one for the probe, one for the odd late one.
            wait_seconds = min(wait_seconds, 2.0 * self._round_trip_seconds)
        self._observer.asked(len(views))
        return Ask(resume, request, views, wait_seconds=wait_seconds, now=now)

    def _resume(self, ask: Ask) -> Attempt | Rejection:
        now = self._clock()
        # The policy asked how busy they are, and heard whether they would refuse: for a client task
        # that seldom sends, that may be the first it hears of an overload.
        throttle = self._throttle
        if throttle.is_troubled and throttle.should_ask(level_of(ask.request, self._rng), now):
            return self._start_asked(ask, now, is_admitted=True)
        return self._start(ask.request, None, now)

    def _resume_throttled(self, ask: Ask) -> Attempt | Rejection:
        return self._start_asked(ask, self._clock(), is_admitted=False)

    def _start_asked(self, ask: Ask, now: float, *, is_admitted: bool) -> Attempt | Rejection:
        request = ask.request
        level = level_of(request, self._rng)
        cut: float | None = None
        refusing: list[BackendView] = []
        for view in ask.views:
            if view.report is not None and view.reported_at >= ask.asked_at:
                cut = view.report.cut if cut is None else min(cut, view.report.cut)
                if level < view.report.cut:
                    refusing.append(view)
        throttle = self._throttle
        left = _seconds_left(request, now)
        if not throttle.admit_asked(
            level, request.customer, cut, now, left, is_admitted=is_admitted
        ):
            return self.refuse(request, _THROTTLED[throttle.cause])
        # Who has just said no is not to be sent what the other said yes to.
        return self._start(request, None, now, avoid=refusing, line=cut)

    def _retry(self, request: Request, previous: Attempt, now: float) -> Attempt | Rejection:
        if previous.next is not Next.RETRY:
            raise UsageError(f"begin(previous=...): nothing allows this retry: {previous!r}")
        if not previous.request.is_same(request):
            raise UsageError(f"begin(previous=...): another request than that of {previous!r}")
        previous.next = Next.GIVE_UP  # It allowed one.
        # The request that has the luck: who retries may have made an equal one anew.  Without luck
        # the next backend would draw it once more, and there would be more of it with each retry.
        request = previous.request
        level_of(request, self._rng)
        answer = self._start(request, previous, now, avoid=previous.tried)
        if isinstance(answer, Rejection) and previous.outcome is not None:
            if previous.number > 1 or previous.outcome is not Outcome.NOT_SENT:
                self._retry_budget.give_back()
            self._record_end(previous, previous.outcome, now)
        return answer

    def _start(
        self,
        request: Request,
        previous: Attempt | None,
        now: float,
        avoid: Collection[BackendView] = (),
        line: float | None = None,
    ) -> Attempt | Rejection:
        """Pick a backend; nothing below `line` is sent, the throttle's if none is given."""
        if line is None and self._throttle.is_troubled:
            line = self._throttle.line(now)
        if now - self._cut_at <= _CUT_SECONDS:
            view = self._pick_above(level_of(request, self._rng), now, avoid)
        else:
            view = self._policy.pick(now, avoid)
        if view is None:
            view = self._candidates.spare(avoid)
            if view is None:
                if self._candidates.exist:
                    return self.refuse(request, _AT_LIMIT)
                self._membership.want(now)
                return self.refuse(request, _NO_BACKEND)
        self._candidates.begin(view)
        if not view.health.is_connected:
            self._membership.demand(view, now)
        if previous is None:
            self._retry_budget.earn()
        attempt = Attempt(self._finish_attempt, view, request, previous, now)
        if line:
            attempt.line = line
        if self._observer is not NO_OBSERVER:
            self._observer.attempt_begun(view.backend.address, request, attempt.number)
        return attempt

    def _pick_above(
        self, level: float, now: float, avoid: Collection[BackendView]
    ) -> BackendView | None:
        """Pick a backend that does not cut above this level, as far as is known."""
        view = self._policy.pick(now, avoid)
        refusing = list(avoid)
        for _ in range(_REPICKS):
            if view is None or view.report is None or level >= view.report.cut:
                break
            if now - view.reported_at > _CUT_SECONDS:
                break
            refusing.append(view)
            other = self._policy.pick(now, refusing)
            if other is None or other in refusing:
                break
            view = other
        return view

    def refuse(self, request: Request, rejection: Rejection) -> Rejection:
        """Have it seen that a request is refused here, and return why."""
        self._observer.request_refused(request, rejection.reason)
        return rejection

    def _finish(self, attempt: Attempt, outcome: Outcome, is_final: bool) -> Next:
        now = self._clock()
        view = attempt.view
        if outcome.is_error:
            # Together with the answer a backend has said how often it fails, and what it refuses.
            report = view.report if view.reported_at >= attempt.begun_at else None
            if not outcome.is_rejection:
                is_told = (
                    outcome is Outcome.ERROR and report is not None and report.eps >= _LEAST_EPS
                )
                view.record_error(now, is_failure=not is_told)
                self._erring[view] = None
                if view.is_pickable:
                    self._policy.record_error(view, now)
            elif not self._is_below(attempt.request, report):
                view.record_error(now, is_failure=False)
                self._erring[view] = None
        # Mostly its report has been heard already, a moment ago.
        if outcome.is_answer and not (view.health.is_heard and view.health.has_answered):
            self._answered(view, now)
        self._candidates.finish(view, now)
        if not view.in_subset:
            self._membership.finished(view)
        if self._observer is not NO_OBSERVER:
            self._observer.attempt_finished(view.backend.address, outcome, now - attempt.begun_at)
        return self._next(attempt, outcome, now, is_final=is_final)

    def _is_below(self, request: Request, report: LoadReport | None) -> bool:
        """Return whether a refusal was for the level, which is told and so passed over from now on.

        A request that came without luck has had it drawn by the backend, and it was too little.
        """
        if report is None or request.criticality >= report.cut:
            return False
        if request.luck is None:
            part = min(1.0, report.cut - request.criticality)
            request.luck = draw_luck(self._rng, part)
        return request.criticality + request.luck < report.cut

    def _next(self, attempt: Attempt, outcome: Outcome, now: float, *, is_final: bool) -> Next:
        request = attempt.request
        may_go_on = not is_final and (request.deadline_at is None or now < request.deadline_at)
        if outcome is _NOT_SENT:
            # Nothing left this process: to send it elsewhere is no retry, and no backend pays.
            if may_go_on and len(attempt.tried) - attempt.number < _NOT_SENT_MAX:
                return Next.RETRY
            if attempt.number > 1:
                self._retry_budget.give_back()  # A retry that was paid for and never made.
        elif (
            may_go_on
            and attempt.number < self._config.retry.attempts
            and may_retry(outcome, idempotent=request.idempotent)
            and not (outcome.is_rejection and self._is_below_line(request, now))
        ):
            if self._retry_budget.take():
                return Next.RETRY
            self._observer.retry_refused(request)
        self._record_end(attempt, outcome, now)
        if outcome is _OK or outcome is Outcome.CANCELLED:
            return _DONE
        return Next.GIVE_UP

    def _is_below_line(self, request: Request, now: float) -> bool:
        """Return whether most other backends would probably refuse a request too."""
        line = self._throttle.line(now) if self._throttle.is_troubled else 0.0
        return line > 0.0 and level_of(request, self._rng) < line

    def _record_end(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        request = attempt.request
        if outcome is not _TIMEOUT:
            self._throttle.record(request.criticality, request.customer, outcome, now)
            return
        allowed = _seconds_left(request, attempt.begun_at)
        self._throttle.record(request.criticality, request.customer, outcome, now, allowed)

    def _answered(self, view: BackendView, now: float) -> None:
        health = view.health
        before = health.state
        health.answered(now)
        if health.state is not before:
            self._membership.moved(view, now)

    def _note_probe(self, view: BackendView, now: float) -> None:
        # The answer is timed from the first of several probes under way, unless that one was lost.
        if view.probed_at is None or now - view.probed_at > self._config.ask_seconds:
            view.probed_at = now

    def _time_probe(self, view: BackendView, now: float) -> None:
        self._membership.answered_probe(view, now)
        if view.probed_at is not None:
            seconds = max(0.0, now - view.probed_at)  # A clock may step back.
            view.probed_at = None
            average = self._round_trip_seconds
            self._round_trip_seconds = (
                seconds if average is None else average + _ROUND_TRIP_GAIN * (seconds - average)
            )

    def _are_answers_worth_their_wait(self) -> bool:
        """Return whether requests take longer than to ask where to send them.

        Where they do not, as in a service that answers within a fraction of a millisecond, the best
        pick could not make up for the question, and its cost is that of a good part of a request.
        """
        if self._round_trip_seconds is None:
            return True
        taken = [
            view.report.latency_seconds
            for view in self._membership.views
            if view.report is not None and view.report.latency_seconds > 0.0
        ]
        return not taken or median(taken) >= self._round_trip_seconds

    def _fade_errors(self, now: float) -> None:
        for view in list(self._erring):
            if view.fade_errors(now) and view.is_pickable:
                self._policy.changed(view)
            if not view.is_erring:
                del self._erring[view]


def _seconds_left(request: Request, now: float) -> float:
    return math.inf if request.deadline_at is None else request.deadline_at - now
