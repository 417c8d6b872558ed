"""Carry what a request is along with the work done for it: criticality, luck, customer, deadline.

SRE book, chapter 21, "Criticality": "If a backend receives request A and, as part of executing that
request, issues outgoing request B and request C to other backends, request B and request C will use
the same criticality as request A by default."  The customer and what remains of the deadline travel
the same way; the attempt number does not, because a retry is a matter between two neighbours.

So does the request's luck, its place within its criticality (`evenly.core.level`).  It is drawn
when the first call below needs it, and all calls below share it: what a user asked for is then
served as a whole or not at all.  `request_context(user=…)` makes it of the user's name.

All of it lives in context variables.  asyncio's child tasks inherit them by themselves; threads do
so through `run_in_thread`, `carry_context` and `ContextThreadPoolExecutor`.  Deadlines are instants
of `time.monotonic`, which is also the clock of every event loop and the default of the façades.

A transport serves a request between `enter` and `leave`, where handlers ask `should_degrade`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, Token, copy_context
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, final, overload

from evenly.core import check, claim
from evenly.core.clock import Clock
from evenly.core.criticality import Criticality
from evenly.core.level import draw_luck, luck_of_user
from evenly.core.request import Request
from evenly.errors import ConfigError, RejectedError, UsageError

__all__ = [
    "ContextThreadPoolExecutor",
    "Meter",
    "RequestContext",
    "Scope",
    "Serving",
    "carry_context",
    "charge",
    "current_meter",
    "current_request",
    "current_serving",
    "degradable",
    "enter",
    "is_refusal",
    "job_criticality",
    "leave",
    "mark_degraded",
    "outgoing_request",
    "request_context",
    "restore",
    "run_in_thread",
    "serving",
    "should_degrade",
]

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

# Eleven days of one CPU: more is no request.
_CHARGED_MOST_SECONDS = 1e6
# A century: beyond any deadline, and far enough from the largest float.
_DEADLINE_MOST_SECONDS = 3.2e9
_USER_MOST_CHARACTERS = 256
# Public, so that users could choose their names by it: see `_user_key`.
_DEFAULT_USER_KEY = b"evenly"

# The system's, so that processes forked from one another draw differently.
_RNG = random.SystemRandom()


@final
class _Drawing:
    """Let one thread draw at a time: those that share a scope share its luck."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A fork may copy it while it is held.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_DRAWING = _Drawing()


class Meter(Protocol):
    """Charge work to the request that it is done for (ours: `evenly.signals.cost_meter`)."""

    def call(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `func` in this thread, and charge what it consumes."""

    def charge(self, cpu_seconds: float) -> None:
        """Add what was consumed elsewhere."""


class Scope(Protocol):
    """Be one request while it is being served; child tasks and threads share it."""

    was_degraded: bool
    """Whether the answer is a degraded one, which the response has to say."""
    luck: float | None
    """What all that is called for it share; `None` until it is needed."""

    @property
    def request(self) -> Request:
        """What is being served; treat it as immutable."""

    @property
    def should_degrade(self) -> Callable[[float], bool]:
        """What to ask whether a cheaper answer is wanted at the request's level; anew each time."""


# One variable: to set one costs as much as everything else that a scope does.
_here: ContextVar[Scope | _Inside | None] = ContextVar("evenly_here", default=None)
enter: Final[Callable[[Scope], Token[Scope | _Inside | None]]] = _here.set
"""Serve a request from here on, until `leave` or the end of this context; for transports."""
current_meter: ContextVar[Meter | None] = ContextVar("evenly_meter", default=None)
"""What meters the request being served, if anything does."""


@cache
def job_criticality() -> Criticality:
    """Return the criticality of requests that nobody gave one: `EVENLY_CRITICALITY`, or CRITICAL.

    The variable is read once.  Transports call this when they are made, so that a misspelt value
    fails the start and not the first request.
    """
    name = os.environ.get("EVENLY_CRITICALITY") or "CRITICAL"
    if name not in Criticality.__members__:
        names = ", ".join(Criticality.__members__)
        raise ConfigError(f"EVENLY_CRITICALITY must be one of {names}, not {name!r}")
    return Criticality[name]


@cache
def _user_key() -> bytes:
    """Return what the luck of users is made with: `EVENLY_USER_KEY`, which is read once.

    All jobs that have users need the same.  Without it there is a key that everyone knows, and
    users who can choose their own names can choose their luck.
    """
    return os.environ.get("EVENLY_USER_KEY", "").encode("utf-8", "surrogateescape") or (
        _DEFAULT_USER_KEY
    )


def current_request() -> Request:
    """Return what an outgoing request inherits here; treat it as immutable."""
    here = _here.get()
    if here is None:
        return Request(criticality=job_criticality())
    request = here.request
    if request.luck != here.luck:
        request = request.until(request.deadline_at)  # Others may share the one that is served.
        request.luck = here.luck
    return request


def _luck_of(here: Scope | _Inside) -> float | None:
    """Return the luck of all that is done for one request here, drawn if nobody has needed it yet.

    There is none in a block outside of any request that names no user: a worker may go on in one
    for ever, and is not to be lucky or unlucky all the while.
    """
    luck = here.luck
    if luck is None and (type(here) is not _Inside or here.is_of_one):
        with _DRAWING.lock:
            luck = here.luck
            if luck is None:
                luck = here.luck = draw_luck(_RNG)
    return luck


def outgoing_request(
    now: float, timeout_seconds: float | None, *, idempotent: bool = False
) -> Request:
    """Return the request that a call made here is: what it inherits, and its own time-out.

    That can only shorten an inherited deadline: nobody waits longer for a part than for the whole.
    Outside of any request there is no luck to share, and it is left to be drawn where it is needed.
    """
    here = _here.get()
    inherited = None if here is None else here.request
    criticality = job_criticality() if inherited is None else inherited.criticality
    deadline_at = None if inherited is None else inherited.deadline_at
    if timeout_seconds is not None:
        own_at = now + timeout_seconds
        if deadline_at is None or own_at < deadline_at:
            deadline_at = own_at
    return Request(
        criticality=criticality,
        customer="" if inherited is None else inherited.customer,
        deadline_at=deadline_at,
        idempotent=idempotent,
        luck=None if here is None else _luck_of(here),
    )


def leave(token: Token[Scope | _Inside | None]) -> None:
    """Serve what was served before the `enter` that returned this."""
    restore(_here, token)


def current_serving() -> Scope | None:
    """Return the scope of the request being served here, or `None` outside of one."""
    here = _here.get()
    return here.serving if isinstance(here, _Inside) else here


def request_context(
    *,
    criticality: Criticality | None = None,
    customer: str | None = None,
    user: str | None = None,
    deadline_seconds: float | None = None,
    inherit: bool = True,
    clock: Clock = time.monotonic,
    unix_clock: Clock = time.time,
) -> RequestContext:
    """Set what requests sent inside the `with` block carry; what is not given is inherited.

    `user` is a name or a number of whoever waits for the answers, and is not sent: it makes the
    luck of the requests, so that those of one user fare alike for an hour, and then other users'
    do.  Without it the luck is that of the request that is served; outside of one each call has
    its own.

    `deadline_seconds` is what remains from the moment the block is entered.  It can only shorten an
    inherited deadline: nobody waits longer for a part than for the whole.  Zero or less means that
    the deadline has passed.  `inherit=False` starts afresh, for work that outlives the request.
    """
    if criticality is not None and not isinstance(criticality, Criticality):
        raise ConfigError(
            "criticality must be a Criticality, such as evenly.Criticality.SHEDDABLE, not"
            f" {criticality!r}"
        )
    if customer is not None and not claim.is_customer(customer):
        raise ConfigError(
            f"customer must be at most {claim.CUSTOMER_MAX_LENGTH} printable ASCII characters "
            f"without spaces at either end, not {customer!r:.200}"
        )
    if user is not None and not _is_user(user):
        raise ConfigError(
            f"user must be a string of 1 to {_USER_MOST_CHARACTERS} characters, not {user!r:.300}"
        )
    if deadline_seconds is not None:
        check.number(
            "deadline_seconds", deadline_seconds, -_DEADLINE_MOST_SECONDS, _DEADLINE_MOST_SECONDS
        )

    def resolve() -> _Inside:
        outer = current_request() if inherit else Request(criticality=job_criticality())
        luck = outer.luck if user is None else luck_of_user(user, _user_key(), unix_clock())
        deadline_at = outer.deadline_at
        if deadline_seconds is not None:
            own_at = clock() + deadline_seconds
            deadline_at = own_at if deadline_at is None else min(own_at, deadline_at)
        request = Request(
            criticality=outer.criticality if criticality is None else criticality,
            customer=outer.customer if customer is None else customer,
            deadline_at=deadline_at,
            luck=luck,
        )
        shares = _here.get() if inherit and user is None else None
        return _Inside(request, current_serving(), shares)

    return RequestContext(resolve)


def _is_user(user: object) -> bool:
    if not isinstance(user, str) or not 0 < len(user) <= _USER_MOST_CHARACTERS:
        return False
    try:
        user.encode()
    except UnicodeEncodeError:  # It has half of a character, and is nobody's name.
        return False
    return True


@final
class RequestContext:
    """Be what `request_context` returns: a context manager, for one `with` block at a time."""

    __slots__ = ("_resolve", "_token")

    def __init__(self, resolve: Callable[[], _Inside]) -> None:
        self._resolve = resolve
        self._token: Token[Scope | _Inside | None] | None = None

    def __enter__(self) -> Request:
        if self._token is not None:
            raise UsageError("a request_context is for one `with` block: make one for each")
        inside = self._resolve()
        self._token = _here.set(inside)
        return inside.request

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            restore(_here, token)


@final
class _Inside:
    """Be a `request_context` that was entered, perhaps while a request is being served.

    Its luck is that of what it `shares` it with, or its own.
    """

    __slots__ = ("_luck", "_shares", "is_of_one", "request", "serving")

    def __init__(
        self, request: Request, serving: Scope | None, shares: Scope | _Inside | None
    ) -> None:
        self.request = request
        self.serving = serving
        self._shares = shares
        self._luck = request.luck
        self.is_of_one: bool = shares is not None and (
            not isinstance(shares, _Inside) or shares.is_of_one
        )

    @property
    def luck(self) -> float | None:
        """What all that is called here share; `None` until it is needed."""
        return self._luck if self._shares is None else self._shares.luck

    @luck.setter
    def luck(self, luck: float) -> None:
        if self._shares is None:
            self._luck = luck
        else:
            self._shares.luck = luck


@final
class Serving:
    """Be the scope of one request, and nothing else."""

    __slots__ = ("_token", "luck", "request", "should_degrade", "was_degraded")

    def __init__(
        self,
        request: Request,
        should_degrade: Callable[[float], bool],
        luck: float | None = None,  # By position: one is made per request.
    ) -> None:
        self.request = request
        self.should_degrade = should_degrade
        self.luck = request.luck if luck is None else luck
        self.was_degraded = False
        self._token: Token[Scope | _Inside | None] | None = None

    def __enter__(self) -> Serving:
        self._token = enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token, self._token = self._token, None
        if token is not None:
            leave(token)


def serving(request: Request, *, should_degrade: Callable[[float], bool] | None = None) -> Serving:
    """Serve `request` inside the `with` block: what the handler sends inherits from it.

    `should_degrade` is told the request's level (`evenly.core.level`).  It is asked anew each time,
    so that a long request notices when overload ends.
    """
    return Serving(request, _never if should_degrade is None else should_degrade)


def should_degrade() -> bool:
    """Return whether the request being served should get a cheaper answer; False outside of one."""
    scope = current_serving()
    if scope is None:
        return False
    return scope.should_degrade(scope.request.criticality + (scope.luck or 0.0))


def charge(cpu_seconds: float) -> None:
    """Add to the cost of the request being served what was used for it elsewhere.

    That is what no clock of this process sees: another process, an accelerator.  Outside of a
    request, and in one that is not metered because its kind has been cheap, this does nothing.
    """
    check.number("cpu_seconds", cpu_seconds, 0.0, _CHARGED_MOST_SECONDS)
    meter = current_meter.get()
    if meter is not None:
        meter.charge(cpu_seconds)


def mark_degraded() -> None:
    """Say that the answer being made is a degraded one; outside of a request this does nothing."""
    scope = current_serving()
    if scope is not None:
        scope.was_degraded = True


class _Degradable(Protocol[P, R]):
    @overload
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Callable[P, R]: ...


class _AsyncDegradable(Protocol[P, R]):
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...


# The overlap is meant: a coroutine is an R too, and the first match is the right one.
@overload
def degradable(  # type: ignore[overload-overlap]
    cheaper: Callable[P, Coroutine[Any, Any, R]],
) -> _AsyncDegradable[P, R]: ...
@overload
def degradable(cheaper: Callable[P, R]) -> _Degradable[P, R]: ...
def degradable(cheaper: Callable[..., Any]) -> Any:
    """Answer by `cheaper`, called with the same arguments, when the handler should not or cannot.

    That is when `should_degrade()` is true, and when a dependency refuses: the handler lets a
    `RejectedError` out, or a task group's group of nothing else.  The answer is then marked as
    degraded.  What `cheaper` raises goes out as it is.  Streams are not taken: what was sent of one
    cannot be replaced, so a generator asks `should_degrade()` itself.
    """

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise ConfigError(f"degradable takes no generators: {_name(handler)}")
        if inspect.iscoroutinefunction(handler):
            return _degradable_async(handler, cheaper)
        if inspect.iscoroutinefunction(cheaper):
            raise ConfigError(f"{_name(handler)} cannot await {_name(cheaper)}")
        return _degradable_sync(handler, cheaper)

    return decorate


def _degradable_sync(handler: Callable[P, R], cheaper: Callable[P, R]) -> Callable[P, R]:
    @wraps(handler)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        if not should_degrade():
            try:
                return handler(*args, **kwargs)
            except (RejectedError, ExceptionGroup) as error:
                if not is_refusal(error):
                    raise
        mark_degraded()
        return cheaper(*args, **kwargs)

    return answer


def _degradable_async(
    handler: Callable[P, Coroutine[Any, Any, R]],
    cheaper: Callable[P, Coroutine[Any, Any, R]] | Callable[P, R],
) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(handler)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        if not should_degrade():
            try:
                return await handler(*args, **kwargs)
            except (RejectedError, ExceptionGroup) as error:
                if not is_refusal(error):
                    raise
        mark_degraded()
        cheap = cheaper(*args, **kwargs)
        return await cheap if inspect.isawaitable(cheap) else cheap

    return answer


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def is_refusal(error: BaseException | None) -> bool:
    """Return whether a handler let a rejection from below out, alone or as a task group's."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RejectedError)[1] is None
    return isinstance(error, RejectedError)


def carry_context(func: Callable[P, R]) -> Callable[P, R]:
    """Wrap `func` so that it runs in today's context wherever it is called: in another thread.

    What it consumes there is charged to the request that this context belongs to.
    """
    context = copy_context()

    @wraps(func)
    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context cannot be entered twice at a time; copying one takes constant time.
        return context.copy().run(_call_metered, func, *args, **kwargs)

    return carried


async def run_in_thread(func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `func` in the loop's default executor, inside this context, and charge its CPU."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, partial(carry_context(func), *args, **kwargs))


class ContextThreadPoolExecutor(ThreadPoolExecutor):
    """Run each piece of work in the context that submitted it, and charge its CPU there.

    As the loop's default executor it also covers `loop.run_in_executor(None, …)`.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule `fn` in a copy of the present context."""
        return super().submit(carry_context(fn), *args, **kwargs)


def _call_metered(func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    meter = current_meter.get()
    return func(*args, **kwargs) if meter is None else meter.call(func, *args, **kwargs)


def restore(variable: ContextVar[V], token: Token[V]) -> None:
    """Give a context variable the value that it had before `token`."""
    try:
        variable.reset(token)
    except ValueError:
        # An async generator dropped half-way is closed by the event loop in another context, where
        # the variable was never ours; the context in which it was set is gone.
        return


def _never(_level: float) -> bool:
    return False
