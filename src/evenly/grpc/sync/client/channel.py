"""A `grpc.Channel` to a service, for threads: every call goes to the backend that evenly picks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, final

import grpc

from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.grpc.common.options import Options
from evenly.grpc.sync.client.call import AnyCall
from evenly.grpc.sync.client.multicallable import StreamStream, StreamUnary, UnaryStream, UnaryUnary
from evenly.grpc.sync.client.service import Service
from evenly.grpc.sync.client.sharing import drop, release, share
from evenly.grpc.sync.client.subscribers import Subscribers
from evenly.grpc.sync.forking import forked
from evenly.runtime.client import check_client
from evenly.runtime.client_config import ClientConfig

__all__ = ["Channel", "channel"]

_CLOSED = "Cannot invoke RPC on closed channel!"
_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def channel(
    target: str | Discovery,
    *,
    config: ClientConfig | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    compression: grpc.Compression | None = None,
    observer: Observer = NO_OBSERVER,
) -> Channel:
    """Return a channel to all backends of a service; generated stubs take it unchanged.

    `target` is `dns:///name:port`, `static:host:port,host:port`, `file:/path`, or a `Discovery` of
    your own.  Without `credentials` connections are in the clear.  Channels with the same arguments
    share their connections and decisions.  `observer` is called by several threads, one at a time.
    """
    return Channel(
        target,
        ClientConfig() if config is None else config,
        credentials=credentials,
        options=tuple((name, value) for name, value in options or ()),
        compression=compression,
        observer=observer,
    )


@final
class Channel(grpc.Channel):
    """Be a channel whose calls are balanced over the backends of a service; any thread may call.

    It starts with the first call, or on entering `with`: not before, so that a process may fork
    in between.
    """

    def __init__(
        self,
        target: str | Discovery,
        config: ClientConfig,
        *,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
        observer: Observer,
    ) -> None:
        check_client(target, config)
        self.config = config
        self._make: Callable[[], Service] = lambda: Service(
            target,
            config,
            credentials=credentials,
            options=options,
            compression=compression,
            observer=observer,
        )
        self._key = (
            target if isinstance(target, str) else id(target),
            config,
            None if credentials is None else id(credentials),
            options,
            compression,
            id(observer),
        )
        self._is_closed = False
        self._calls: weakref.WeakSet[AnyCall] = weakref.WeakSet()
        self.begin_afresh()
        _channels.add(self)

    def begin_afresh(self) -> None:
        """Have used nothing yet; in a forked child, nothing but what was there before is closed."""
        for call in list(self._calls):
            call.end_in_child()
        self._lock = threading.Lock()
        self._service: Service | None = None
        # Weak: what has not ended is held by whatever it waits for, and what nobody reads any more
        # has to be able to go.
        self._calls = weakref.WeakSet()
        self._subscribers = Subscribers(self._state)

    def __del__(self) -> None:
        # gRPC's own channels close when they are dropped.
        service = getattr(self, "_service", None)
        if service is not None and not self._is_closed:
            drop(self._key, service)

    def __enter__(self) -> Channel:
        if not self._is_closed:  # Calls say so, as with gRPC's own.
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Service:
        """Begin to look for backends, unless that was done; return what is shared with others."""
        service = self._service
        if service is None or self._is_closed:
            with self._lock:
                if self._is_closed:
                    raise ValueError(_CLOSED)
                if self._service is None:
                    self._service = share(self._key, self._make)
                service = self._service
        return service

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        return self.start().snapshot()

    def close(self) -> None:
        """Cancel the calls that have not ended, and let go; a second time does nothing.

        A call that a thread waits for ends when no other channel shares its connections.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._subscribers.clear()
        if self._service is not None:
            with self._service.lock:
                calls = list(self._calls)
            for call in calls:
                call.cancel()
            release(self._key, self._service)

    def subscribe(
        self,
        callback: Callable[[grpc.ChannelConnectivity], None],
        try_to_connect: bool | None = False,
    ) -> None:
        """Tell `callback` about connectivity: READY as soon as one backend can be sent to."""
        if self._is_closed:
            return  # As with gRPC's own: nothing will change.
        service = self.start()
        if try_to_connect:
            service.background.soon(service.wake_up)
        self._subscribers.add(callback, service.background)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Tell `callback` no more."""
        self._subscribers.remove(callback)

    def _state(self) -> grpc.ChannelConnectivity:
        service = self._service
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if service is None:
            return grpc.ChannelConnectivity.IDLE
        return service.connectivity()

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
        with self.start().lock:
            self._calls.add(call)

    def call_ended(self, call: AnyCall) -> None:
        """Forget a call."""
        service = self._service
        if service is not None:
            with service.lock:
                self._calls.discard(call)


def _begin_afresh() -> None:
    for known in list(_channels):
        known.begin_afresh()


# Each child has connections of its own: the same channel works there, as gRPC's own does.
forked(_begin_afresh)
