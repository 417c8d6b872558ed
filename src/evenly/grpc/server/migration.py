"""Serve handlers that are plain functions, in threads, as `grpc.aio` allows for migration.

gRPC would run them in its own thread pool and admit them there, too late.  So they are made into
coroutine functions here, which run the handler in that pool, inside the request's context and with
its CPU charged, and carry messages between the two worlds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any, NoReturn, TypeVar, final

import grpc

from evenly.context import carry_context
from evenly.grpc.server.servicer_context import ServicerContext

__all__ = ["SyncServicerContext", "asynchronous"]

T = TypeVar("T")
Async = Callable[[Any, ServicerContext], Coroutine[Any, Any, Any]]


def asynchronous(
    handler: grpc.RpcMethodHandler, function: Callable[..., Any], executor: Executor | None
) -> Async:
    """Return a coroutine function that does what `function` does, in a thread.

    One that answers with a stream writes it, in gRPC's reader-and-writer API.
    """

    async def serve(request: Any, call: ServicerContext) -> Any:
        loop = asyncio.get_running_loop()
        bridge = _Bridge(loop)
        context = SyncServicerContext(call, bridge)
        if handler.request_streaming:
            request = bridge.iterate(request)
        run = function
        if handler.response_streaming:
            run = partial(_write_all, function, call, bridge)
        try:
            return await loop.run_in_executor(executor, carry_context(run), request, context)
        finally:
            bridge.close()

    return serve


def _write_all(
    function: Callable[..., Iterable[Any]],
    call: ServicerContext,
    bridge: _Bridge,
    request: object,
    context: SyncServicerContext,
) -> None:
    """Write what a generator yields; it runs in one thread from its beginning to its end."""
    responses = function(request, context)
    try:
        for response in responses:
            bridge.wait_for(call.write, response)
    finally:
        close = getattr(responses, "close", None)
        if close is not None:
            close()


@final
class _Bridge:
    """Await things on the event loop from a thread, until the request has ended.

    After that gRPC's own context must not be touched: what is behind it has been freed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_closed = False

    def close(self) -> None:
        """End, on the loop's thread; whatever comes later raises."""
        self._is_closed = True

    def check(self) -> None:
        """Raise if the request has ended."""
        if self._is_closed:
            raise RuntimeError("this request has ended: it was cancelled, or its deadline passed")

    def wait_for(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Await `function(*arguments)` on the loop, and return its result here."""

        async def run() -> T:
            self.check()
            return await function(*arguments)

        self.check()
        # In an empty context: the thread's own CPU meter is no matter of the loop's.
        return Context().run(asyncio.run_coroutine_threadsafe, run(), self._loop).result()

    def iterate(self, requests: AsyncIterator[T]) -> Iterator[T]:
        """Iterate here over what the loop reads."""
        iterator = aiter(requests)

        async def read() -> tuple[bool, T | None]:
            # A StopAsyncIteration cannot leave a coroutine.
            async for request in iterator:
                return True, request
            return False, None

        while True:
            is_there, request = self.wait_for(read)
            if not is_there:
                return
            yield request  # type: ignore[misc]  # `is_there` says that it is a T.


@final
class SyncServicerContext(grpc.ServicerContext):
    """Be the `context` of a handler in a thread: what gRPC offers there, with our trailers."""

    def __init__(self, call: ServicerContext, bridge: _Bridge) -> None:
        self._call = call
        self._bridge = bridge

    def _live(self) -> ServicerContext:
        self._bridge.check()
        return self._call

    def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the request with this status, and raise."""
        self._bridge.wait_for(self._call.abort, code, details, trailing_metadata)
        raise AssertionError  # It raises.

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the request with this status, and raise."""
        self.abort(status.code, status.details, status.trailing_metadata or ())

    def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send the initial metadata."""
        self._bridge.wait_for(self._call.send_initial_metadata, initial_metadata)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the trailers; ours will be added."""
        self._live().set_trailing_metadata(trailing_metadata)

    def trailing_metadata(self) -> Any:
        """Return the trailers that were set."""
        return self._live().trailing_metadata()

    def invocation_metadata(self) -> Any:
        """Return what the client sent beside the request."""
        return self._live().invocation_metadata()

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status with which the request ends."""
        self._live().set_code(code)

    def code(self) -> grpc.StatusCode:
        """Return the status that was set."""
        return self._live().code()

    def set_details(self, details: str) -> None:
        """Set the message that goes with the status."""
        self._live().set_details(details)

    def details(self) -> str:
        """Return the message that was set."""
        return self._live().details()

    def set_compression(self, compression: grpc.Compression) -> None:
        """Set how responses are compressed."""
        self._live().set_compression(compression)

    def disable_next_message_compression(self) -> None:
        """Send the next message as it is."""
        self._live().disable_next_message_compression()

    def peer(self) -> str:
        """Return the client's address."""
        return self._live().peer()

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return who the client has proved to be."""
        return self._live().peer_identities()

    def peer_identity_key(self) -> str | None:
        """Return by which property of `auth_context` the client is known."""
        return self._live().peer_identity_key()

    def auth_context(self) -> Any:
        """Return what is known of the connection's security."""
        return self._live().auth_context()

    def time_remaining(self) -> float:
        """Return the seconds left; `None` without a deadline."""
        return self._live().time_remaining()

    def is_active(self) -> bool:
        """Return whether the client still waits for an answer."""
        try:
            return not self._live().done()
        except RuntimeError:
            return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called, on the event loop, when the request has ended."""
        if not self.is_active():
            return False
        self._call.add_done_callback(lambda _: callback())
        return True

    def cancel(self) -> NoReturn:
        """Raise: `grpc.aio` does not offer this either."""
        raise NotImplementedError("grpc.aio has no cancel(): abort with StatusCode.CANCELLED")
