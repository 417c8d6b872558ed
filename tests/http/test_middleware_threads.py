"""Applications whose work is done in threads: the façade belongs to the loop's all the same."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import httpx
from fastapi import FastAPI

import evenly
from evenly.core.request import Outcome
from evenly.http.server.middleware import Middleware
from tests.http.asgi_backend import SOON, Backend, backend, respond
from tests.runtime.threads import threads_that_call

VERBS = ("admit", "finish", "pass_on", "report", "snapshot", "record_signal")
REQUESTS = 200


async def ask_often(made: Backend, path: str) -> None:
    # All at once on a busy machine: httpx's 5 s may not be enough.
    url = f"http://127.0.0.1:{made.port}"
    async with httpx.AsyncClient(base_url=url, timeout=SOON) as client:
        answers = await asyncio.gather(*(client.get(path) for _ in range(REQUESTS)))
    assert Counter(answer.status_code for answer in answers) == {200: REQUESTS}
    assert Counter(await made.ended(REQUESTS)) == {Outcome.OK: REQUESTS}


async def test_endpoints_in_threads_may_ask_and_record_what_they_like() -> None:
    api = FastAPI()
    asked_on: set[int] = set()
    guards: list[Middleware] = []

    @api.get("/")
    def endpoint() -> str:
        runtime = guards[0].runtime
        asked_on.add(threading.get_ident())
        runtime.record_signal("memory", 0.1)
        assert runtime.snapshot().task.active >= 1
        assert not runtime.is_lame_duck
        return "cheap" if evenly.should_degrade() else "dear"

    async with backend(api) as made:
        guards.append(made.app)
        called_on = threads_that_call(made.runtime, *VERBS)
        await ask_often(made, "/")

    assert called_on == {threading.get_ident()}
    assert asked_on
    assert not asked_on & called_on


async def test_a_thread_may_send() -> None:
    async def app(scope: Any, _: Any, send: Any) -> None:
        assert scope["type"] == "http"
        loop = asyncio.get_running_loop()

        def send_here(message: Any) -> asyncio.Future[None]:
            # `send` is called in this thread, and awaited on the loop.
            return asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(send(message), loop), loop=loop
            )

        async def send_there(message: Any) -> None:
            await (await asyncio.to_thread(send_here, message))

        await respond(send_there, b"hello")

    async with backend(app) as made:
        called_on = threads_that_call(made.runtime, *VERBS)
        await ask_often(made, "/")

    assert called_on == {threading.get_ident()}
