"""What backends do to the requests that reach them, and what was seen: in no transport's words."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from evenly.core.observer import Observer
from evenly.core.request import Outcome, Reason, Request
from evenly.errors import NoBackend, Overloaded, QuotaExceeded, RejectedError, Throttled


class Act(enum.Enum):
    """What a backend does to a request."""

    OK = enum.auto()
    ERROR = enum.auto()
    OVERLOADED = enum.auto()
    DONT_RETRY = enum.auto()
    OUT_OF_QUOTA = enum.auto()
    DIE = enum.auto()
    """Read it, and be killed: the port is closed, and every connection broken."""
    HOLD = enum.auto()
    """Read it, and do nothing until the script releases it."""


class What(enum.Enum):
    """How a request ended, as its caller sees it."""

    OK = enum.auto()
    ERROR = enum.auto()
    OVERLOADED = enum.auto()
    DONT_RETRY = enum.auto()
    OUT_OF_QUOTA = enum.auto()
    LOST = enum.auto()
    TIMEOUT = enum.auto()
    CANCELLED = enum.auto()
    # Refused here:
    NO_BACKEND = enum.auto()
    NO_CONNECTION = enum.auto()
    AT_LIMIT = enum.auto()
    THROTTLED = enum.auto()


class Script:
    """What all backends of one world do: what comes first, wherever it arrives, is done first."""

    def __init__(self, *acts: Act) -> None:
        self.next = list(acts)
        self.then = Act.OK
        self.arrivals: list[tuple[str, str]] = []
        """The address and the request's name, of each attempt that a backend has read."""
        self._held: list[Callable[[Act], None]] = []

    @property
    def seen(self) -> int:
        return len(self.arrivals)

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.arrivals]

    @property
    def addresses(self) -> list[str]:
        return [address for address, _ in self.arrivals]

    def arrive(self, address: str, name: str) -> Act:
        """See a request; return what to do to it."""
        self.arrivals.append((address, name))
        return self.next.pop(0) if self.next else self.then

    def hold(self, go_on: Callable[[Act], None]) -> None:
        """Remember a request that is held."""
        self._held.append(go_on)

    async def held(self) -> Act:
        """Hold a request of an event loop; return what to do to it."""
        going_on: asyncio.Future[Act] = asyncio.get_running_loop().create_future()
        self.hold(lambda act: None if going_on.done() else going_on.set_result(act))
        return await going_on

    def release(self, act: Act = Act.OK) -> None:
        """Do this to all that are held; who has left gets nothing of it."""
        held, self._held = self._held, []
        for go_on in held:
            go_on(act)


class Counts(Observer):
    """What the core decides."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        """The number of each attempt."""
        self.finished: list[Outcome] = []
        self.refused: list[Reason] = []
        self.asks = 0

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        self.begun.append(number)

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        self.finished.append(outcome)

    def request_refused(self, request: Request, reason: Reason) -> None:
        self.refused.append(reason)

    def asked(self, count: int) -> None:
        self.asks += 1


_HERE = {
    Reason.NO_BACKEND: What.NO_BACKEND,
    Reason.NO_CONNECTION: What.NO_CONNECTION,
    Reason.AT_LIMIT: What.AT_LIMIT,
    Reason.THROTTLED: What.THROTTLED,
    Reason.EXPIRED: What.TIMEOUT,
}


def what_of(end: Outcome | Reason) -> What:
    """Return it in the words of a caller."""
    return What[end.name] if isinstance(end, Outcome) else _HERE[end]


def what_of_rejection(error: RejectedError, text: str) -> What:
    """Return what a refusal says; the reasons of one kind differ in their text alone."""
    assert (error.where == "remote") == isinstance(error, Overloaded | QuotaExceeded)
    if isinstance(error, Overloaded):
        return What.OVERLOADED if error.retryable else What.DONT_RETRY
    if isinstance(error, QuotaExceeded):
        assert not error.retryable
        return What.OUT_OF_QUOTA
    if isinstance(error, Throttled):
        return What.THROTTLED
    assert isinstance(error, NoBackend)
    reasons = (Reason.NO_BACKEND, Reason.NO_CONNECTION, Reason.AT_LIMIT)
    reason = next(reason for reason in reasons if reason.value in text)
    assert error.retryable is (reason is Reason.AT_LIMIT)
    return _HERE[reason]
