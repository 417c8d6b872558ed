"""What a request carries, how an attempt can end, and what a refusal says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, final

from evenly.core.criticality import Criticality
from evenly.errors import UsageError

__all__ = ["Cause", "Ended", "Next", "Outcome", "Reason", "Rejection", "Request"]

_new = object.__new__


@final
@dataclass(slots=True, kw_only=True)
class Request:
    """Say what the call site asked for, once, however many attempts it takes.

    Treat it as immutable, but for the luck, which comes later.  It is not a frozen dataclass,
    because one is made per request, and freezing would double the price of making it.
    """

    criticality: Criticality = Criticality.CRITICAL
    customer: str = ""
    """Who pays; empty is the default customer."""
    deadline_at: float | None = None
    """An instant on the clock of whoever holds the request, or `None` for no deadline."""
    idempotent: bool = False
    """Whether doing it twice does no harm: it may then be tried again after a lost connection."""
    luck: float | None = None
    """Its place within its criticality, from 0 to below 1 (`evenly.core.level`): drawn once, by the
    first who needs it, and only then; what is called for this request has the same."""

    def is_same(self, other: Request) -> bool:
        """Return whether both ask for the same; their luck may not be drawn yet."""
        return self is other or (
            self.criticality is other.criticality
            and self.customer == other.customer
            and self.deadline_at == other.deadline_at
            and self.idempotent == other.idempotent
        )

    def until(self, deadline_at: float | None) -> Request:
        """Return the same request with another deadline."""
        request = _new(Request)  # Less than half of what the constructor costs: once per request.
        request.criticality = self.criticality
        request.customer = self.customer
        request.deadline_at = deadline_at
        request.idempotent = self.idempotent
        request.luck = self.luck
        return request


@final
class Outcome(enum.Enum):
    """Say how one attempt ended.  An attempt ends exactly once, on every path.

    "Answered" means that bytes came back, which proves the backend alive.  "Counts as error" means
    that the attempt goes on weighing on the backend's load for a while, as the book demands: "count
    recent errors as if they were active requests" (chapter 20, "Least-Loaded Round Robin").
    """

    OK = enum.auto()
    """The backend did its work, whatever the answer says: a 404 or INVALID_ARGUMENT is OK."""
    ERROR = enum.auto()
    """The backend answered that it failed: 500, INTERNAL, UNKNOWN."""
    OVERLOADED = enum.auto()
    """The backend refused: this task is overloaded, another may not be."""
    DONT_RETRY = enum.auto()
    """The backend refused: overloaded, and so are the others."""
    OUT_OF_QUOTA = enum.auto()
    """The backend refused this customer, and is no worse for it."""
    TIMEOUT = enum.auto()
    """The deadline passed without an answer."""
    LOST = enum.auto()
    """The connection broke after the request was sent: the backend may have done the work."""
    NOT_SENT = enum.auto()
    """The request is known not to have left: the connection could not be had."""
    CANCELLED = enum.auto()
    """The caller gave up: this says nothing about the backend."""

    is_answer: bool
    is_error: bool
    is_rejection: bool
    is_accept: bool
    """The backend took the request: what a throttle counts as an accept.  A customer refused for
    quota counts too, because another customer's request would have been served."""
    ended: Ended
    """A request that ends so."""
    is_overload: bool
    """What a throttle counts as a request without accept.  What is neither (cancelled, lost, not
    sent) says nothing about overload."""


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """Say how a request ended: one of the two is set."""

    outcome: Outcome | None
    """How the last attempt ended that was sent; its answer or failure is the request's."""
    rejection: Rejection | None = None
    """Why no attempt was sent."""


# Plain attributes rather than properties: they are read once per request.
for _outcome in Outcome:
    _outcome.ended = Ended(_outcome)
    _outcome.is_answer = _outcome in (
        Outcome.OK,
        Outcome.ERROR,
        Outcome.OVERLOADED,
        Outcome.DONT_RETRY,
        Outcome.OUT_OF_QUOTA,
    )
    # A refusal for overload counts too: a backend that refuses fast looks idle just as one that
    # fails fast does.  A refused customer does not: another customer's request would be served.
    _outcome.is_error = _outcome not in (
        Outcome.OK,
        Outcome.OUT_OF_QUOTA,
        Outcome.CANCELLED,
    )
    _outcome.is_rejection = _outcome in (
        Outcome.OVERLOADED,
        Outcome.DONT_RETRY,
        Outcome.OUT_OF_QUOTA,
    )
    _outcome.is_accept = _outcome in (Outcome.OK, Outcome.ERROR, Outcome.OUT_OF_QUOTA)
    _outcome.is_overload = _outcome in (Outcome.OVERLOADED, Outcome.DONT_RETRY, Outcome.TIMEOUT)


@final
class Next(enum.Enum):
    """Say what the caller of `Attempt.finish` is to do now."""

    DONE = enum.auto()
    """The request is answered or cancelled: hand the outcome up."""
    RETRY = enum.auto()
    """The request may be tried again at once, and is paid for: `begin(request, attempt)`."""
    GIVE_UP = enum.auto()
    """The request has failed and must not be tried again: hand the failure up."""


@final
class Reason(enum.Enum):
    """Name why a request was refused."""

    # By either side:
    EXPIRED = "the deadline has passed"
    # By a client task, before anything was sent:
    THROTTLED = "this client task throttles itself"
    NO_BACKEND = "no backend is healthy, a lame duck, or yet to be tried"
    NO_CONNECTION = "no connection could be had; nothing was sent"
    AT_LIMIT = "every usable backend is at its limit of active requests"
    # By a backend, before the handler ran:
    OUT_OF_QUOTA = "the customer is out of quota"
    OVERLOADED = "this backend is overloaded"
    DONT_RETRY = "overloaded, and so are other backends: do not retry"


@final
class Cause(enum.Enum):
    """Name why a client task throttles itself."""

    REJECTIONS = "backends have been rejecting"
    TIMEOUTS = "most of what it sent has failed, with timeouts"
    QUOTA = "the customer has been out of quota"


@final
@dataclass(frozen=True, slots=True)
class Rejection:
    """Refuse a request: an expected result, and so a value rather than an exception."""

    reason: Reason
    retryable: bool
    """Whether the same request may succeed a moment later without anything being repaired."""
    retry_after_seconds: float | None = None
    """When the customer will have quota again, where that is the reason."""
    cause: Cause | None = None
    """What made the client task throttle itself, where that is the reason."""

    @property
    def text(self) -> str:
        """What to say of it to people."""
        because = "" if self.cause is None else f", because {self.cause.value}"
        return f"{self.reason.value}{because}"

    @property
    def is_for_want_of_backend(self) -> bool:
        """Whether it would have been sent, had there been a backend: who is patient waits then."""
        return self.reason is Reason.NO_BACKEND or self.reason is Reason.AT_LIMIT

    @property
    def outcome(self) -> Outcome:
        """How the attempt ends that a backend refuses so.

        What a client task refuses itself is no attempt: asking for its outcome is a mistake.
        """
        outcome = _OUTCOMES.get(self.reason)
        if outcome is None:
            raise UsageError(f"no backend refuses for {self.reason.name}: no attempt ends so")
        return outcome


_OUTCOMES: Final = {
    Reason.EXPIRED: Outcome.TIMEOUT,
    Reason.OUT_OF_QUOTA: Outcome.OUT_OF_QUOTA,
    Reason.OVERLOADED: Outcome.OVERLOADED,
    Reason.DONT_RETRY: Outcome.DONT_RETRY,
}
