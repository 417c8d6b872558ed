"""One process from its start to its end, with real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evenly.core.backend_task import BackendTaskConfig
from evenly.errors import ConfigError, UsageError
from evenly.http.serve.listening import bind
from evenly.http.serve.loading import StartError
from evenly.http.serve.serve import loop_factory, serve
from evenly.http.server.asgi import Receive, Scope, Send
from evenly.http.server.middleware import Middleware
from evenly.runtime.backend_config import BackendConfig
from evenly.wire.datagram import Kind, parse_answer, question
from tests.http.serve_app import app
from tests.http.serve_process import (
    MOST_CALLERS,
    SOON,
    Caller,
    Load,
    is_refused,
    served,
    until,
)

QUICK = BackendConfig(task=BackendTaskConfig(quiet_seconds=0.0))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_at_a_signal_it_says_so_and_whoever_still_comes_is_served(
    number: int, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with served(gate=gate) as backend:
        under_way = [asyncio.ensure_future(backend.get("/?gate")) for _ in range(3)]
        await until(lambda: _is_active(backend.probe(), 3))
        backend.signal(number)
        await until(lambda: _is_lame_duck(backend.probe()))
        late = [
            asyncio.ensure_future(backend.get("/?0.1")) for _ in range(3)
        ]  # They had not heard.
        readiness = await backend.get("/readyz")
        gate.touch()

        answers = await asyncio.gather(*under_way, *late)
        assert [answer.status for answer in answers] == [200] * 6
        assert all(answer.load.lame_duck for answer in answers[3:])
        assert (readiness.status, readiness.load.lame_duck) == (503, True)
        assert await backend.status() == 0


async def _is_active(probing: Any, count: int) -> bool:
    return bool((await probing).active == count)


async def _is_lame_duck(probing: Any) -> bool:
    return bool((await probing).lame_duck)


async def test_sigterm_under_load_fails_no_request() -> None:
    async with served() as backend:
        load = Load(backend, callers=MOST_CALLERS)
        await until(lambda: load.answered >= 300)
        backend.signal(signal.SIGTERM)
        await load.ends()

        assert load.failures == []
        assert await backend.status() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_signal_that_comes_twice_cuts_no_request_off(workers: str, tmp_path: Path) -> None:
    # GNU timeout, and others, signal a process and then its group.
    gate = tmp_path / "gate"
    async with served("--workers", workers, gate=gate) as backend:
        call = asyncio.ensure_future(backend.get("/?gate"))
        await until(lambda: _is_active(backend.probe(), 1))
        backend.signal(signal.SIGTERM)
        await until(lambda: _is_lame_duck(backend.probe()))  # Else the system makes one of them.
        os.killpg(backend.pid, signal.SIGTERM)
        await asyncio.sleep(0.3)  # Whoever would cut it off has by now.
        gate.touch()

        assert (await call).status == 200
        assert await backend.status() == 0
        assert "second signal" not in await backend.errors()


async def test_a_second_signal_stops_it_at_once() -> None:
    async with served() as backend:
        call = asyncio.ensure_future(backend.get("/?3600"))
        await until(lambda: _is_active(backend.probe(), 1))
        backend.signal(signal.SIGTERM)
        await until(lambda: _is_lame_duck(backend.probe()))
        assert not call.done()
        await backend.signal_again(signal.SIGTERM)

        assert await backend.status() == 0
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        log = await backend.errors()
        assert log.count("second signal: stopping at once, 1 request is cut off") == 1


async def test_a_second_signal_cuts_the_grace_short() -> None:
    async with served("--drain-seconds", "0", "--grace-seconds", "3600") as backend:
        call = asyncio.ensure_future(backend.get("/?3600"))
        await until(lambda: _is_active(backend.probe(), 1))
        backend.signal(signal.SIGTERM)
        await until(lambda: is_refused(backend.port))  # Drained: it listens no more.
        assert not call.done()
        await backend.signal_again(signal.SIGTERM)

        assert await backend.status() == 0
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        log = await backend.errors()
        assert log.count("second signal: stopping at once, 1 request is cut off") == 1


async def test_what_outlasts_the_grace_is_cut_off() -> None:
    async with served("--drain-seconds", "0.1", "--grace-seconds", "0.1") as backend:
        call = asyncio.ensure_future(backend.get("/?3600"))
        await until(lambda: _is_active(backend.probe(), 1))
        backend.signal(signal.SIGTERM)

        assert await backend.status() == 0
        answers = await asyncio.gather(call, return_exceptions=True)
        assert not isinstance(answers[0], tuple) or answers[0].status == 500


@pytest.mark.parametrize("warm_up", ["wait_for_gate", "wait_for_gate_in_a_thread"])
async def test_while_it_warms_up_it_serves_as_a_lame_duck(warm_up: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    arguments = ("--warm-up", f"tests.http.serve_app:{warm_up}")
    async with served(*arguments, gate=gate, is_ready=False) as backend:
        await backend.listens()
        await until((tmp_path / f"warming-up-{backend.pid}").exists)
        assert (await backend.get("/readyz")).status == 503
        assert (await backend.get("/")).status == 200
        assert (await backend.probe()).lame_duck
        gate.touch()

        await backend.is_ready()
        assert not (await backend.probe()).lame_duck


@pytest.mark.parametrize("warm_up", ["wait_for_gate", "wait_for_gate_in_a_thread"])
async def test_a_signal_during_the_warm_up_leaves_at_once(warm_up: str, tmp_path: Path) -> None:
    arguments = ("--warm-up", f"tests.http.serve_app:{warm_up}")
    async with served(*arguments, gate=tmp_path / "never", is_ready=False) as backend:
        await backend.listens()
        await until((tmp_path / f"warming-up-{backend.pid}").exists)
        backend.signal(signal.SIGTERM)

        assert await backend.status() == 0


async def test_a_signal_while_the_application_starts_leaves_at_once() -> None:
    async with served(app="never_starts", is_ready=False) as backend:
        assert await backend.line() == "starting"
        backend.signal(signal.SIGTERM)

        assert await backend.status() == 0


async def test_until_the_application_has_started_clients_are_refused() -> None:
    # They go elsewhere; in a queue that nobody reads they would wait.
    listening = bind("127.0.0.1", 0)
    try:
        assert await is_refused(listening.sockets[0].getsockname()[1])
    finally:
        listening.close()


# In this process.


@asynccontextmanager
async def serving(application: Any = app, **options: Any) -> AsyncIterator[str]:
    """Serve until the end of the block, where a signal ends it."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(application, on_listening=listening.set_result, log_config=None, port=0, **options)
    )
    try:
        both: set[asyncio.Future[Any]] = {task, listening}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield await listening
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, SOON)
    finally:
        task.cancel()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_the_handlers_of_signals_are_given_back() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        async with serving(config=QUICK):
            assert signal.getsignal(signal.SIGTERM) is not mine

        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_cancelled_it_stops_serving() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    guard = Middleware(app)
    task = asyncio.ensure_future(
        serve(guard, on_listening=listening.set_result, log_config=None, port=0)
    )
    url = await asyncio.wait_for(listening, SOON)
    caller = Caller(port_of(url))
    call = asyncio.ensure_future(caller.get("/?3600"))
    await until(lambda: guard.runtime.active == 1)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert guard.runtime.active == 0
    assert not guard.runtime.is_started
    assert await is_refused(port_of(url))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await call
    await caller.close()


async def test_a_middleware_is_used_as_it_is() -> None:
    guard = Middleware(app, config=QUICK, ready_path="/here")
    async with serving(guard) as url:
        caller = Caller(port_of(url))
        assert (await caller.get("/here")).status == 200
        assert guard.runtime.is_started
        await caller.close()

    assert not guard.runtime.is_started


async def test_whoever_probed_hears_of_the_lame_duck_unasked() -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        async with serving(config=QUICK) as url:
            sock.connect(("127.0.0.1", port_of(url)))
            while True:
                await loop.sock_sendall(sock, question(5, None))
                heard = parse_answer(await asyncio.wait_for(loop.sock_recv(sock, 999), SOON), None)
                assert heard is not None
                if not heard[2].lame_duck:
                    break
        # Nobody asks any more; a notice that it was healthy may come first.
        while not (heard[0] is Kind.NOTICE and heard[2].lame_duck):
            heard = parse_answer(await asyncio.wait_for(loop.sock_recv(sock, 999), SOON), None)
            assert heard is not None


async def test_it_returns_when_uvicorn_has_served_enough() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(
            app,
            on_listening=listening.set_result,
            log_config=None,
            port=0,
            limit_max_requests=1,
        )
    )
    caller = Caller(port_of(await asyncio.wait_for(listening, SOON)))
    assert (await caller.get()).status == 200

    await asyncio.wait_for(task, SOON)
    await caller.close()


async def test_a_path_is_listened_on_and_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(config=QUICK, uds=str(path)) as url:
        assert url == f"unix:{path}"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    assert not path.exists()


async def test_a_path_that_is_another_ones_by_now_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old = bind("", 0, str(path))
    new = bind("", 0, str(path))
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()


async def test_a_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(StartError, match="cannot listen on"):
        bind("", 0, str(path))
    assert path.read_text() == "mine"


async def test_every_address_is_of_both_families() -> None:
    listening = bind("::", 0)
    try:
        for sock in listening.sockets:
            sock.listen()
        port = listening.sockets[0].getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        assert listening.url(is_tls=True) == f"https://[::]:{port}"
    finally:
        listening.close()


async def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            await serve(app, port=port, log_config=None)


async def test_a_host_that_is_none_is_said_so() -> None:
    with pytest.raises(StartError, match=r"cannot listen on nowhere\.invalid"):
        await serve(app, host="nowhere.invalid", log_config=None)


async def test_what_the_warm_up_raises_is_raised_when_all_has_stopped() -> None:
    guard = Middleware(app)

    async def warm_up() -> None:
        raise ValueError("no cache")

    with pytest.raises(ValueError, match="no cache"):
        await serve(guard, port=0, warm_up=warm_up, log_config=None)
    assert not guard.runtime.is_started


async def test_an_application_that_fails_to_start_is_said_so() -> None:
    with pytest.raises(StartError, match="failed to start"):
        await serve("tests.http.serve_app:fails_to_start", port=0, log_config=None)


async def test_a_lifespan_is_lived_to_its_end() -> None:
    seen: list[str] = []

    async def living(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                seen.append((await receive())["type"])
                await send({"type": f"lifespan.{kind}.complete"})

    async with serving(living, config=QUICK):
        assert seen == ["lifespan.startup"]
    assert seen == ["lifespan.startup", "lifespan.shutdown"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"grace_seconds": float("nan")}, ConfigError, "grace_seconds"),
        ({"port": 70_000}, ConfigError, "port"),
        ({"workers": 0}, ConfigError, "workers"),
        ({"workers": 2}, UsageError, "'main:app'"),
        ({"timeout_graceful_shutdown": 3}, UsageError, "use grace_seconds"),
        ({"reload": True}, UsageError, "reload"),
        (
            {"colour": "blue"},
            UsageError,
            r"^serve\(\) got an unexpected keyword argument 'colour'$",
        ),
        (
            {"drain_seconds": 4},
            UsageError,
            r"^serve\(\) got .* 'drain_seconds'; drain_seconds is in config\.task$",
        ),
        ({"ssl_certfile": "/nowhere"}, StartError, "ssl_certfile must be a file"),
        ({"ssl_certfile": __file__}, StartError, "cannot be configured"),
        ({"warm_up": "tests.http.serve_app:nothing"}, StartError, "no attribute 'nothing'"),
        ({"warm_up": "tests.http.serve_app:no_application"}, StartError, "no function"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
async def test_what_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        await serve(app, **{"port": 0, "log_config": None, **options})


async def test_a_middleware_has_a_config_of_its_own() -> None:
    with pytest.raises(UsageError, match="config of its own"):
        await serve(Middleware(app), port=0, config=QUICK, log_config=None)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("appy", "must be of the form module:attribute"),
        ("tests.http.nowhere:app", "No module named 'tests.http.nowhere'$"),
        ("tests.http.serve_app.py:app", r"; did you mean tests\.http\.serve_app:app\?$"),
        ("./tests/http/serve_app:app", r"; did you mean tests\.http\.serve_app:app\?$"),
        ("/srv/main.py:made.app", r"; did you mean main:made\.app\?$"),
        ("tests.http.serve_app:nothing", "has no attribute 'nothing'"),
        ("tests.http.serve_app:no_application", "is no ASGI application but int"),
    ],
)
async def test_an_application_that_cannot_be_found_is_said_so(name: str, match: str) -> None:
    with pytest.raises(StartError, match=match):
        await serve(name, port=0, log_config=None)


def test_the_loop_is_what_was_asked_for() -> None:
    assert loop_factory("asyncio") is None
    with pytest.raises(UsageError, match="loop must be"):
        loop_factory("trio")
