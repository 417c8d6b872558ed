"""An evenly channel of `grpc.aio`, and plain servers of gRPC's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
import grpc.aio

import evenly
import evenly.grpc
from evenly.core.exchange import Requests
from tests.suites.requests.script import Act, Script, What, what_of_rejection
from tests.suites.requests.world import LoopWorld, Sent, Setup

SERVICE = "test.Requests"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
IDEMPOTENT = tuple(f"/{SERVICE}/Again-{kind}" for kind in KINDS)
UPLOAD = f"/{SERVICE}/Upload"
# More than is kept of a stream of requests, to be sent again.
LONG = [bytes(65_536)] * 6
_ANSWERS = {
    Act.ERROR: (grpc.StatusCode.INTERNAL, ()),
    Act.OVERLOADED: (grpc.StatusCode.UNAVAILABLE, (("evenly-reject", "overloaded"),)),
    Act.DONT_RETRY: (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "dont-retry"),)),
    Act.OUT_OF_QUOTA: (grpc.StatusCode.RESOURCE_EXHAUSTED, (("evenly-reject", "quota"),)),
}
_LOCAL_CODES = {
    What.NO_BACKEND: grpc.StatusCode.UNAVAILABLE,
    What.NO_CONNECTION: grpc.StatusCode.UNAVAILABLE,
    What.AT_LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    What.THROTTLED: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Context: TypeAlias = grpc.aio.ServicerContext


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
        handlers = {
            f"{name}-{kind}": getattr(grpc, f"{kind}_rpc_method_handler")(getattr(self, f"_{kind}"))
            for name in ("Once", "Again")
            for kind in KINDS
        }
        handlers["Upload"] = grpc.stream_unary_rpc_method_handler(self._upload)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._port = server.add_insecure_port(self.address)
        await server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def _act(self, name: bytes, context: Context) -> bytes:
        act = self._script.arrive(self.address, name.decode())
        if act is Act.HOLD:
            act = await self._script.held()
        if act is Act.DIE:
            self._dying = asyncio.create_task(self.stop())
            await asyncio.Event().wait()  # It is cancelled.
        if act is not Act.OK:
            code, trailers = _ANSWERS[act]
            await context.abort(code, "told to", trailers)
        return b"ok"

    _unary_unary = _act

    async def _unary_stream(self, name: bytes, context: Context) -> AsyncIterator[bytes]:
        yield await self._act(name, context)

    async def _stream_unary(self, names: AsyncIterator[bytes], context: Context) -> bytes:
        return await self._act(await anext(names), context)

    async def _stream_stream(
        self, names: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        yield await self._act(await anext(names), context)

    async def _upload(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        for _ in LONG[:-1]:
            await anext(requests)
        return await self._act(b"", context)


def begun(channel: Any, kind: str, name: str, *, is_idempotent: bool) -> tuple[Any, Any]:
    """Return what to call for a request of this kind, and with what."""
    method = f"/{SERVICE}/{'Again' if is_idempotent else 'Once'}-{kind}"
    message = name.encode()
    return getattr(channel, kind)(method), (
        iter([message]) if kind.startswith("stream") else message
    )


def what_of_error(error: Any) -> What:
    """Return how a call ended that gRPC says has failed."""
    if isinstance(error, evenly.RejectedError):
        what = what_of_rejection(error, str(error.details()))  # type: ignore[attr-defined]
        if error.where == "local":
            assert error.code() is _LOCAL_CODES[what]  # type: ignore[attr-defined]
        return what
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
        call = self._call
        try:
            if isinstance(call, grpc.aio.UnaryUnaryCall | grpc.aio.StreamUnaryCall):
                await call
            else:
                assert [response async for response in call] == [b"ok"]
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

    def __init__(self, setup: Setup, *, kind: str = "unary_unary") -> None:
        super().__init__(setup)
        self._kind = kind

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
                call = self._channel.stream_unary(UPLOAD)(LONG)
            else:
                method, message = begun(
                    self._channel, self._kind, name, is_idempotent=is_idempotent
                )
                call = method(message, wait_for_ready=is_patient or None)
        return SentCall(call)
