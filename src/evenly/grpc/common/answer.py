"""What a backend says in gRPC's words: the status of a refusal, the trailers of every response.

`docs/wire.md` has the table of statuses.  Nothing is guessed from a message: a refusal is named in
`evenly-reject` too, and the message is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

import grpc

from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.grpc.common.translation import ERROR_CODES
from evenly.runtime.answer import LoadEntries, details
from evenly.runtime.backend import BackendRuntime
from evenly.wire import load_header, orca
from evenly.wire.metadata import DEGRADED, rejection_to_grpc

__all__ = [
    "Entries",
    "Trailers",
    "outcome_of_status",
    "refusal",
]

Entry = tuple[str, str | bytes]
Entries = tuple[Entry, ...]
_Code = grpc.StatusCode

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

    What the client calls an error is one here too (`evenly.grpc.common.translation`).
    """
    try:
        return _OUTCOMES.get(code, Outcome.ERROR)
    except TypeError:  # not hashable: what a handler may have set
        return Outcome.ERROR


def refusal(rejection: Rejection, request: Request) -> tuple[grpc.StatusCode, str]:
    """Return the status and the message of a refusal."""
    return _STATUS[rejection.reason], details(rejection, request)


@final
class Trailers:
    """Make the trailing metadata that a response of this backend carries."""

    def __init__(self, runtime: BackendRuntime) -> None:
        loads = LoadEntries(runtime, load=_load_entry, orca=_orca_entry)
        # Bound once: these run once per request.
        self.load: Callable[[bool], Entries] = loads.entries
        """Return the load report, in the words that this client understands."""
        self.news_for: Callable[[str], Entries] = loads.news_for
        """Return it for a client of ours, unless it was told over this connection before."""

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


def _load_entry(text: str) -> Entry:
    return load_header.KEY, text


def _orca_entry(report: LoadReport, memory_utilization: float) -> Entry:
    return orca.GRPC_KEY, orca.serialize(report, memory_utilization=memory_utilization)
