"""Look at requests where they arrive, in gRPC's own thread, before they wait for one of the pool.

SRE book, chapter 21: a backend must go on rejecting cheaply "regardless of how much excess traffic
is thrown at" it.  A request that is refused in a thread of the pool has waited for it behind those
that overload the backend, and has had its message read.  So it is refused right here, without
either: gRPC lets a method have a pool of its own, and the one of refusals runs them at once.

What arrives is the method and the metadata.  Of a request that claims to be CRITICAL_PLUS, or a
retry, or somebody's, one has to know from whom it comes, and that gRPC says only in the pool:
such a request is admitted there.

Luck and line are carried by whatever is sent for another request, so nearly all would be admitted
there where it is full.  They are believed when they arrive, and looked at when gRPC says who said
them, accepted or refused.  Once a stranger has, all that come with them are admitted in the pool.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, final

import grpc

from evenly.core.backend_task import Admission
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.grpc.common.answer import Trailers, refusal
from evenly.grpc.common.incoming import Incoming
from evenly.runtime.backend import BackendRuntime

__all__ = ["Arrival", "Reception"]

P = ParamSpec("P")
R = TypeVar("R")
# A stranger who has claimed a level may claim another.
_DOUBT_SECONDS: Final = 60.0


class _PeerIsUnknown(Exception):
    """Say that it matters from whom a request comes."""


@final
class _Arriving:
    """Be as much of gRPC's context as there is when a request arrives."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return what the client sent beside the request."""
        return self._metadata

    def time_remaining(self) -> None:
        """Return `None`: the deadline is looked at when the request begins."""

    def peer(self) -> NoReturn:
        """Raise."""
        raise _PeerIsUnknown


@final
class Arrival:
    """Be one request from its arrival until its handler begins, or it is given up."""

    __slots__ = ("admission", "is_begun", "says_level", "to_evenly")

    def __init__(
        self, admission: Admission | None, *, to_evenly: bool, says_level: bool = False
    ) -> None:
        self.admission = admission
        """`None` if it is to be admitted by whoever knows its peer."""
        self.says_level = says_level
        """Whether its luck or line were believed of a peer that was not known."""
        self.to_evenly = to_evenly
        self.is_begun = False
        """Whether its handler has begun, and so whoever called that ends it."""


@final
class _AtOnce(ThreadPoolExecutor):
    """Run work where it is submitted.  It has no threads; gRPC insists on the type."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run `fn`."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 -- as an executor does
            future.set_exception(error)
        return future


_TOO_MANY: Final = Rejection(Reason.OVERLOADED, retryable=True)
_AT_ONCE: Final = _AtOnce(max_workers=1)


@final
class _Local(threading.local):
    arrival: Arrival | None = None


@final
class Reception:
    """Admit requests as they arrive, and count those that have not begun.

    It is also the thread pool that gRPC submits to, around another one: so whatever becomes of a
    request that waits, it ends here.
    """

    def __init__(self, pool: Executor, *, most: int | None = None) -> None:
        self._pool = pool
        self._most = most
        """How many requests there may be at a time; `None` is no limit."""
        self._unbegun = 0
        self._arriving: Arrival | None = None  # used by gRPC's one thread alone
        self._local = _Local()
        self._runtime: BackendRuntime | None = None
        self._incoming: Incoming | None = None
        self._trailers: Trailers | None = None
        # Until then nobody's luck and line are believed before gRPC says whose they are.
        self._doubts_until = -math.inf

    def open(self, runtime: BackendRuntime, incoming: Incoming, trailers: Trailers) -> None:
        """Say by whom requests are admitted."""
        self._runtime = runtime
        self._incoming = incoming
        self._trailers = trailers

    @property
    def _opened(self) -> BackendRuntime:
        assert self._runtime is not None  # noqa: S101  It has been opened.
        return self._runtime

    def waiting(self) -> int:
        """Return how many requests have not begun."""
        return self._unbegun

    # gRPC's thread.

    def admit(self, metadata: Iterable[tuple[str, str | bytes]]) -> grpc.RpcMethodHandler | None:
        """Admit a request that is about to be submitted; or return a handler that refuses it."""
        runtime, incoming = self._opened, self._incoming
        assert incoming is not None  # noqa: S101  It has been opened.
        if self._arriving is not None:  # gRPC is stopping, and did not submit it.
            self._give_up(self._arriving)
            self._arriving = None
        if self._most is not None and runtime.active >= self._most:
            return self._refusing(_TOO_MANY, Request(), to_evenly=False)
        try:
            request, attempt, to_evenly, luck, line = incoming.read(
                _Arriving(metadata), level_is_believed=time.monotonic() >= self._doubts_until
            )
        except _PeerIsUnknown:
            with runtime.lock:
                runtime.arriving += 1  # It is here, though not admitted.
                self._unbegun += 1
            self._arriving = Arrival(None, to_evenly=False)
            return None
        says_level = luck is not None or line > 0.0
        with runtime.lock:
            runtime.readings.record_runnable()
            answer = runtime.admit(request, attempt, luck=luck, line=line)
            if type(answer) is not Rejection:
                self._unbegun += 1
                self._arriving = Arrival(answer, to_evenly=to_evenly, says_level=says_level)
                return None
        return self._refusing(answer, request, to_evenly=to_evenly, says_level=says_level)

    def _refusing(
        self, rejection: Rejection, request: Request, *, to_evenly: bool, says_level: bool = False
    ) -> grpc.RpcMethodHandler:
        def refuse(_: object, context: Any) -> NoReturn:
            if says_level:
                self.is_level_of_friend(context)
            self.refuse(context, rejection, request, to_evenly=to_evenly)

        refuse.experimental_thread_pool = _AT_ONCE  # type: ignore[attr-defined]
        # Of this kind whatever its method is: gRPC reads no message before it calls the handler.
        return grpc.stream_unary_rpc_method_handler(refuse)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule what serves the request that has just arrived."""
        arrival, self._arriving = self._arriving, None
        if arrival is None:
            return self._pool.submit(fn, *args, **kwargs)
        try:
            return self._pool.submit(self._serve, arrival, fn, *args, **kwargs)
        except RuntimeError:  # shut down
            self._give_up(arrival)
            raise

    # Any thread.

    def is_level_of_friend(self, context: Any) -> bool:
        """Return whether luck and line that were believed came from a peer that is trusted.

        If not, none are believed for a while of peers that are not known.
        """
        incoming = self._incoming
        assert incoming is not None  # noqa: S101  It has been opened.
        is_trusted = incoming.is_trusted(context)
        if not is_trusted:
            self._doubts_until = time.monotonic() + _DOUBT_SECONDS
        return is_trusted

    def refuse(
        self,
        context: Any,
        rejection: Rejection,
        request: Request,
        *,
        to_evenly: bool,
    ) -> NoReturn:
        """Abort a request that is not served: before any message, so in Trailers-Only form."""
        trailers = self._trailers
        assert trailers is not None  # noqa: S101  It has been opened.
        with self._opened.lock:
            entries = trailers.of_refusal(rejection, to_evenly=to_evenly)
        context.set_trailing_metadata(entries)
        context.abort(*refusal(rejection, request))
        raise AssertionError  # It raises.

    def _serve(
        self, arrival: Arrival, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        self._local.arrival = arrival
        try:
            return fn(*args, **kwargs)
        finally:
            self._local.arrival = None
            if not arrival.is_begun:  # Its client has left before its message was read.
                self._give_up(arrival)

    def begin(self) -> Arrival | None:
        """Return what this thread is to serve, which begins now; `None` if it did not come here.

        Under the runtime's lock.
        """
        local = self._local
        arrival = local.arrival
        if arrival is not None:
            local.arrival = None
            self._begin(arrival)
        return arrival

    def _begin(self, arrival: Arrival) -> None:
        arrival.is_begun = True
        self._unbegun -= 1
        if arrival.admission is None:
            self._opened.arriving -= 1

    def _give_up(self, arrival: Arrival) -> None:
        """End a request that has not begun: its client has left, or the server is going."""
        runtime = self._opened
        with runtime.lock:
            self._begin(arrival)
            if arrival.admission is not None:
                runtime.task.finish(arrival.admission, Outcome.CANCELLED)
