"""Serve `Work` over HTTP: with `evenly.http.serve`, and by uvicorn as it is."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Any

import uvicorn

from evenly.http.serve.serve import serve
from tests.suites.transports.work import ToldToFail, Work, say_ready

_OPTIONS: dict[str, Any] = {"lifespan": "off", "log_level": "warning", "access_log": False}
_TURNS = 10


class Backend:
    """Be an ASGI application at a port."""

    def __init__(self, work: Work, port: int, host: str) -> None:
        self._work = work
        self._port = port
        self._host = host

    async def serve(self) -> None:
        """Serve with evenly."""
        await serve(self._app, host=self._host, port=self._port, warm_up=say_ready, **_OPTIONS)

    async def serve_plain(self) -> None:
        """Serve as uvicorn does when told nothing but the address."""
        # Once it has stopped it raises the signal again; ignored, it leaves with 0 as ours does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server = uvicorn.Server(
            uvicorn.Config(self._app, port=self._port, interface="asgi3", **_OPTIONS)
        )
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        await say_ready()
        await serving

    async def close_port(self) -> None:
        """Close the port and its connections, without a word."""
        # `serve` hands its server to nobody, and there is only one in this process.
        (server,) = (found for found in gc.get_objects() if isinstance(found, uvicorn.Server))
        for listener in server.servers:
            listener.close()
        # uvicorn hears of a connection only some turns of the loop after it was accepted.
        for _ in range(_TURNS):
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await asyncio.sleep(0)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        status = 200
        try:
            await self._work.do()
        except ToldToFail as error:
            status, body = 500, str(error).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
