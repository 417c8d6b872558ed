from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from evenly.errors import Overloaded
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend import BackendRuntime
from tests.http.asgi_backend import QUICK, backend, hello, respond, serving, until


class Lived:
    """An application with a lifespan, which notes what it gets."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.told: list[str] = []
        self.may_start = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await hello(scope, receive, send)
            return
        self.told.append((await receive())["type"])
        await self.may_start.wait()
        if self.fails:
            await send({"type": "lifespan.startup.failed", "message": "as asked"})
            return
        await send({"type": "lifespan.startup.complete"})
        self.told.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})


async def test_it_is_healthy_once_the_application_has_started_and_stops_with_it() -> None:
    app = Lived()
    guard = Middleware(app, config=QUICK)
    starting = asyncio.create_task(serve_once(guard))
    await until(lambda: app.told)

    assert (guard.runtime.is_started, guard.runtime.is_lame_duck) == (True, True)
    app.may_start.set()
    assert await starting == b"hello"
    assert app.told == ["lifespan.startup", "lifespan.shutdown"]
    assert (guard.runtime.is_started, guard.runtime.is_lame_duck) == (False, True)


async def serve_once(guard: Middleware) -> bytes:
    async with serving(guard) as port:
        assert not guard.runtime.is_lame_duck
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        response = await reader.read()
        writer.close()
        return response.partition(b"\r\n\r\n")[2]


async def test_an_application_that_fails_to_start_is_never_healthy() -> None:
    app = Lived(fails=True)
    app.may_start.set()
    guard = Middleware(app, config=QUICK)
    states: list[bool] = []
    guard.runtime.on_state(states.append)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await guard({"type": "lifespan"}, receive_startup, send)

    assert sent == ["lifespan.startup.failed"]
    assert False not in states
    assert not guard.runtime.is_started


@pytest.mark.parametrize("lifespan", ["auto", "on", "off"])
async def test_an_application_without_a_lifespan_works_too(lifespan: str) -> None:
    async with backend(hello, options={"lifespan": lifespan}) as made:
        assert (await made.get("/readyz")).status == 200
        assert (await made.get()).body == b"hello"
        assert made.runtime.is_started
        assert not made.runtime.is_lame_duck
    assert made.runtime.is_started is (lifespan == "off")  # Nobody said that it was over.
    made.app.stop()


async def test_whoever_warms_up_announces_it() -> None:
    guard = Middleware(hello, config=QUICK)
    guard.starts_as_lame_duck = True
    async with serving(guard):
        assert (guard.runtime.is_started, guard.runtime.is_lame_duck) == (True, True)
        guard.announce_healthy()
        assert not guard.runtime.is_lame_duck


async def test_an_application_can_be_run_again() -> None:
    guard = Middleware(hello, config=QUICK)
    for _ in range(2):
        assert await serve_once(guard) == b"hello"


@pytest.mark.parametrize("error", [None, RuntimeError("as asked"), Overloaded("as asked")])
async def test_a_request_from_before_a_restart_ends_where_it_began(
    error: Exception | None,
) -> None:
    may_end = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await may_end.wait()
        if error is not None and scope["path"] == "/slow":
            raise error
        await hello(scope, receive, send)

    guard = Middleware(app, config=QUICK)
    guard.start()
    slow = asyncio.create_task(call(guard, "/slow"))
    await asyncio.sleep(0)
    before = guard.runtime
    assert before.active == 1
    guard.stop()
    guard.start()
    may_end.set()
    await asyncio.wait([slow])
    await call(guard, "/quick")

    assert before is not guard.runtime
    assert (before.active, guard.runtime.active) == (0, 0)
    assert (before.task.finished, guard.runtime.task.finished) == (1, 1)
    assert guard._gate is guard.runtime.gate
    assert slow.exception() is (error if isinstance(error, RuntimeError) else None)
    guard.stop()


async def call(guard: Middleware, path: str) -> None:
    async def send(message: Any) -> None: ...

    scope = {"type": "http", "path": path, "headers": [], "method": "GET"}
    await guard(scope, receive_startup, send)


async def test_a_runtime_of_somebody_else_is_not_stopped() -> None:
    runtime = BackendRuntime(QUICK)
    guard = Middleware(hello, runtime=runtime)

    assert await serve_once(guard) == b"hello"
    assert guard.runtime is runtime
    assert runtime.is_started
    runtime.stop()


async def test_an_exception_of_the_applications_shutdown_goes_out() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        raise RuntimeError("as asked")

    told = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Any:
        return {"type": next(told)}

    async def send(message: Any) -> None: ...

    guard = Middleware(app)
    with pytest.raises(RuntimeError, match="as asked"):
        await guard({"type": "lifespan"}, receive, send)
    assert not guard.runtime.is_started


async def take_it_for_a_request(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await respond(send, b"hello")


async def return_early(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
    else:
        await hello(scope, receive, send)


async def raise_early(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        raise ValueError("as asked")
    await hello(scope, receive, send)


async def return_half_way(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
    else:
        await hello(scope, receive, send)


async def raise_half_way(scope: Any, receive: Any, send: Any) -> None:
    await return_half_way(scope, receive, send)
    if scope["type"] == "lifespan":
        raise ValueError("as asked")


@pytest.mark.parametrize("lifespan", ["auto", "on"])
@pytest.mark.parametrize(
    "app", [take_it_for_a_request, return_early, raise_early, return_half_way, raise_half_way]
)
async def test_an_application_that_does_half_of_a_lifespan_is_healthy(
    app: Any, lifespan: str
) -> None:
    async with backend(app, options={"lifespan": lifespan}) as made:
        assert (await made.get()).body == b"hello"
        assert (await made.get("/readyz")).status == 200
        assert made.runtime.is_started
        assert not made.runtime.is_lame_duck
    assert not made.runtime.is_started


@pytest.mark.parametrize(
    ("app", "level"), [(hello, "INFO"), (raise_early, "WARNING"), (raise_half_way, "ERROR")]
)
async def test_what_a_lifespan_raises_is_logged(
    app: Any, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "evenly.http")
    async with backend(app):
        pass
    (record,) = [record for record in caplog.records if record.name == "evenly.http"]
    assert record.levelname == level
    assert "Error" in record.getMessage()  # Which one it was.


async def ask(guard: Middleware) -> int:
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/")
        await asyncio.sleep(0.05)  # The loop is timed no more, and would be anew.
        return answer.status_code


def test_a_test_client_may_have_a_loop_for_each_request() -> None:
    timed: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        timed.append(guard.runtime.readings.is_timing)  # The loop, which has to be this one.
        await hello(scope, receive, send)

    guard = Middleware(app, config=QUICK)
    for _ in range(3):
        assert asyncio.run(ask(guard)) == 200
        assert guard.runtime.active == 0
        assert guard.runtime.snapshot().task.active == 0
        assert not guard.runtime.is_lame_duck
    assert timed == [True] * 3


def test_what_was_stopped_with_its_loop_begins_anew_on_the_next() -> None:
    guard = Middleware(hello, config=QUICK)
    assert asyncio.run(serve_once(guard)) == b"hello"
    assert guard.runtime.is_lame_duck

    assert asyncio.run(ask(guard)) == 200
    assert not guard.runtime.is_lame_duck


def test_the_loop_of_somebody_elses_runtime_may_be_closed() -> None:
    runtime = BackendRuntime(QUICK)
    guard = Middleware(hello, runtime=runtime)
    for _ in range(3):
        assert asyncio.run(ask(guard)) == 200
        assert guard.runtime is runtime
        assert runtime.active == 0


async def receive_startup() -> Any:
    return {"type": "lifespan.startup"}
