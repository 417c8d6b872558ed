"""See that nobody refuses a request and takes one that matters less.

SRE book, chapter 21, "Criticality": a task rejects requests of one criticality "only if it's
already rejecting all requests of all lower criticalities".  With levels each decision is one
comparison, so each is checked by itself, in its instant, and exactly:

- A backend admits what is at or above its cut-line, and refuses for overload what is below it.  It
  also refuses what it could only answer too late, whatever the level, if it limits its queue.
- A client task sends what is at or above its line, and throttles what is below it.  When it has
  asked backends, the lowest of their answers is its line.
- A refused request is tried again only if it is at or above the line.

A request whose luck nobody has drawn yet could have any level of its criticality, so it is taken
for the lowest: who admits it must cut no higher, and who refuses it must cut higher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from evenly.core.admission import Admission
from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import BackendTask
from evenly.core.client_task import ClientTask
from evenly.core.request import Cause, Reason, Rejection, Request
from evenly.lab.sim.scenario import Scenario

__all__ = ["Asked", "Order"]

_KIND: Final = "order"
# By their own names, because an enum's members take long to look up.
_OVERLOADED: Final = Reason.OVERLOADED
_DONT_RETRY: Final = Reason.DONT_RETRY


@final
class Asked:
    """Remember a question, and what the client task went by when it was asked."""

    __slots__ = ("ask", "line")

    def __init__(self, ask: Ask, line: float) -> None:
        self.ask = ask
        self.line = line

    def lowest_answer(self) -> float | None:
        """Return the lowest cut-line that was heard since, if any."""
        cuts = [
            view.report.cut
            for view in self.ask.views
            if view.report is not None and view.reported_at >= self.ask.asked_at
        ]
        return min(cuts, default=None)


@final
class Order:
    """Compare what is decided with the level below which it must be refused."""

    def __init__(self, scenario: Scenario, violated: Callable[[str, str], None]) -> None:
        # The book's throttle keeps no order, and none throttles nothing.
        self._has_line = scenario.client_task.throttle.name == "responsive"
        self._limits_queue = scenario.backend_task.limits_queue
        self._violated = violated

    def decided(
        self,
        backend: str,
        task: BackendTask,
        request: Request,
        decision: Admission | Rejection,
        now: float,
    ) -> None:
        """See a backend admit a request or refuse it."""
        cut = task.cut
        if isinstance(decision, Rejection):
            if decision.reason is _OVERLOADED or decision.reason is _DONT_RETRY:
                level = request.criticality + (request.luck or 0.0)
                if level >= cut and not (self._limits_queue and _is_too_late(task, request, now)):
                    what = f"{backend} refused {level:.3f}, its cut-line at {cut:.3f}"
                    self._violated(_KIND, f"{what}, at {now:.3f} s")
        elif cut:
            level = request.criticality + (decision.luck or 0.0)
            if level < cut:
                what = f"{backend} admitted {level:.3f}, its cut-line at {cut:.3f}"
                self._violated(_KIND, f"{what}, at {now:.3f} s")

    def asked(self, task: ClientTask, ask: Ask) -> Asked:
        """See a client task ask backends before it sends."""
        return Asked(ask, task.line)

    def throttled(
        self,
        client: str,
        task: ClientTask,
        request: Request,
        rejection: Rejection,
        *,
        asked: Asked | None,
        now: float,
    ) -> None:
        """See a client task throttle a request."""
        if not self._has_line or rejection.cause is not Cause.REJECTIONS:
            return
        answer = None if asked is None else asked.lowest_answer()
        line = task.line if answer is None else answer
        level = request.criticality + (request.luck or 0.0)
        if level < line:
            return
        if answer is None and not line and _goes_by_the_book(task, request):
            return
        self._violated(
            _KIND, f"{client} throttled {level:.3f}, its line at {line:.3f}, at {now:.3f} s"
        )

    def sent(self, client: str, attempt: Attempt, asked: Asked | None, now: float) -> None:
        """See a client task send a request for the first time, or again after a refusal."""
        if not attempt.line:
            return
        request = attempt.request
        level = request.criticality + (request.luck or 0.0)
        if level >= attempt.line:
            return
        # The policy may ask where to send what the throttle has already let through.
        if attempt.number == 1 and asked is not None and level >= asked.line:
            return
        self._violated(
            _KIND,
            f"{client} sent {level:.3f} as attempt {attempt.number}, its line at"
            f" {attempt.line:.3f}, at {now:.3f} s",
        )


def _is_too_late(task: BackendTask, request: Request, now: float) -> bool:
    """Return whether a backend expects to answer a request after its deadline."""
    deadline_at = request.deadline_at
    return deadline_at is not None and deadline_at - now < task.wait_seconds


def _goes_by_the_book(task: ClientTask, request: Request) -> bool:
    """Return whether equation 21-1 decides, as it does where nobody has reported for long."""
    return task.snapshot().throttle.rejection_probabilities[request.criticality] > 0.0
