"""What a backend says in gRPC's words: the status of a refusal, the trailers of every response.

FIELD section 2 has the table of statuses.  Nothing is guessed from a message: a refusal is named in
`evenly-reject` too, and the message is for people.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, final

import grpc

from evenly.core.backend_task import Admission
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import RejectedError
from evenly.grpc.outcome import ERROR_CODES
from evenly.runtime.backend import BackendRuntime
from evenly.wire import load_header, orca
from evenly.wire.metadata import DEGRADED, rejection_to_grpc

__all__ = [
    "Entries",
    "Trailers",
    "gave_up",
    "is_refusal",
    "outcome_of_status",
    "passed_on",
    "refusal",
]

Entries = tuple[tuple[str, str | bytes], ...]
_Code = grpc.StatusCode
# Each layer adds its own words, and at 8 KiB gRPC drops the status with what it carries.
_BELOW_MOST: Final = 200
# A client whose deadline passes cancels, and that arrives before our own clock says so: gRPC sends
# what remains of a deadline with two or three digits, rounded up.
_DEADLINE_SLACK_SECONDS: Final = 0.02
_DEADLINE_SLACK_RATIO: Final = 0.02

_STATUS: Final = {
    Reason.EXPIRED: _Code.DEADLINE_EXCEEDED,
    Reason.OVERLOADED: _Code.UNAVAILABLE,
    Reason.DONT_RETRY: _Code.RESOURCE_EXHAUSTED,
    Reason.OUT_OF_QUOTA: _Code.RESOURCE_EXHAUSTED,
}


def _outcome(code: grpc.StatusCode) -> Outcome:
    if code is _Code.DEADLINE_EXCEEDED:
        return Outcome.TIMEOUT
    if code is _Code.CANCELLED:
        return Outcome.CANCELLED
    return Outcome.ERROR if code in ERROR_CODES else Outcome.OK


# Handlers may set a code by its number too.
_OUTCOMES: Final[dict[object, Outcome]] = {
    None: Outcome.OK,
    **{code: _outcome(code) for code in _Code},
    **{code.value[0]: _outcome(code) for code in _Code},
}


def outcome_of_status(code: object) -> Outcome:
    """Return how a request ended whose handler answered with this status; `None` is OK.

    What the client calls an error is one here too (`evenly.grpc.outcome`).
    """
    try:
        return _OUTCOMES.get(code, Outcome.ERROR)
    except TypeError:  # not hashable: what a handler may have set
        return Outcome.ERROR


def gave_up(admission: Admission, deadline_at: float | None) -> Outcome:
    """Return why a request's client has left: its deadline passed, or its caller gave up."""
    if deadline_at is None:
        return Outcome.CANCELLED
    given_seconds = deadline_at - admission.admitted_at
    slack_seconds = _DEADLINE_SLACK_SECONDS + _DEADLINE_SLACK_RATIO * given_seconds
    is_over = time.monotonic() >= deadline_at - slack_seconds
    return Outcome.TIMEOUT if is_over else Outcome.CANCELLED


def is_refusal(error: BaseException) -> bool:
    """Return whether a handler let a rejection from below out, alone or as a task group's."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RejectedError)[1] is None
    return isinstance(error, RejectedError)


def refusal(rejection: Rejection, request: Request) -> tuple[grpc.StatusCode, str]:
    """Return the status and the message of a refusal."""
    details = f"evenly: {rejection.reason.value}; {request.criticality.name}"
    if rejection.reason is Reason.OUT_OF_QUOTA:
        details += f", customer {request.customer!r}"
        if rejection.retry_after_seconds is not None:
            details += f", quota again in {rejection.retry_after_seconds:.3g} s"
    return _STATUS[rejection.reason], details


def passed_on(details: str, error: BaseException) -> str:
    """Return the message of a refusal that came from below."""
    return f"{details} (from below: {str(error)[:_BELOW_MOST]})"


@final
class Trailers:
    """Make the trailing metadata that a response of this backend carries.

    A report is made at most every `fresh_seconds`: clients believe one for 100 ms, and a backend
    whose requests take longer than this makes one for each.  A change of state shows at once.
    """

    def __init__(self, runtime: BackendRuntime, *, fresh_seconds: float = 0.01) -> None:
        self._runtime = runtime
        self._orca = runtime.config.orca
        self._fresh_seconds = fresh_seconds
        self._fresh_until = 0.0
        self._to_evenly: Entries = ()
        self._to_others: Entries | None = None
        self._report = LoadReport()
        runtime.on_state(self._changed)

    def load(self, to_evenly: bool) -> Entries:  # By position: this runs once per request.
        """Return the load report, in the words that this client understands."""
        now = time.monotonic()
        if now >= self._fresh_until:
            self._report = self._runtime.report()
            entry = (load_header.KEY, load_header.format_load(self._report))
            self._to_evenly = (entry,)
            self._to_others = None
            self._fresh_until = now + self._fresh_seconds
        if to_evenly and self._orca != "always":
            return self._to_evenly
        if self._to_others is None:
            self._to_others = self._to_evenly
            if self._orca != "never":
                memory = self._runtime.readings.memory_utilization
                binary = orca.serialize(self._report, memory_utilization=memory)
                self._to_others = (*self._to_evenly, (orca.GRPC_KEY, binary))
        return self._to_others

    def added_to(
        self, others: Iterable[tuple[str, str | bytes]], *, to_evenly: bool, is_degraded: bool
    ) -> Entries:
        """Return the handler's own trailers with ours behind them."""
        entries = self.load(to_evenly)
        if is_degraded:
            entries = (*entries, DEGRADED)
        return (*others, *entries) if others else entries

    def of_refusal(self, rejection: Rejection, *, to_evenly: bool) -> Entries:
        """Return the trailers of a refusal."""
        return (*rejection_to_grpc(rejection), *self.load(to_evenly))

    def _changed(self, _is_lame_duck: bool) -> None:
        self._fresh_until = 0.0
