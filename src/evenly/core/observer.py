"""What core tells the outside about its decisions: one plain method per decision.

The default does nothing, and costs one empty call.  An observer is called in the middle of a
decision: it may count and log, and must not call back into the façade or raise.  The runtimes
guard it (`evenly.observe.guard`), because what raises here would leak a count; façades do not.
"""

from __future__ import annotations

from typing import Final

from evenly.core.criticality import Criticality
from evenly.core.request import Outcome, Reason, Request

__all__ = ["NO_OBSERVER", "Observer"]


class Observer:
    """Do nothing about every decision.  Override what you want to see."""

    # The calling side.

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        """See an attempt begin; `number` is 1 for the first and counts on for retries."""

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        """See an attempt end."""

    def request_refused(self, request: Request, reason: Reason) -> None:
        """See a request refused in this process: throttled, expired, or no backend for it."""

    def retry_refused(self, request: Request) -> None:
        """See a retry that was allowed, but for which the budget had nothing left."""

    def asked(self, count: int) -> None:
        """See a request wait for so many probes."""

    def backend_moved(self, address: str, state: str) -> None:
        """See a backend's state change: "healthy", "lame duck" or "refusing"."""

    def subset_changed(self, size: int) -> None:
        """See the set of backends change that this client task talks to."""

    # The serving side.

    def request_admitted(self, request: Request) -> None:
        """See a backend admit a request."""

    def request_rejected(self, request: Request, reason: Reason) -> None:
        """See a backend reject a request."""

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        """See an admitted request end, with its cost in (normalised) CPU seconds."""

    def admission_changed(self, criticality: Criticality, *, is_admitted: bool) -> None:
        """See a backend begin or stop rejecting a criticality."""

    def lame_duck_changed(self, *, is_lame_duck: bool) -> None:
        """See a backend enter or leave the lame duck state."""


NO_OBSERVER: Final = Observer()
