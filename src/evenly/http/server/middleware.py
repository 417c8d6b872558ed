"""Make a backend of any ASGI application: admission, metering and the load report around it.

    app = evenly.http.Middleware(app)

The order, as in `ARCHITECTURE.md`: read the headers, admit or refuse before the body is read,
wait for the turn to begin, run the application inside the context with the CPU metered, and report
with the response.  A response's headers go out before the request has ended, so that, unlike in
gRPC, the report still counts it as active.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Never, final

from evenly.context import enter, leave
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason, Rejection
from evenly.errors import UsageError
from evenly.http.server.answer import Answers
from evenly.http.server.asgi import App, Message, Receive, Scope, Send
from evenly.http.server.endpoints import Endpoints
from evenly.http.server.incoming import Incoming
from evenly.http.server.lifespan import Lifespan
from evenly.http.server.served import Served
from evenly.runtime.answer import gave_up, is_refusal
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.gate import StartGate
from evenly.runtime.metering import Metering
from evenly.signals.cost_meter import CostMeter

__all__ = ["Middleware", "backend_runtime"]

_IDLE_SECONDS: Final = 1e-6
_CALM_SECONDS: Final = 0.01
_EXPIRED: Final = Rejection(Reason.EXPIRED, retryable=False)
_NOT_YET: Final[Any] = None  # Of a plain `None` mypy would conclude that it stays.
# In a scope: somebody further out does all this already.
_SEEN: Final = "evenly"


def backend_runtime(
    config: BackendConfig | None = None, *, observer: Observer = NO_OBSERVER
) -> BackendRuntime:
    """Return a runtime for HTTP, for whoever hands one to a `Middleware`."""
    # One turn of the loop reads all that has arrived on open connections: no thread feeds it that
    # would need time.
    gate = StartGate(idle_seconds=_IDLE_SECONDS, calm_seconds=_CALM_SECONDS)
    return BackendRuntime(config, observer=observer, gate=gate)


def _explain(middleware: object) -> Never:  # noqa: ARG001 -- a property's signature
    """Explain the mistake when someone uses the middleware as if it were the application."""
    raise AttributeError(
        "a Middleware has no routes and the like, the application has: wrap it below them, or "
        "use its add_middleware(evenly.http.Middleware)"
    )


_OF_THE_APPLICATION: Final = property(_explain)


@final
class Middleware:
    """Admit, meter and report for an ASGI application; put it around everything else.

    It starts at the lifespan's startup or at the first request, whichever comes first, and asks
    clients to send once the application's own startup is complete.  WebSockets pass through and are
    not counted: they are no requests, and live for hours.  A second one inside, on the way of the
    same request, does nothing.

    A request ends when the application returns.  One whose deadline passes meanwhile is not
    cancelled, because most code is not made for it; it ends as a timeout.  That a client has left
    is known where the application reads or waits for it (`http.disconnect`), or the server says so.

    `health_path` and `ready_path` are served without admission; `None` leaves them to `app`.
    `runtime` is for whoever has one already, and stops it.
    """

    if not TYPE_CHECKING:  # Type checkers say it better: these do not exist.
        # By name: with a `__getattr__` every look at an attribute takes the slow way.
        get = post = put = patch = delete = head = options = websocket = _OF_THE_APPLICATION
        route = routes = router = api_route = add_api_route = add_route = _OF_THE_APPLICATION
        include_router = mount = state = dependency_overrides = _OF_THE_APPLICATION
        middleware = add_middleware = on_event = add_event_handler = _OF_THE_APPLICATION
        exception_handler = add_exception_handler = _OF_THE_APPLICATION

    def __init__(
        self,
        app: App,
        *,
        config: BackendConfig | None = None,
        observer: Observer = NO_OBSERVER,
        health_path: str | None = "/healthz",
        ready_path: str | None = "/readyz",
        runtime: BackendRuntime | None = None,
    ) -> None:
        self.app = app
        self.starts_as_lame_duck = False
        """Whether somebody else announces that it is healthy: `serve`, after the warm-up."""
        self.needs_lifespan = False
        """Whether an application that fails in its lifespan fails to start (uvicorn's `on`)."""
        self._config = config
        self._observer = observer
        self._health_path = health_path
        self._ready_path = ready_path
        self._owns_runtime = runtime is None
        self._use(backend_runtime(config, observer=observer) if runtime is None else runtime)

    def _use(self, runtime: BackendRuntime) -> None:
        self.runtime = runtime
        """What drives the backend's decisions; `runtime.snapshot()` shows what it does."""
        # What each request needs of it to begin, at hand.
        self._task = runtime.task
        self._gate = runtime.gate
        self._readings = runtime.readings
        self._answers = Answers(runtime)
        self._endpoints = Endpoints(
            runtime, self._answers, health_path=self._health_path, ready_path=self._ready_path
        )
        self._read = Incoming(runtime.trust).read
        # A customer with a quota pays for what it took and not for what others do.
        self._metering = Metering(
            runtime.measured, runtime.charged, is_always_on=runtime.has_quotas, rng=runtime.rng
        )
        self._loop: asyncio.AbstractEventLoop | None = None  # where it was started
        self._has_own_task = False
        self._is_begun = False
        self._is_over = False
        self._is_watching = False

    def start(self) -> None:
        """Begin to read the system and to answer probes, on the running loop.

        After a `stop`, a runtime of our own is made anew: tests run an application several times.
        """
        if self._is_over and self._owns_runtime:
            self._use(backend_runtime(self._config, observer=self._observer))
        self._loop = asyncio.get_running_loop()
        # In an empty context: the one that is current may belong to a request.
        contextvars.Context().run(self.runtime.start, self._loop)

    def announce_healthy(self) -> bool:
        """Ask clients to send; return False if the shutdown has begun."""
        return self.runtime.announce_healthy()

    def stop(self) -> None:
        """Leave nothing behind; after the server has stopped."""
        self._is_over = True
        self._is_begun = False  # Whoever comes next may come on another loop.
        self.runtime.enter_lame_duck()
        if self._owns_runtime:
            self.runtime.stop()

    async def __call__(  # noqa: C901, PLR0912, PLR0915 -- see below
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve one scope of ASGI.

        Written out rather than divided: in a server whatever runs once per request has left the
        CPU's caches since the last one, and costs three times what it does in a loop of its own.
        What is called and is no method is taken into a variable first: 3.11 has a fast way for
        either, and none for both at once.
        """
        if scope["type"] != "http" or _SEEN in scope:
            await self._pass_through(scope, receive, send)
            return
        if not self._is_begun:
            self._begin(scope)
        path = scope["path"]
        if scope.get("root_path"):
            path = path.removeprefix(scope["root_path"])
        if (path == self._health_path or path == self._ready_path) and (  # noqa: PLR1714 -- no hash
            self._endpoints.serves(scope)
        ):
            await self._endpoints.answer(path, send)
            return
        read, app = self._read, self.app
        request, attempt, to_evenly, seconds_left, luck, line = read(scope)
        served = self._task.admit(request, attempt, Served, seconds_left, luck=luck, line=line)
        if type(served) is not Served:
            await self._answers.refuse(served, request, scope, send, to_evenly=to_evenly)
            return
        served.answers = self._answers
        served.scope = scope
        served.receive_from = receive
        served.send_to = send
        served.to_evenly = to_evenly
        served.has_left = served.was_degraded = False
        served.status = 0
        served.ended = served.held = _NOT_YET
        if not self._readings.is_timing:
            self._readings.begun()
        if not self._gate.try_enter() and not await self._is_in_time(served):
            return
        scope[_SEEN] = True
        metering = self._metering
        if metering.skips:
            metering.skips -= 1
            meter = None
        else:
            meter = CostMeter()
        token = enter(served)
        try:
            send = served.send_watched if self._is_watching else served.send
            work = app(scope, served.receive, send)
            await (work if meter is None else meter.run(_coroutine(work)))
            if served.held is not None:
                await served.release()
        except BaseException as error:
            if not await self._is_answered(served, error, metering.cpu_seconds(meter)):
                raise
            return
        finally:
            served.receive_from = _nobody
            served.send_to = _nowhere
            if not self._has_own_task:
                leave(token)
        outcome = served.outcome() if served.ended is None else served.ended
        cpu_seconds = metering.mean_seconds if meter is None else metering.cpu_seconds(meter)
        # Its own task: this may have been stopped and started meanwhile.
        served.task.finish(served, outcome, cpu_seconds)

    def _begin(self, scope: Scope) -> None:
        """Look at the first request: it tells about the server, and there may be no lifespan."""
        if self._loop is not None and self._loop.is_closed() and self._owns_runtime:
            with contextlib.suppress(RuntimeError):  # It may want to tell the old loop.
                self.stop()
            self._loop = None
        if self._loop is None:
            self.start()
            if not self.starts_as_lame_duck:
                self.announce_healthy()
        version = (scope.get("asgi") or {}).get("spec_version")
        # Servers name it, and have a task for each request, whose context ends with it.  Test
        # clients do not, and call an application in their own.
        self._has_own_task = version is not None
        # They may have a loop for each request, too, and so are looked at each time.
        self._is_begun = self._has_own_task
        # From 2.4 on, `send` raises where the client has left.
        self._is_watching = version not in {None, "2.0", "2.1", "2.2", "2.3"}

    async def _pass_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan" and _SEEN not in scope:
            scope[_SEEN] = True
            await Lifespan(self, receive, send).run(scope)
            return
        if kind == "websocket" and not self._is_begun and _SEEN not in scope:
            self._begin(scope)
        await self.app(scope, receive, send)

    async def _is_in_time(self, served: Served) -> bool:
        """Wait for the turn; return False for a request that was answered, its deadline past."""
        deadline_at = served.deadline_at
        try:
            await self.runtime.wait_for_turn()
        except BaseException:
            served.task.finish(served, gave_up(served, deadline_at))
            raise
        if deadline_at is None or time.monotonic() < deadline_at:
            return True
        served.task.finish(served, Outcome.TIMEOUT)
        await served.refuse(_EXPIRED)
        return False

    async def _is_answered(self, served: Served, error: BaseException, cpu_seconds: float) -> bool:
        """End a request whose application has raised; return whether the client has its answer."""
        if served.status == 0 and is_refusal(error):
            await served.refuse(served.task.pass_on(served, cpu_seconds), error)
            return True
        served.task.finish(served, served.outcome(error), cpu_seconds)
        if served.held is not None:
            await served.release()
        return False


async def _nobody() -> Message:
    """Receive for an application that has returned."""
    return {"type": "http.disconnect"}


async def _nowhere(message: Message) -> None:
    """Send for an application that has returned."""
    raise UsageError(f"{message.get('type')!r} was sent after the application had returned")


def _coroutine(work: Awaitable[None]) -> Coroutine[Any, Any, None]:
    """Return what a meter can step; an application may return any awaitable."""
    return work if isinstance(work, CoroutineType) else _awaited(work)


async def _awaited(work: Awaitable[None]) -> None:
    await work
