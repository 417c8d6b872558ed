"""gunicorn with uvicorn's workers in processes of its own, and the application that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evenly.http.server.asgi import Receive, Scope, Send
from evenly.http.server.middleware import Middleware
from tests.http import serve_app
from tests.http.serve_process import SOON, Caller, children_of, until

WORKERS = 3


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Do as `serve_app.app` does; `leave` makes this one worker a lame duck."""
    if scope.get("query_string") == b"leave":
        app.runtime.enter_lame_duck()
        scope = {**scope, "query_string": b""}
    await serve_app.app(scope, receive, send)


app = Middleware(_answer)


class Gunicorn:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def workers(self) -> set[int]:
        return children_of(self.process.pid)

    async def boots(self, pids: set[int]) -> dict[int, int]:
        """Return which boot each of these workers, and no other, reports."""
        found: dict[int, int] = {}

        async def has_all() -> bool:
            caller = Caller(self.port)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                answer = await asyncio.wait_for(caller.get(), SOON)
                found[int(answer.body)] = answer.load.boot
            await caller.close()
            return found.keys() >= pids

        await until(has_all)
        return {pid: found[pid] for pid in pids}


@asynccontextmanager
async def gunicorn(*arguments: str) -> AsyncIterator[Gunicorn]:
    """Run it until each of its workers has answered."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "gunicorn", "-k", "uvicorn.workers.UvicornWorker"),
        *("-w", str(WORKERS), "-b", "127.0.0.1:0", "--graceful-timeout", "5", *arguments),
        "tests.http.gunicorn_process:app",
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "EVENLY_TEST_GATE": "none"},
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        while b"Listening at: " not in (
            line := await asyncio.wait_for(process.stderr.readline(), SOON)
        ):
            assert line, "gunicorn ended"
        made = Gunicorn(process, int(line.partition(b"127.0.0.1:")[2].split()[0]))
        reader = asyncio.ensure_future(process.stderr.read())  # A full pipe would stop it.
        await until(lambda: len(made.workers()) == WORKERS)
        await made.boots(made.workers())
        yield made
        reader.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
