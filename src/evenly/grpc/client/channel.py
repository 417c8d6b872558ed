"""A `grpc.aio.Channel` to a service: every call goes to the backend that evenly picks."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, final

import grpc
import grpc.aio

from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.errors import UsageError
from evenly.grpc.client.apart import check_interceptors
from evenly.grpc.client.call import AnyCall
from evenly.grpc.client.multicallable import StreamStream, StreamUnary, UnaryStream, UnaryUnary
from evenly.grpc.client.service import Service, drop, release, share
from evenly.grpc.common.options import Options
from evenly.runtime.client import check_client
from evenly.runtime.client_config import ClientConfig

__all__ = ["Channel", "channel"]

_POLL_SECONDS = 0.05


def channel(
    target: str | Discovery,
    *,
    config: ClientConfig | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    compression: grpc.Compression | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
    observer: Observer = NO_OBSERVER,
) -> Channel:
    """Return a channel to all backends of a service; generated stubs take it unchanged.

    `target` is `dns:///name:port`, `static:host:port,host:port`, `file:/path`, or a `Discovery` of
    your own.  Without `credentials` connections are in the clear.  Channels with the same arguments
    share their connections and decisions.
    """
    return Channel(
        target,
        ClientConfig() if config is None else config,
        credentials=credentials,
        options=tuple((name, value) for name, value in options or ()),
        compression=compression,
        interceptors=interceptors,
        observer=observer,
    )


@final
class Channel(grpc.aio.Channel):
    """Be a channel whose calls are balanced over the backends of a service.

    It starts with the first call, or on entering `async with`, on the loop that runs then.
    """

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
        interceptors: Sequence[grpc.aio.ClientInterceptor] | None,
        observer: Observer,
    ) -> None:
        check_client(target, config)
        check_interceptors(interceptors)
        self.config = config
        self._make: Callable[[], Service] = lambda: Service(
            target,
            config,
            credentials=credentials,
            options=options,
            compression=compression,
            interceptors=interceptors,
            observer=observer,
        )
        self._key = (
            target if isinstance(target, str) else id(target),
            config,
            None if credentials is None else id(credentials),
            options,
            compression,
            None if interceptors is None else tuple(map(id, interceptors)),
            id(observer),
        )
        self._service: Service | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self.has_interceptors = bool(interceptors)
        self._calls: set[AnyCall] = set()
        # What nobody reads any more has to be able to go.
        self._weak_calls: weakref.WeakSet[AnyCall] = weakref.WeakSet()

    def __del__(self) -> None:
        # gRPC's own channels close when they are dropped.
        service = getattr(self, "_service", None)
        if service is not None and self._loop is not None and not self._is_closed:
            drop(self._loop, self._key, service)

    async def __aenter__(self) -> Channel:
        if not self._is_closed:  # Calls say so, as with gRPC's own.
            self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def service(self) -> Service:
        """What this channel shares with others to the same target."""
        if self._service is None:
            raise UsageError("the channel has not been used yet: no loop to run on")
        return self._service

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        return self.service.runtime.task.snapshot()

    def start(self) -> Service:
        """Begin to look for backends, unless that was done; return what it shares."""
        service = self._service
        if service is not None and not self._is_closed:
            # The loop that runs now is open, which is quicker than to ask it.  `get_running_loop`
            # would raise where none runs, and the closed one is to be named.
            running = asyncio._get_running_loop()  # noqa: SLF001 -- asyncio's own, and documented
            if running is not self._loop and service.runtime.loop.is_closed():
                raise UsageError(
                    "the channel belongs to an event loop that is closed: make another"
                )
            return service
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        loop = asyncio.get_running_loop()
        self._service = share(loop, self._key, self._make)
        self._loop = loop
        return self._service

    async def close(self, grace: float | None = None) -> None:
        """Cancel the calls that have not ended, after `grace` seconds, and let go."""
        if self._is_closed:
            return
        loop = self._loop
        if not (loop is None or loop is asyncio.get_running_loop() or loop.is_closed()):
            raise UsageError("the channel belongs to another event loop: close it there")
        self._is_closed = True
        if loop is None or loop.is_closed() or self._service is None:
            return  # What is left of a closed loop is let go by who shares next.
        try:
            if grace:
                ended_at = loop.time() + grace
                while self._active() and loop.time() < ended_at:
                    await asyncio.sleep(min(_POLL_SECONDS, grace))
        finally:
            # Also when nobody waits for the grace to end.
            for call in self._active():
                call.cancel()
            await release(loop, self._key, self._service)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return READY as soon as one backend can be sent to."""
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._service is None:
            if not try_to_connect:
                return grpc.ChannelConnectivity.IDLE
            self.start()
            return grpc.ChannelConnectivity.IDLE  # As it was before anyone tried.
        if try_to_connect:
            self.service.wake_up()
        return self.service.connectivity()

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when `get_state` says something else."""
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        while self.get_state() is last_observed_state:
            await asyncio.sleep(_POLL_SECONDS)

    async def channel_ready(self) -> None:
        """Return when one backend can be sent to."""
        while self.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            if self._is_closed:
                raise grpc.aio.UsageError("Channel is closed.")
            await asyncio.sleep(_POLL_SECONDS / 10)

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryUnary:
        """Return what calls a method with one message each way."""
        return UnaryUnary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryStream:
        """Return what calls a method with one message there and a stream back."""
        return UnaryStream(self, method, request_serializer, response_deserializer)

    def stream_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> StreamUnary:
        """Return what calls a method with a stream there and one message back."""
        return StreamUnary(self, method, request_serializer, response_deserializer)

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> StreamStream:
        """Return what calls a method with a stream each way."""
        return StreamStream(self, method, request_serializer, response_deserializer)

    def call_begun(self, call: AnyCall) -> None:
        """Remember a call, to cancel it when the channel is closed."""
        (self._weak_calls if call.is_weak else self._calls).add(call)

    def call_ended(self, call: AnyCall) -> None:
        """Forget a call."""
        (self._weak_calls if call.is_weak else self._calls).discard(call)

    def _active(self) -> list[AnyCall]:
        return [*self._calls, *self._weak_calls]
