"""What every transport says for a backend: why a request ended, what a refusal says, the load.

A transport puts it into its own words: trailers and statuses, or headers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final, Generic, TypeVar, final

from evenly.context import is_refusal
from evenly.core.backend_task import Admission
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.runtime.backend import BackendRuntime
from evenly.wire import load_header

__all__ = ["LoadEntries", "details", "gave_up", "is_refusal", "passed_on"]

Entry = TypeVar("Entry")

# Each layer adds its own words, and at 8 KiB gRPC drops the status with what it carries.
_BELOW_MOST: Final = 200
# A client whose deadline passes cancels, and that arrives before our own clock says so: gRPC sends
# what remains of a deadline with two or three digits, rounded up.
_DEADLINE_SLACK_SECONDS: Final = 0.02
_DEADLINE_SLACK_RATIO: Final = 0.02


def gave_up(admission: Admission, deadline_at: float | None) -> Outcome:
    """Return why a request's client has left: its deadline passed, or its caller gave up."""
    if deadline_at is None:
        return Outcome.CANCELLED
    given_seconds = deadline_at - admission.admitted_at
    slack_seconds = _DEADLINE_SLACK_SECONDS + _DEADLINE_SLACK_RATIO * given_seconds
    is_over = monotonic() >= deadline_at - slack_seconds
    return Outcome.TIMEOUT if is_over else Outcome.CANCELLED


def details(rejection: Rejection, request: Request) -> str:
    """Return what a refusal says to people."""
    text = f"evenly: {rejection.reason.value}; {request.criticality.name}"
    if rejection.reason is Reason.OUT_OF_QUOTA:
        text += f", customer {request.customer!r}"
        if rejection.retry_after_seconds is not None:
            text += f", quota again in {rejection.retry_after_seconds:.3g} s"
    return text


def passed_on(text: str, error: BaseException) -> str:
    """Return what a refusal that came from below says to people."""
    return f"{text} (from below: {str(error)[:_BELOW_MOST]})"


@final
class LoadEntries(Generic[Entry]):
    """Make the entries with which a response reports the load.

    A report is made at most every `fresh_seconds`: clients believe one for 100 ms, and a backend
    whose requests take longer than this makes one for each.  A change of state shows at once.

    `load` makes an entry of the report's text, `orca` one in the words of other people's clients.
    """

    def __init__(
        self,
        runtime: BackendRuntime,
        *,
        load: Callable[[str], Entry],
        orca: Callable[[LoadReport, float], Entry],
        fresh_seconds: float = 0.01,
    ) -> None:
        self._runtime = runtime
        self._load = load
        self._orca = orca
        self._who = runtime.config.orca
        self._fresh_seconds = fresh_seconds
        self._fresh_until = 0.0
        self._to_evenly: tuple[Entry, ...] = ()
        self._to_others: tuple[Entry, ...] | None = None
        self._report = LoadReport()
        self._told: set[Hashable] = set()
        runtime.on_state(self._changed)

    def news_for(self, peer: Hashable) -> tuple[Entry, ...]:
        """Return what to tell a client of ours over a connection: nothing twice.

        A response that says nothing repeats what was said before (`ClientTask.record_repeat`): a
        trailer costs more on both sides than to remember.
        """
        now = monotonic()
        if now >= self._fresh_until:
            self._make(now)
        elif peer in self._told and self._who != "always":
            return ()
        self._told.add(peer)
        return self._to_evenly if self._who != "always" else self.entries(True)

    def entries(self, to_evenly: bool) -> tuple[Entry, ...]:  # By position: once per request.
        """Return the load report, in the words that this client understands."""
        now = monotonic()
        if now >= self._fresh_until:
            self._make(now)
        if to_evenly and self._who != "always":
            return self._to_evenly
        if self._to_others is None:
            self._to_others = self._to_evenly
            if self._who != "never":
                memory = self._runtime.readings.memory_utilization
                self._to_others = (*self._to_evenly, self._orca(self._report, memory))
        return self._to_others

    def _make(self, now: float) -> None:
        self._report = self._runtime.report()
        self._to_evenly = (self._load(load_header.format_load(self._report)),)
        self._to_others = None
        self._told.clear()
        self._fresh_until = now + self._fresh_seconds

    def _changed(self, _is_lame_duck: bool) -> None:
        self._fresh_until = 0.0
