"""What `ClientTask.begin` hands out: an attempt, whose end is told to it, or a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.request import Next, Outcome, Rejection, Request
from evenly.errors import UsageError

__all__ = ["Ask", "Attempt"]


@final
class Attempt:
    """Be one try of one request at one backend, from `begin` to `finish`."""

    __slots__ = (
        "_finish",
        "_previous",
        "begun_at",
        "line",
        "next",
        "number",
        "outcome",
        "request",
        "view",
    )

    def __init__(
        self,
        finish: Callable[[Attempt, Outcome, bool], Next],
        view: BackendView,
        request: Request,
        previous: Attempt | None,
        now: float,
    ) -> None:
        self._finish = finish
        self._previous = previous
        self.view = view
        self.request = request
        self.outcome: Outcome | None = None
        """How it ended; `None` before."""
        self.next: Next | None = None
        """What `finish` answered; `None` before."""
        self.begun_at = now
        self.line = 0.0
        """The level below which its client task sends nothing: the backend is told."""
        self.number: int = 1
        """1 for the first attempt; a retry counts on, unless the one before was never sent."""
        if previous is not None:
            self.number = previous.number + (previous.outcome is not Outcome.NOT_SENT)

    def __repr__(self) -> str:
        return (
            f"<Attempt {self.number} at {self.view.backend}"
            f" {'active' if self.outcome is None else self.outcome.name}>"
        )

    @property
    def backend(self) -> Backend:
        """Where to send the request."""
        return self.view.backend

    @property
    def tried(self) -> tuple[BackendView, ...]:
        """The backends that this request has been sent to, the latest first."""
        earlier = () if self._previous is None else self._previous.tried
        return (self.view, *earlier)

    def finish(self, outcome: Outcome, *, is_final: bool = False) -> Next:
        """End the attempt, on every path and exactly once; return what to do now.

        `is_final` says that the request cannot be sent again: its caller has seen a part of the
        response, or a part of its body is gone.
        """
        if self.outcome is not None:
            raise UsageError(f"finish({outcome.name}): this attempt has finished already: {self!r}")
        self.outcome = outcome
        self.next = verdict = self._finish(self, outcome, is_final)
        return verdict


@final
class Ask:
    """Ask for probes before the request is sent.

    Probe `backends`, hand their answers to `record_report`, and call `resume` when all have come or
    `wait_seconds` have passed.  Nothing is counted yet: a request that is cancelled while it waits
    needs no `resume`.
    """

    __slots__ = ("_is_resumed", "_resume", "asked_at", "request", "views", "wait_seconds")

    def __init__(
        self,
        resume: Callable[[Ask], Attempt | Rejection],
        request: Request,
        views: Sequence[BackendView],
        *,
        wait_seconds: float,
        now: float,
    ) -> None:
        self._resume = resume
        self._is_resumed = False
        self.request = request
        self.views = views
        self.wait_seconds = wait_seconds
        self.asked_at = now

    def __repr__(self) -> str:
        return f"<Ask {', '.join(map(str, self.backends))} for {self.wait_seconds:.4f} s>"

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Whom to probe."""
        return tuple(view.backend for view in self.views)

    def resume(self) -> Attempt | Rejection:
        """Begin the attempt with whatever has become known."""
        if self._is_resumed:
            raise UsageError(f"resume(): this request has been begun already: {self!r}")
        self._is_resumed = True
        return self._resume(self)
