"""Applications for the tests of `evenly serve`, which find them by name.

`GATE`, a path in the environment, holds the warm-up back until there is a file, and requests that
ask for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from evenly.core.backend_task import BackendTaskConfig
from evenly.http.server.asgi import App, Receive, Scope, Send
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig

GATE = "EVENLY_TEST_GATE"
no_application = 7


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Rest for as long as the query says, or until there is a gate; answer with our process id."""
    assert scope["type"] == "http"
    if scope["query_string"] == b"gate":
        await wait_for_gate()
    elif scope["query_string"]:
        await asyncio.sleep(float(scope["query_string"]))
    body = str(os.getpid()).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def reads(scope: Scope, receive: Receive, send: Send) -> None:
    """Wait for the whole body, as most applications do that take one."""
    assert scope["type"] == "http"
    while (message := await receive())["type"] == "http.request":
        if not message.get("more_body"):
            break
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"read"})


async def blocks(scope: Scope, receive: Receive, send: Send) -> None:
    """Let the loop do nothing else."""
    assert scope["type"] == "http"
    time.sleep(3600.0)


def make_app() -> App:
    return app


def make_nothing() -> App:
    raise ValueError("no database")


async def make_later() -> App:
    return app


def wsgi(environ: object, start_response: object) -> list[bytes]:
    return []


async def needs_a_request(scope: Scope, receive: Receive, send: Send) -> None:
    """Take everything for a request, as many an application does that was made by hand."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"made by hand"})


guarded = Middleware(
    app, config=BackendConfig(task=BackendTaskConfig(quiet_seconds=0.2)), ready_path="/ready"
)


async def fails_to_start(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


async def never_starts(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    print("starting", flush=True)  # noqa: T201 -- the test waits for it
    await asyncio.sleep(3600.0)


async def dies(scope: Scope, receive: Receive, send: Send) -> None:
    """Be killed at the start, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def is_held() -> bool:
    gate = Path(os.environ[GATE])
    gate.with_name(f"warming-up-{os.getpid()}").touch()
    return not gate.exists()


async def wait_for_gate() -> None:
    while is_held():
        await asyncio.sleep(0.01)


def wait_for_gate_in_a_thread() -> None:
    while is_held():
        time.sleep(0.01)


async def no_cache() -> None:
    raise ValueError("no cache")
