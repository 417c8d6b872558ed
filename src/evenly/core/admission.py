"""One request that a backend has taken, until it ends."""

from __future__ import annotations

from typing import Protocol

from evenly.core.overload.quota import Reservation
from evenly.core.request import Outcome, Rejection, Request

__all__ = ["Admission", "Finisher"]


class Finisher(Protocol):
    """Be who admitted a request, and is told how it ended."""

    def finish(self, admission: Admission, outcome: Outcome, cpu_seconds: float = 0.0) -> None:
        """End a request, on every path and exactly once."""

    def pass_on(self, admission: Admission, cpu_seconds: float = 0.0) -> Rejection:
        """End a request whose handler let a rejection from below out; return what to answer."""


class Admission:
    """Be one admitted request, from `admit` to `finish`; a transport may know more of it."""

    __slots__ = (
        "_said",
        "admitted_at",
        "deadline_at",
        "is_finished",
        "luck",
        "reservation",
        "task",
    )

    # Set by `BackendTask.admit`: a constructor is one call more, once per request.
    task: Finisher
    reservation: Reservation | None
    admitted_at: float
    deadline_at: float | None
    is_finished: bool
    luck: float | None
    """The request's place within its criticality; what is called for it has the same."""
    _said: Request

    @property
    def request(self) -> Request:
        """What was admitted; treat it as immutable."""
        said = self._said
        # Made only for who asks: few do, and others may share what was said.
        if said.deadline_at != self.deadline_at or said.luck != self.luck:
            said = self._said = said.until(self.deadline_at)
            said.luck = self.luck
        return said

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.request.criticality.name} {self.request.customer!r}"
            f" {'finished' if self.is_finished else 'active'}>"
        )

    def finish(self, outcome: Outcome, cpu_seconds: float = 0.0) -> None:
        """End the request, on every path and exactly once, with the CPU that its handler used."""
        self.task.finish(self, outcome, cpu_seconds)
