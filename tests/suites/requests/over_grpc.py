"""An evenly channel of `grpc.aio`, and plain servers of gRPC's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

import evenly
import evenly.grpc
from evenly.core.exchange import Requests
from tests.suites.requests.script import Act, Script, What, what_of_rejection
from tests.suites.requests.world import LoopWorld, Sent, Setup

SERVICE = "test.Requests"
ONCE, AGAIN, UPLOAD = (f"/{SERVICE}/{name}" for name in ("Once", "Again", "Upload"))
IDEMPOTENT = (AGAIN,)
# More than is kept of a stream of requests, to be sent again.
_LONG = [bytes(65_536)] * 6
_ANSWERS = {
    Act.ERROR: (grpc.StatusCode.INTERNAL, ()),
    Act.OVERLOADED: (grpc.StatusCode.UNAVAILABLE, (("evenly-reject", "overloaded"),)),
    Act.DONT_RETRY: (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "dont-retry"),)),
    Act.OUT_OF_QUOTA: (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "quota"),)),
}

Context = grpc.aio.ServicerContext


class Backend:
    """One that does what the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._port = 0
        self._server: Any = None
        self._dying: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        unary = grpc.unary_unary_rpc_method_handler(self._act)
        handlers = {
            "Once": unary,
            "Again": unary,
            "Upload": grpc.stream_unary_rpc_method_handler(self._read_and_act),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._port = server.add_insecure_port(self.address)
        await server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def _act(self, request: bytes, context: Context) -> bytes:
        act = self._script.arrive(self.address, request.decode())
        if act is Act.HOLD:
            act = await self._script.held()
        if act is Act.DIE:
            self._dying = asyncio.create_task(self.stop())
            await asyncio.Event().wait()  # It is cancelled.
        if act is not Act.OK:
            code, trailers = _ANSWERS[act]
            await context.abort(code, "told to", trailers)
        return b"ok"

    async def _read_and_act(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        for _ in _LONG[:-1]:
            await anext(requests)
        return await self._act(b"", context)


def what_of_error(error: Any) -> What:
    """Return how a call ended that gRPC says has failed."""
    if isinstance(error, evenly.RejectedError):
        return what_of_rejection(error, str(error.details()))  # type: ignore[attr-defined]
    return {
        grpc.StatusCode.INTERNAL: What.ERROR,
        grpc.StatusCode.DEADLINE_EXCEEDED: What.TIMEOUT,
        # Without a word from a backend, that is what gRPC says of a broken connection.
        grpc.StatusCode.UNAVAILABLE: What.LOST,
        grpc.StatusCode.CANCELLED: What.CANCELLED,
    }[error.code()]


class SentCall:
    """A call that somebody awaits."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._waiting = asyncio.ensure_future(self._wait())

    async def _wait(self) -> What:
        try:
            await self._call
        except grpc.aio.AioRpcError as error:
            return what_of_error(error)
        except asyncio.CancelledError:
            return What.CANCELLED
        return What.OK

    @property
    def what(self) -> What | None:
        return self._waiting.result() if self._waiting.done() else None

    def cancel(self) -> None:
        self._call.cancel()


class World(LoopWorld):
    """grpc.aio."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._sent: list[SentCall] = []

    def new_backend(self) -> Backend:
        return Backend(self.script)

    async def open(self) -> None:
        config = self.setup.config(idempotent_methods=IDEMPOTENT)
        self._channel = evenly.grpc.channel(self.listed, config=config, observer=self.counts)
        await self._channel.__aenter__()
        self._requests = self._channel.service.runtime.requests

    async def shut(self) -> None:
        await self._channel.close()

    @property
    def requests(self) -> Requests:
        return self._requests

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
                call = self._channel.stream_unary(UPLOAD)(_LONG)
            else:
                method = self._channel.unary_unary(AGAIN if is_idempotent else ONCE)
                call = method(name.encode(), wait_for_ready=is_patient or None)
        return SentCall(call)
