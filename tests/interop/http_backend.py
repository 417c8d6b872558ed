"""A backend of ours on uvicorn, in this process, that other people's programs talk to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.utilization_config import Ramp, SignalConfig, UtilizationConfig
from evenly.core.request import Reason, Request
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig
from tests.suites.transports.processes import free_port

# A signal of the test's own, which nobody reads: at 1 SHEDDABLE is refused, at 4 everything.
_SIGNAL = "test"
_RAMPS = (Ramp(0.0, 1.0), Ramp(1.0, 2.0), Ramp(2.0, 3.0), Ramp(3.0, 4.0))
BY_HAND = BackendConfig(
    task=BackendTaskConfig(
        utilization=UtilizationConfig(
            signals={_SIGNAL: SignalConfig(ramps=_RAMPS, expiry_seconds=3600.0)}
        )
    )
)


class _Refusals(Observer):
    def __init__(self) -> None:
        self.reasons: Counter[Reason] = Counter()

    def request_rejected(self, request: Request, reason: Reason) -> None:
        self.reasons[reason] += 1


class Backend:
    """Count what was served, and what was refused and why."""

    def __init__(self, config: BackendConfig | None = None) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.served = 0
        self._refusals = _Refusals()
        self.middleware = Middleware(self._app, config=config, observer=self._refusals)

    @property
    def refused(self) -> Counter[Reason]:
        return self._refusals.reasons

    def press(self, level: float) -> None:
        """Set the signal."""
        runtime = self.middleware.runtime
        with runtime.lock:
            runtime.task.record_signal(_SIGNAL, level)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            assert message["type"] == "lifespan.shutdown"
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.served += 1
        headers = [(b"content-length", b"2"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def running(*backends: Backend) -> AsyncIterator[None]:
    """Serve, without uvicorn's handling of signals: they are pytest's."""
    servers = [
        uvicorn.Server(
            uvicorn.Config(
                backend.middleware,
                port=backend.port,
                lifespan="on",
                log_level="warning",
                access_log=False,
            )
        )
        for backend in backends
    ]
    serving = [asyncio.create_task(server._serve()) for server in servers]
    try:
        async with asyncio.timeout(30.0):
            while not all(server.started for server in servers):
                await asyncio.sleep(0.01)
        yield
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.wait(serving, timeout=30.0)
