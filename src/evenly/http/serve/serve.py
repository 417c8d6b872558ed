"""Serve an ASGI application from its start to its clean end: warm-up, lame duck, drain.

The steps are those of `evenly.runtime.lifecycle`; uvicorn does the serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evenly.core import check
from evenly.errors import ConfigError, UsageError
from evenly.http.serve.connection_limits import ConnectionLimits
from evenly.http.serve.listening import bind
from evenly.http.serve.loading import StartError
from evenly.http.server.asgi import App
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.lifecycle import (
    Interruptions,
    Life,
    WarmUp,
    check_grace,
    live,
    restored_signals,
    signals_to,
)

__all__ = ["run", "serve"]

_MOST_WORKERS = 1_000


async def serve(
    app: App | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: str | None = None,
    config: BackendConfig | None = None,
    warm_up: WarmUp | str | None = None,
    grace_seconds: float = 5.0,
    workers: int = 1,
    factory: bool = False,
    limits: ConnectionLimits | None = None,
    ssl_certfile: str | os.PathLike[str] | None = None,
    ssl_keyfile: str | os.PathLike[str] | None = None,
    on_listening: Callable[[str], None] | None = None,
    **options: Any,  # noqa: ANN401 -- uvicorn's own
) -> None:
    """Serve `app` until SIGTERM or SIGINT, drain and stop.

    It listens as a lame duck as soon as the application's own start is complete, runs `warm_up`,
    and then asks clients to send.  At the first signal it becomes a lame duck again, goes on
    listening and serving until nobody sends any more (or `drain_seconds` of its config have
    passed), and gives what is left `grace_seconds`.  At a second signal, more than a second later,
    or at one during the warm-up, it stops at once.  What `warm_up` raises is raised when all has
    been stopped.

    `app` is an application, an `evenly.http.Middleware` around one, or its name, `"module:app"`,
    which several `workers` need; `factory` says that it has to be called first.  They are one
    backend, behind one address.  `on_listening` is told where, such as `http://127.0.0.1:8000`;
    port 0 takes a free one.  `limits` bound what strangers' connections cost.  Other options are
    those of `uvicorn.Config`.
    """
    check_grace(grace_seconds)
    check.count("port", port, 0, 65535)
    check.count("workers", workers, 1, _MOST_WORKERS)
    if not (limits is None or isinstance(limits, ConnectionLimits)):
        raise ConfigError(f"limits must be ConnectionLimits, not {limits!r:.100}")
    # Here, because a client needs no server: what does not serve need not have uvicorn.
    from evenly.http.serve.uvicorn_server import ServeOptions, UvicornServer  # noqa: PLC0415

    if workers > 1 and not isinstance(app, str):
        raise UsageError(
            f"workers={workers} need the application's name, such as 'main:app': each of them "
            "imports it"
        )
    for name, path in (("ssl_certfile", ssl_certfile), ("ssl_keyfile", ssl_keyfile)):
        if path is not None:
            if not Path(path).is_file():  # Python would not say which of them.
                raise StartError(f"{name} must be a file, not {path}")
            options[name] = os.fspath(path)
    chosen = ServeOptions(
        app=app,
        factory=factory,
        config=config,
        warm_up=warm_up,
        grace_seconds=grace_seconds,
        limits=limits,
        uvicorn=options,
    )
    signalled: Interruptions = asyncio.Queue()
    listening = bind(host, port, uds)
    try:
        life: Life
        if workers > 1:
            from evenly.http.serve.workers.parent import Parent  # noqa: PLC0415

            life = Parent(chosen, listening, workers, on_listening=on_listening)
        else:
            # It imports the application, for seconds perhaps: until then signals end the process.
            life = UvicornServer(chosen, listening, on_listening=on_listening)
        with signals_to(signalled):
            await live(life, signalled, grace_seconds=grace_seconds)
    finally:
        listening.close()


def run(app: App | str, **options: Any) -> None:  # noqa: ANN401 -- those of `serve`
    """Do what `serve` does in a loop of its own, with uvloop where it is installed.

    `loop="asyncio"` takes Python's own loop instead.
    """
    factory = loop_factory(options.get("loop", "auto"))
    with _interrupted_at_once(), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(app, **options))


@contextlib.contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C end what blocks the loop; asyncio's own handler would wait for the loop."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    with restored_signals():
        signal.signal(signal.SIGINT, _interrupt)  # asyncio leaves alone what is not Python's own.
        yield


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop that uvicorn would choose; `None` is Python's own."""
    if kind not in {"auto", "asyncio", "uvloop"}:
        raise UsageError(f"loop must be 'auto', 'asyncio' or 'uvloop', not {kind!r}")
    if kind == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 -- it may be missing
    except ImportError as error:
        if kind == "uvloop":
            text = "loop='uvloop' needs uvloop: pip install uvloop"
            raise ImportError(text, name="uvloop") from error
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made
