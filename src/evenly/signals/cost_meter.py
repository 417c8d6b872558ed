"""Measure the CPU seconds that each request consumes, in asyncio and in threads.

SRE book, chapter 21, "The Pitfalls of Queries per Second": the cost of a request is best expressed
in CPU consumption.  An event loop interleaves requests in one thread, so no clock of the operating
system knows who used it.  The meter steps the handler's coroutine itself, as the event loop would,
and reads the thread's CPU clock around each step:

    cost = Σ over steps (CPU clock after − before) + the same of its child tasks and threads

A transport uses it inside a handler of its own, which stays `async def`, as gRPC demands:

    async def handler(request, context):
        meter = CostMeter()
        try:
            return await meter.run(inner(request, context))
        finally:
            admission.finish(outcome, meter.cpu_seconds)

*Child tasks* are charged through the context, by a task factory that the loop has while something
is being metered.  *Threads* are charged when started by `evenly.run_in_thread` and its kin.  Not
seen are callbacks (`call_soon`), work after the request has been finished, and the event loop
itself; whoever spreads the process's remaining CPU over its requests includes them.

Steps can nest: an eager task (Python 3.12) runs its first step inside its parent's.  Each thread
therefore remembers which meter is running and since when, and switching charges the one that is
left: every nanosecond is charged once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from types import TracebackType, coroutine
from typing import Any, ParamSpec, TypeVar, final

from evenly.context import current_meter, restore

__all__ = ["CostMeter"]

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")


class _Thread(threading.local):
    """Remember which meter runs in this thread, and since which reading of its CPU clock."""

    def __init__(self) -> None:
        self.running = _Running()


@final
class _Running:
    __slots__ = ("meter", "since")

    def __init__(self) -> None:
        self.meter: CostMeter | None = None
        self.since = 0


_thread = _Thread()
_threads_lock = threading.Lock()


@final
class CostMeter:
    """Add up what one request consumes.

    `clock` returns nanoseconds of the calling thread's CPU; tests pass their own.
    """

    __slots__ = ("charged_seconds", "clock", "loop_nanoseconds", "thread_nanoseconds")

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self.clock = clock
        self.loop_nanoseconds = 0
        """What steps of coroutines took; written by the event loop's thread alone."""
        self.thread_nanoseconds = 0
        """What other threads took; written under a lock."""
        self.charged_seconds = 0.0
        """What was used for the request elsewhere (`evenly.charge`); written under a lock."""

    @property
    def cpu_seconds(self) -> float:
        """What the request has consumed so far; a step that is under way counts when it ends."""
        return self.measured_seconds + self.charged_seconds

    @property
    def measured_seconds(self) -> float:
        """What it has consumed of this process."""
        return (self.loop_nanoseconds + self.thread_nanoseconds) * 1e-9

    def charge(self, cpu_seconds: float) -> None:
        """Add what was used for the request elsewhere; from any thread."""
        with _threads_lock:
            self.charged_seconds += cpu_seconds

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine as `await coroutine` would, and charge its steps.

        Await it at once.  Results, exceptions, cancellation and context variables pass unchanged.
        """
        token = current_meter.set(self)
        loop = asyncio._get_running_loop()  # noqa: SLF001 -- `None` where another library runs this
        factory = None if loop is None else _install(loop)
        try:
            return await _step(coroutine, self)
        finally:
            restore(current_meter, token)
            if loop is not None and factory is not None:
                _uninstall(loop, factory)

    def stream(self, items: AsyncGenerator[Y, S]) -> AsyncGenerator[Y, S]:
        """Iterate over an async generator, and charge its steps."""
        return _MeteredStream(items, self)

    def call(self, func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `func` in this thread, whichever that is, and charge its CPU."""
        # A meter of its own, because this one may be written by the event loop at the same time.
        part = CostMeter(self.clock)
        token = current_meter.set(part)
        outer = _enter(part)
        try:
            return func(*args, **kwargs)
        finally:
            _leave(part, outer)
            current_meter.reset(token)
            with _threads_lock:
                self.thread_nanoseconds += part.loop_nanoseconds + part.thread_nanoseconds
                self.charged_seconds += part.charged_seconds


def _enter(meter: CostMeter) -> CostMeter | None:
    running = _thread.running
    outer = running.meter
    now = meter.clock()
    if outer is not None:
        outer.loop_nanoseconds += now - running.since
    running.meter = meter
    running.since = now
    return outer


def _leave(meter: CostMeter, outer: CostMeter | None) -> None:
    running = _thread.running
    now = meter.clock()
    meter.loop_nanoseconds += now - running.since
    running.meter = outer
    running.since = now


@coroutine
def _step(inner: Coroutine[Any, Any, R], meter: CostMeter) -> Generator[Any, Any, R]:
    """Be `yield from inner` (PEP 380), with each step charged.

    `_enter` and `_leave` are written out, because this happens at every await.
    """
    send = inner.send
    clock = meter.clock
    running = _thread.running
    step: Callable[[Any], Any] = send
    argument: Any = None
    while True:
        outer = running.meter
        if outer is not meter:  # If it is, the step around this one is being charged already.
            now = clock()
            if outer is not None:
                outer.loop_nanoseconds += now - running.since
            running.meter = meter
            running.since = now
        try:
            waiting_for = step(argument)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            if outer is not meter:
                now = clock()
                meter.loop_nanoseconds += now - running.since
                running.meter = outer
                running.since = now
            argument = None  # An exception here would keep this frame alive, and the frame it.
        try:
            argument = yield waiting_for
            step = send
        except GeneratorExit:
            _Metered(inner, meter).close()
            raise
        except BaseException as error:  # noqa: BLE001 -- thrown in, whatever it is
            step, argument = inner.throw, error


@final
class _Metered(Coroutine[Any, Any, R]):
    """Step a coroutine, and charge each step.

    A class rather than an `async def`, so that it can be a task's coroutine itself: a task that is
    cancelled before its first step then throws into the inner coroutine, as it should.
    """

    __slots__ = ("_coroutine", "_meter", "_send")

    def __init__(self, coroutine: Coroutine[Any, Any, R], meter: CostMeter) -> None:
        self._coroutine = coroutine
        self._send = coroutine.send
        self._meter = meter

    def send(self, value: object = None, /) -> object:
        """Take one step."""
        meter = self._meter
        if _thread.running.meter is meter:
            return self._send(value)  # The step around this one is being charged already.
        outer = _enter(meter)
        try:
            return self._send(value)
        finally:
            _leave(meter, outer)

    __next__ = send

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> object:
        """Throw into the coroutine: a step too."""
        outer = _enter(self._meter)
        try:
            if isinstance(kind, BaseException):
                return self._coroutine.throw(kind)
            return self._coroutine.throw(kind, value, traceback)
        finally:
            _leave(self._meter, outer)

    def close(self) -> None:
        """Close the coroutine; its `finally` blocks are work as well."""
        outer = _enter(self._meter)
        try:
            self._coroutine.close()
        finally:
            _leave(self._meter, outer)

    def __iter__(self) -> _Metered[R]:
        return self

    def __await__(self) -> Generator[Any, Any, R]:
        return self

    def __getattr__(self, name: str) -> object:
        # `cr_frame`, `__qualname__` and so on: stacks and names of tasks read as without a meter.
        return getattr(self._coroutine, name)


@final
class _MeteredStream(AsyncGenerator[Y, S]):
    """Step an async generator, and charge each step."""

    __slots__ = ("_items", "_meter")

    def __init__(self, items: AsyncGenerator[Y, S], meter: CostMeter) -> None:
        self._items = items
        self._meter = meter

    async def __anext__(self) -> Y:
        return await self._meter.run(self._items.__anext__())

    async def asend(self, value: S, /) -> Y:
        return await self._meter.run(self._items.asend(value))

    async def athrow(self, *error: Any) -> Y:  # noqa: ANN401 -- two signatures, both passed on
        return await self._meter.run(self._items.athrow(*error))

    async def aclose(self) -> None:
        await self._meter.run(self._items.aclose())


@final
class _MeteringTaskFactory:
    """Make tasks as before; one made inside a metered context is charged to that meter."""

    def __init__(self, before: Callable[..., asyncio.Future[Any]] | None) -> None:
        self.before = before
        self.users = 0
        """Metered coroutines that run."""

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, R] | Generator[Any, None, R],
        /,
        *,
        context: Context | None = None,
        **options: Any,  # noqa: ANN401 -- each Python version has others
    ) -> asyncio.Future[R]:
        meter = current_meter.get() if context is None else context.get(current_meter)
        if isinstance(meter, CostMeter) and isinstance(coroutine, Coroutine):
            coroutine = _Metered(coroutine, meter)
        if context is not None:
            options["context"] = context
        if self.before is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        return self.before(loop, coroutine, **options)


def _install(loop: asyncio.AbstractEventLoop) -> _MeteringTaskFactory:
    """Charge child tasks of metered coroutines on this loop, until `_uninstall`.

    Not for good: a factory makes each task of the process 1 µs dearer, and most requests that are
    cheap are not metered.
    """
    factory = loop.get_task_factory()
    if not isinstance(factory, _MeteringTaskFactory):
        factory = _MeteringTaskFactory(factory)
        loop.set_task_factory(factory)
    factory.users += 1
    return factory


def _uninstall(loop: asyncio.AbstractEventLoop, factory: _MeteringTaskFactory) -> None:
    """Undo one `_install`; another task factory that was put on top since stays."""
    factory.users -= 1
    if factory.users == 0 and loop.get_task_factory() is factory:
        loop.set_task_factory(factory.before)
