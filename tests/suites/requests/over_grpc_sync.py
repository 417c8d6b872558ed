"""An evenly channel for threads: calls as futures, and calls that a thread of their own waits for.

The backends run on the loop of the test, as those of `grpc.aio` do.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

import evenly
import evenly.grpc.sync
from evenly.core.exchange import Requests
from tests.suites.requests.over_grpc import IDEMPOTENT, LONG, UPLOAD, Backend, begun, what_of_error
from tests.suites.requests.script import What
from tests.suites.requests.world import LoopWorld, Sent, Setup


class SentFuture:
    """A call whose end a future tells."""

    def __init__(self, call: Any) -> None:
        self._call = call

    @property
    def what(self) -> What | None:
        if not self._call.done():
            return None
        if self._call.cancelled():
            return What.CANCELLED
        error = self._call.exception()
        return What.OK if error is None else what_of_error(error)

    def cancel(self) -> None:
        self._call.cancel()


class World(LoopWorld):
    """grpc.sync, by futures."""

    def new_backend(self) -> Backend:
        return Backend(self.script)

    async def open(self) -> None:
        config = self.setup.config(idempotent_methods=IDEMPOTENT)
        self.channel = evenly.grpc.sync.channel(self.listed, config=config, observer=self.counts)
        service = await asyncio.to_thread(self.channel.start)
        self._requests = service.runtime.requests
        self._lock = service.lock

    async def shut(self) -> None:
        await asyncio.to_thread(self.channel.close)

    @property
    def requests(self) -> Requests:
        return self._requests

    @property
    def active(self) -> int:
        with self._lock:
            return super().active

    def send(
        self,
        name: str = "",
        *,
        is_idempotent: bool = False,
        is_patient: bool = False,
        seconds: float | None = None,
        is_stream: bool = False,
    ) -> Sent:
        with evenly.request_context(deadline_seconds=seconds):
            if is_stream:
                return SentFuture(self.channel.stream_unary(UPLOAD).future(iter(LONG)))
            method, message = begun(self.channel, "unary_unary", name, is_idempotent=is_idempotent)
            return SentFuture(method.future(message, wait_for_ready=is_patient or None))


class BlockingWorld(World):
    """grpc.sync, by calls that return when they have ended.  Nobody can cancel one."""

    def __init__(self, setup: Setup, *, kind: str = "unary_unary") -> None:
        super().__init__(setup)
        self._kind = kind
        self._threads = ThreadPoolExecutor(64)

    async def shut(self) -> None:
        await super().shut()
        await asyncio.to_thread(self._threads.shutdown)

    def send(
        self,
        name: str = "",
        *,
        is_idempotent: bool = False,
        is_patient: bool = False,
        seconds: float | None = None,
        is_stream: bool = False,
    ) -> Sent:
        def call() -> What:
            try:
                with evenly.request_context(deadline_seconds=seconds):
                    if is_stream:
                        self.channel.stream_unary(UPLOAD)(iter(LONG))
                    else:
                        self._call(name, is_idempotent, is_patient)
            except grpc.RpcError as error:
                return what_of_error(error)
            return What.OK

        return SentInThread(self._threads.submit(call))

    def _call(self, name: str, is_idempotent: bool, is_patient: bool) -> None:
        method, message = begun(self.channel, self._kind, name, is_idempotent=is_idempotent)
        answer = method(message, wait_for_ready=is_patient or None)
        assert (list(answer) if self._kind.endswith("stream") else [answer]) == [b"ok"]


class SentInThread:
    """A call that a thread waits for."""

    def __init__(self, future: Future[What]) -> None:
        self._future = future

    @property
    def what(self) -> What | None:
        return self._future.result() if self._future.done() else None

    def cancel(self) -> None:
        raise NotImplementedError
