"""Serve `Work` over gRPC: with evenly, and as gRPC's documentation has it."""

from __future__ import annotations

import asyncio
import signal

import grpc
import grpc.aio

import evenly.grpc
from tests.suites.transports.work import ToldToFail, Work, say_ready


class Backend:
    """Be a gRPC server of one method."""

    def __init__(self, work: Work, port: int, host: str) -> None:
        self._work = work
        self._address = f"{host}:{port}"
        self._serving: grpc.aio.Server = None

    async def serve(self) -> None:
        """Serve with evenly."""
        server = evenly.grpc.server()
        # What closes the port must not announce a lame duck first, as ours would.
        self._open(server, server._inner)
        await evenly.grpc.serve(server, warm_up=say_ready)

    async def serve_plain(self) -> None:
        """Stop as gRPC's documentation has it: with a grace on SIGTERM."""
        server = grpc.aio.server()
        self._open(server, server)
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await server.start()
        await say_ready()
        await stopped.wait()
        await server.stop(5)

    async def close_port(self) -> None:
        """Close the port and its connections, without a word."""
        await self._serving.stop(None)

    def _open(self, server: grpc.aio.Server, serving: grpc.aio.Server) -> None:
        self._serving = serving
        method = grpc.unary_unary_rpc_method_handler(self._do)
        handlers = grpc.method_handlers_generic_handler("test.Work", {"Do": method})
        server.add_generic_rpc_handlers((handlers,))
        if server.add_insecure_port(self._address) == 0:
            raise SystemExit(f"cannot listen on {self._address}")

    async def _do(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            await self._work.do()
        except ToldToFail as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return request
