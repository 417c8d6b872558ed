"""Run uvicorn under `evenly.runtime.lifecycle`: it listens on while the backend is a lame duck.

uvicorn by itself closes its listener at the first signal, and whoever has not heard of that is
refused.  Here it hears of signals last, when nobody sends any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import inspect
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

try:
    import uvicorn
except ImportError as error:
    raise ImportError("serving HTTP needs uvicorn: pip install uvicorn", name=error.name) from error

from evenly.core.backend_task import BackendTaskConfig
from evenly.errors import UsageError
from evenly.http.serve.connection_limits import ConnectionLimits
from evenly.http.serve.listening import Listening
from evenly.http.serve.loading import StartError, describe, load, made_by
from evenly.http.serve.room import Room
from evenly.http.serve.server_connection import ServerConnection
from evenly.http.server.asgi import App, Message, Receive, Scope, Send
from evenly.http.server.middleware import Middleware, backend_runtime
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.lifecycle import WarmUp, run_warm_up

__all__ = ["ServeOptions", "UvicornServer", "uvicorn_config"]

_AT_ONCE_SECONDS: Final = 1.0
_TICKS_PER_SECOND: Final = 10  # uvicorn's
# With none at all uvicorn says that it cancels requests, also where there are none.
_LEAST_GRACE_SECONDS: Final = 0.05

# Ours are other names for these, or they make no sense here.
_TAKEN: Final = {
    "fd": "host, port or uds",
    "timeout_graceful_shutdown": "grace_seconds",
    "reload": "another tool: what reloads drops its connections",
    "callback_notify": "warm_up",
}
_DEFAULTS: Final[Mapping[str, object]] = {
    # Others' proxies keep an idle connection for up to 300 s; our clients for what is said below.
    # Who closes first must be the client: else a request can meet a connection that just closed.
    "timeout_keep_alive": 310,
    "interface": "asgi3",
}


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Say what is served and how; a worker gets it from its parent."""

    app: App | str
    factory: bool = False
    config: BackendConfig | None = None
    warm_up: WarmUp | str | None = None
    grace_seconds: float = 5.0
    limits: ConnectionLimits | None = None
    uvicorn: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def guard(self) -> Middleware:
        """Return the application as a backend; one that is one already stays as it is."""
        app: Any = load(self.app) if isinstance(self.app, str) else self.app
        if self.factory:
            app = made_by(app, self.app)
        self._check(app.app if isinstance(app, Middleware) else app)
        if not isinstance(app, Middleware):
            return Middleware(app, runtime=backend_runtime(self.config))
        if self.config is not None:
            raise UsageError(
                "the application is an evenly.http.Middleware already, with a config of its own: "
                "give it there, or give the application without the middleware"
            )
        return app

    def _check(self, app: object) -> None:
        if inspect.iscoroutine(app):
            app.close()  # Of a factory that is asynchronous; nobody will await it.
        if not callable(app):
            raise StartError(f"{self.app!r} is no ASGI application but {type(app).__name__}")
        if not _takes_asgi(app):
            raise StartError(
                f"{self.app!r} takes no (scope, receive, send): is it a function that makes the "
                "application (--factory, factory=True), or a WSGI one?"
            )

    def warm_up_function(self) -> WarmUp | None:
        """Return what is run before clients are asked to send."""
        found: Any = load(self.warm_up) if isinstance(self.warm_up, str) else self.warm_up
        if found is not None and not callable(found):
            raise StartError(f"warm_up {self.warm_up!r} is no function")
        warm_up: WarmUp | None = found
        return warm_up


def _takes_asgi(app: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(app)
    except (TypeError, ValueError):  # Written in C, say.
        return True
    try:
        signature.bind({}, None, None)
    except TypeError:
        return False
    return True


def uvicorn_config(
    app: App | str, options: Mapping[str, Any], limits: ConnectionLimits | None = None
) -> uvicorn.Config:
    """Return uvicorn's own configuration, with our defaults; refuse what is ours to say.

    It sets up logging, too.  The application's name is not looked up.
    """
    for name, instead in _TAKEN.items():
        if name in options:
            raise UsageError(f"{name} cannot be given to evenly's serve: use {instead}")
    try:
        used: dict[str, Any] = {**_DEFAULTS, **options}
        used["http"] = _protocol(used.get("http", "auto"), limits)
        used["headers"] = headers = list(used.get("headers") or ())
        if not any(name.lower() == "keep-alive" for name, _ in headers):
            # So that clients know for how long they can use an idle connection again.
            headers.append(("Keep-Alive", f"timeout={used['timeout_keep_alive']}"))
        config = uvicorn.Config(app, **used)
        if not isinstance(app, str):
            config.load()
    except TypeError as error:  # An option that uvicorn does not know.
        raise UsageError(_unknown_option(str(error), options)) from error
    except (OSError, ValueError, ImportError) as error:  # A certificate that is none, ...
        raise StartError(f"uvicorn cannot be configured: {error}") from error
    return config


def _protocol(chosen: object, limits: ConnectionLimits | None) -> object:
    if chosen == "auto":
        return ServerConnection.within(ConnectionLimits() if limits is None else limits)
    if limits is not None:
        raise UsageError(f"limits are for evenly's own connections: leave out http={chosen!r}")
    return chosen


def _unknown_option(text: str, options: Mapping[str, Any]) -> str:
    """Return uvicorn's words as `serve`'s own, and where an option is that is known elsewhere."""
    text = f"serve() {text.removeprefix('Config.__init__() ')}"
    for field in dataclasses.fields(BackendTaskConfig):
        if field.name in options and f"'{field.name}'" in text:
            text += f"; {field.name} is in config.task"
    return text


class _Uvicorn(uvicorn.Server):
    """Be uvicorn's server, with its signals and its exits taken out."""

    def __init__(self, config: uvicorn.Config, name: str) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.room: Room | None = getattr(config.http_protocol_class, "room", None)
        self._name = name

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the lifecycle."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say when that is done."""
        try:
            await super().startup(sockets)
            # Two may have bound one address before either listened.  uvloop does not say so.
            if any(sock.fileno() < 0 for sock in sockets or ()):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        except SystemExit:  # In a task it would end the loop.
            raise StartError("the application failed to start: see what it logged") from None
        except OSError as error:
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            text = error.strerror or error
            raise StartError(f"cannot listen on {self._name}: {text}") from error
        self.listening.set()

    async def on_tick(self, counter: int) -> bool:
        """Do what uvicorn does each tenth of a second; each second, look at the descriptors."""
        if self.room is not None and counter % _TICKS_PER_SECOND == 0:
            self.room.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and wait for requests that were cancelled to have ended."""
        await super().shutdown(sockets)
        self.cut_off()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=_AT_ONCE_SECONDS)

    def cut_off(self) -> None:
        """End what is under way."""
        for task in tuple(self.server_state.tasks):
            task.cancel()
        for connection in tuple(self.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


class _WarmFirst:
    """Hold an application's start back until the warm-up is done, so that it accepts nothing cold.

    For a worker that takes the place of another: the backend is healthy, and its clients send.
    """

    def __init__(self, app: App, warm_up: Callable[[], Any]) -> None:
        self._app = app
        self._warm_up = warm_up
        self.error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def warm_then_send(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self._warm_up()
                except Exception as error:  # noqa: BLE001 -- it is raised by `UvicornServer`
                    self.error = error
                    message = {"type": "lifespan.startup.failed", "message": repr(error)}
            await send(message)

        is_lifespan = scope["type"] == "lifespan"
        await self._app(scope, receive, warm_then_send if is_lifespan else send)


class UvicornServer:
    """Do with uvicorn, in this process, what `evenly.runtime.lifecycle` asks for."""

    def __init__(
        self,
        options: ServeOptions,
        listening: Listening,
        *,
        on_listening: Callable[[str], None] | None = None,
        is_warm_first: bool = False,
    ) -> None:
        self._guard = options.guard()
        self._guard.starts_as_lame_duck = True
        self._guard.needs_lifespan = options.uvicorn.get("lifespan") == "on"
        self._warm_up_name = options.warm_up if isinstance(options.warm_up, str) else None
        self._warm_up = options.warm_up_function()
        self._listening = listening
        self._on_listening = on_listening
        self._first: _WarmFirst | None = None
        app: App = self._guard
        if is_warm_first:
            app = self._first = _WarmFirst(app, self._warmed_up)
        self._server = _Uvicorn(
            uvicorn_config(app, options.uvicorn, options.limits), listening.name
        )
        listening.look_at(self._server.room)
        self._serving: asyncio.Task[None] | None = None

    @property
    def runtime(self) -> BackendRuntime:
        """What drives the backend's decisions."""
        return self._guard.runtime

    @property
    def active(self) -> int:
        """Requests that are under way."""
        return self.runtime.active

    async def start(self) -> None:
        """Begin to start: the application's own start may take long."""
        self._guard.start()
        self._bind_probes()
        self._serving = asyncio.ensure_future(self._serve())

    async def warm_up(self) -> None:
        """Wait until uvicorn listens, and get ready."""
        await self._until_listening()
        config = self._server.config
        self._listens(self._listening.url(is_tls=config.is_ssl))
        if self._first is None:
            await self._warmed_up()

    def announce_healthy(self) -> None:
        """Ask clients to send."""
        self._guard.announce_healthy()

    async def stopped(self) -> None:
        """Return when uvicorn has stopped by itself, as after `limit_max_requests`."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere."""
        self.runtime.enter_lame_duck()

    async def drained(self) -> None:
        """Return when nobody sends any more, or time is up."""
        await self.runtime.drained()

    async def stop(self, grace: float | None) -> None:
        """Let uvicorn stop."""
        serving = self._serving
        if serving is None or serving.done():
            return
        # uvicorn waits with asyncio, which takes fractions too.
        least = max(grace or 0.0, _LEAST_GRACE_SECONDS)
        self._server.config.timeout_graceful_shutdown = least  # type: ignore[assignment]
        self._server.should_exit = True
        if grace is None:
            self._server.cut_off()
            # The application may say good-bye, but not for long.
            await asyncio.wait({serving}, timeout=_AT_ONCE_SECONDS)
            serving.cancel()
        await asyncio.wait({serving})

    def close(self) -> None:
        """Leave nothing behind."""
        self._listening.close()
        self._guard.stop()
        self.runtime.stop()  # It may be another's than the middleware's.

    def _bind_probes(self) -> None:
        for host, port in self._listening.addresses():
            self.runtime.bind_probe(host, port)

    def _listens(self, url: str) -> None:
        if self._on_listening is not None:
            self._on_listening(url)

    async def _warmed_up(self) -> None:
        try:
            await run_warm_up(self._warm_up)
        except (Exception, SystemExit) as error:
            if self._warm_up_name is None:
                raise  # Whoever gave the function knows what it raises.
            text = f"warm_up {self._warm_up_name!r} failed: {describe(error)}"
            raise StartError(text) from error

    async def _serve(self) -> None:
        if self._first is not None and self._server.config.lifespan == "off":
            await self._warmed_up()
        await self._server.serve(sockets=[*self._listening.sockets])

    async def _until_listening(self) -> None:
        assert self._serving is not None  # noqa: S101 -- it has been started
        is_listening = asyncio.ensure_future(self._server.listening.wait())
        try:
            await asyncio.wait({is_listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_listening.cancel()
        if self._serving.done():
            if self._first is not None and self._first.error is not None:
                self._serving.exception()  # It says less.
                raise self._first.error
            self._serving.result()
            raise StartError("the server stopped before it listened")
