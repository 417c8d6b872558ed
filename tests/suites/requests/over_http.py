"""`evenly.http.Session`, httpx with our transport, and backends of a few lines of HTTP/1.1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx

import evenly
from evenly.core.exchange import Requests
from evenly.http.client.errors import ConnectionLost, Timeout
from evenly.http.client.httpx_transport import Transport
from evenly.http.client.session import Session
from evenly.wire.metadata import REJECT_KEY, parse_reject
from tests.http.raw_backend import (
    DONT_RETRY,
    LOAD,
    OVERLOADED,
    QUOTA,
    Arrival,
    RawBackend,
    reply,
)
from tests.suites.requests.script import Act, Script, What, what_of, what_of_rejection
from tests.suites.requests.world import PATIENCE_SECONDS, LoopWorld, Sent, SentTask, Setup

_ANSWERS = {
    Act.OK: reply(200, b"ok", LOAD),
    Act.ERROR: reply(500, b"error", LOAD),
    Act.OVERLOADED: reply(503, b"refused", OVERLOADED),
    Act.DONT_RETRY: reply(503, b"refused", DONT_RETRY),
    Act.OUT_OF_QUOTA: reply(429, b"refused", QUOTA),
}


class Backend(RawBackend):
    """One that does what the script says."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._act)
        self._script = script
        self._dying: asyncio.Task[None] | None = None

    async def _act(self, arrival: Arrival) -> bytes | None:
        act = self._script.arrive(self.address, arrival.target.strip("/"))
        if act is Act.HOLD:
            act = await self._script.held()
        if act is not Act.DIE:
            return _ANSWERS[act]
        self._dying = asyncio.create_task(self.stop())
        await asyncio.Event().wait()  # It is cancelled.
        return None


class World(LoopWorld):
    """A session."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._fillers: list[socket.socket] = []

    def new_backend(self) -> Backend:
        return Backend(self.script)

    async def new_mute(self) -> str:
        """Neither accept nor refuse: HTTP has no greeting, so the queue of the kernel is full."""
        listener = socket.socket()
        self._fillers.append(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = socket.socket()
            self._fillers.append(filler)
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def open(self) -> None:
        config = self.setup.config()
        self._session = Session(self.listed, config=config, observer=self.counts)
        await self._session.__aenter__()
        self._requests = self._session.service.runtime.requests

    async def shut(self) -> None:
        await self._session.close()
        self._close_fillers()

    def _close_fillers(self) -> None:
        for filler in self._fillers:
            filler.close()

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
        assert not is_patient
        return SentTask(asyncio.create_task(self._send(name, is_idempotent, seconds, is_stream)))

    async def _send(
        self, name: str, is_idempotent: bool, seconds: float | None, is_stream: bool
    ) -> What:
        try:
            with evenly.request_context(deadline_seconds=seconds):
                response = await self._session.post(
                    f"/{name}",
                    data=_once() if is_stream else b"x",
                    timeout_seconds=None,
                    idempotent=is_idempotent,
                )
        except evenly.RejectedError as error:
            return what_of_rejection(error, str(error))
        except ConnectionLost:
            return What.LOST
        except Timeout:
            return What.TIMEOUT
        return What.OK if response.status == 200 else What.ERROR


class HttpxWorld(World):
    """The same through httpx, to which a refusal by a backend is a response like any other."""

    async def open(self) -> None:
        self._transport = Transport(self.listed, config=self.setup.config(), observer=self.counts)
        self._requests = self._transport.service.runtime.requests
        self._httpx = httpx.AsyncClient(
            transport=self._transport, base_url="http://test", timeout=PATIENCE_SECONDS
        )

    async def shut(self) -> None:
        await self._httpx.aclose()
        self._close_fillers()

    async def _send(
        self, name: str, is_idempotent: bool, seconds: float | None, is_stream: bool
    ) -> What:
        try:
            with evenly.request_context(deadline_seconds=seconds):
                response = await self._httpx.post(
                    f"/{name}",
                    content=_once() if is_stream else b"x",
                    extensions={"evenly_idempotent": is_idempotent},
                )
        except evenly.RejectedError as error:
            return what_of_rejection(error, str(error))
        except httpx.TimeoutException:
            return What.TIMEOUT
        except httpx.ReadError:
            return What.LOST
        refused = parse_reject(response.headers.get(REJECT_KEY))
        if refused is not None:
            return what_of(refused)
        return What.OK if response.status_code == 200 else What.ERROR


async def _once() -> AsyncIterator[bytes]:
    yield b"x"
