"""What every policy is told, and what it answers.

A policy holds exactly the backends that may be picked now: `Candidates` adds and removes them as
their health and their active requests change.  So no policy filters, and none can send to a
backend that it should not.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from typing import ClassVar

from evenly.core.balancing.backend import BackendView
from evenly.core.report import LoadReport

__all__ = ["Policy"]


class Policy(abc.ABC):
    """Choose the backend for one attempt.

    A base class rather than a protocol: most policies need only half of these, and the hooks that
    do nothing are the null objects.
    """

    asks: ClassVar[bool] = False
    """Whether `ask` can ever answer: spares the others a call per request."""
    follows_load: bool = True
    """Whether `changed` matters now: spares two calls per request where it does not."""
    wants_probes: bool = False
    """Whether `take_probes` may answer now."""

    @abc.abstractmethod
    def add(self, view: BackendView, now: float) -> None:
        """Take in a backend that may be picked from now on."""

    @abc.abstractmethod
    def remove(self, view: BackendView) -> None:
        """Forget a backend that may not be picked any more."""

    @abc.abstractmethod
    def pick(self, now: float, avoid: Collection[BackendView]) -> BackendView | None:
        """Return the backend for the next attempt, or `None` if there is none.

        A backend in `avoid` (it refused this request before) is returned only where there is no
        other.
        """

    def changed(self, view: BackendView) -> None:
        """Learn that a backend's load changed."""

    def record_error(self, view: BackendView, now: float) -> None:
        """Learn that a backend failed an attempt: an error that is no rejection."""

    def record_report(
        self, view: BackendView, report: LoadReport, now: float, *, is_probe: bool
    ) -> None:
        """Learn what a backend said of itself, in a response or in a probe's answer."""

    def ask(self, now: float) -> Sequence[BackendView]:
        """Return the backends to probe before the next pick: usually none."""
        return ()

    def take_probes(self) -> Sequence[BackendView]:
        """Return the backends to probe in the background, once."""
        return ()

    def wake(self, now: float) -> None:
        """Do the periodic work: called about once a second."""
