"""What keeps an application from being served, and what is said of it."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop

from evenly.core.backend_task import BackendTaskConfig
from evenly.http.serve.listening import bind
from evenly.http.serve.loading import StartError
from evenly.http.serve.serve import serve
from evenly.http.server.asgi import Receive, Scope, Send
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig
from tests.http.serve_app import app, needs_a_request
from tests.http.serve_process import SOON, served

QUICK = BackendConfig(task=BackendTaskConfig(quiet_seconds=0.0))


async def start(application: Any, **options: Any) -> None:
    """Serve what should not be: not for ever, if it is."""
    await asyncio.wait_for(serve(application, **{"port": 0, "log_config": None, **options}), SOON)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_of_two_that_bound_one_address_the_later_says_so(loop_factory: Any) -> None:
    told: list[str] = []
    first = bind("127.0.0.1", 0)

    async def starts_later(scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "lifespan":
            told.append((await receive())["type"])
            if told[-1] == "lifespan.startup":
                first.sockets[0].listen()
            await send({"type": f"{told[-1]}.complete"})
            if told[-1] == "lifespan.shutdown":
                return

    port = first.sockets[0].getsockname()[1]
    taken = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    try:
        with (
            asyncio.Runner(loop_factory=loop_factory) as runner,
            pytest.raises(StartError, match=taken),
        ):
            runner.run(start(starts_later, port=port, config=QUICK))
    finally:
        first.close()
    assert told == ["lifespan.startup", "lifespan.shutdown"]


async def test_the_path_of_one_that_lives_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = bind("", 0, str(path))
    first.sockets[0].listen(0)
    try:
        for _ in range(3):  # More than the queue holds: it lives nevertheless.
            with pytest.raises(StartError, match=f"cannot listen on {path}: Address already in"):
                bind("", 0, str(path))
        with socket.socket(socket.AF_UNIX) as sock:
            first.sockets[0].accept()[0].close()
            sock.connect(str(path))  # It is still the first one's.
    finally:
        first.close()
    assert not path.exists()


async def test_the_path_of_one_that_was_killed_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    bind("", 0, str(path)).close()
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_signal_while_the_application_is_imported_ends_it(
    number: int, loop: str, tmp_path: Path
) -> None:
    module = "tests.http.gated_app"
    arguments = ("--loop", loop)
    gate = tmp_path / "never"
    async with served(*arguments, module=module, gate=gate, is_ready=False) as backend:
        assert await backend.line() == "importing"
        backend.signal(number)

        assert await backend.status() != 0
        assert "Traceback" not in await backend.errors()


@pytest.mark.parametrize("name", ["make_app", "wsgi"])
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_what_takes_no_asgi_is_refused(name: str, is_guarded: bool) -> None:
    wrong: Any = getattr(__import__("tests.http.serve_app", fromlist=[name]), name)
    with pytest.raises(StartError, match=r"takes no \(scope, receive, send\)"):
        await start(Middleware(wrong) if is_guarded else wrong)


async def test_an_application_that_cannot_be_inspected_is_let() -> None:
    class Odd:
        __signature__ = "none"

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, send)

    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(Odd(), port=0, config=QUICK, on_listening=listening.set_result, log_config=None)
    )
    assert await asyncio.wait_for(listening, SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("make_nothing", r"cannot make the application: ValueError: no database \(.*, line \d+\)"),
        ("app", "cannot make the application: TypeError"),
        ("make_later", "is no ASGI application but coroutine"),
    ],
)
async def test_a_factory_that_makes_none_is_said_so(name: str, match: str) -> None:
    with pytest.raises(StartError, match=match):
        await start(f"tests.http.serve_app:{name}", factory=True)


async def test_who_insists_on_a_lifespan_gets_one_or_nothing() -> None:
    guard = Middleware(needs_a_request, config=QUICK)
    with pytest.raises(StartError, match="failed to start"):
        await start(guard, lifespan="on")
    assert not guard.runtime.is_started


async def test_an_application_without_a_lifespan_is_ready() -> None:
    async with served(app="needs_a_request") as backend:  # It waits for readiness.
        assert (await backend.get("/healthz")).status == 200


@pytest.mark.parametrize("times", [1, 2])
async def test_stopped_at_once_it_reports_no_error(times: int, tmp_path: Path) -> None:
    # Quiet for so long, or it is drained before the second signal.
    arguments = ("--warm-up", "tests.http.serve_app:wait_for_gate", "--quiet-seconds", "60")
    gate = tmp_path / "gate"
    if times == 2:
        gate.touch()
    async with served(*arguments, gate=gate, is_ready=False) as backend:
        await backend.listens()
        if times == 2:
            await backend.is_ready()
        backend.signal(signal.SIGTERM)
        if times == 2:
            await backend.signal_again(signal.SIGTERM)

        assert await backend.status() == 0
        assert "ERROR" not in await backend.errors()
