"""The serving side: a port, its connections, and a life from the start to a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, final

from evenly.core.observer import NO_OBSERVER, Observer
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.lifecycle import Interruptions, WarmUp, live, run_warm_up, signals_to
from evenly.runtime.metering import Metering
from examples.lines.peer import Peer
from examples.lines.wire import LINE_MAX_BYTES

__all__ = ["Backend", "Handler", "serve"]

Handler = Callable[[Any], Coroutine[Any, Any, object]]
"""What does the work: it gets what the client said, and returns what JSON can say."""

_FLUSH_SECONDS = 1.0


@final
class Backend:
    """Serve a handler at a port; `serve` gives it a life from its start to its clean end."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: BackendConfig | None = None,
        observer: Observer = NO_OBSERVER,
        warm_up: WarmUp | None = None,
        on_listening: Callable[[str], None] = lambda _address: None,
    ) -> None:
        self.runtime = BackendRuntime(config, observer=observer)
        self.host = host
        self.port = port
        self.warming_up = warm_up
        self.on_listening = on_listening
        self.handler = handler
        self.metering = Metering(
            self.runtime.measured,
            self.runtime.charged,
            is_always_on=self.runtime.has_quotas,
            rng=self.runtime.rng,
        )
        self._listener: asyncio.Server | None = None
        self._peers: set[Peer] = set()
        self.runtime.on_state(self._tell)

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        return f"{self.host}:{self.port}"

    # The steps of `evenly.runtime.lifecycle.Life`, in their order.

    @property
    def active(self) -> int:
        """Requests that are under way."""
        return self.runtime.active

    async def start(self) -> None:
        """Listen, as a lame duck."""
        self.runtime.start(asyncio.get_running_loop())
        self._listener = await asyncio.start_server(
            self._accept, self.host, self.port, limit=LINE_MAX_BYTES
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self.runtime.bind_probe(self.host, self.port)
        self.on_listening(self.address)

    async def warm_up(self) -> None:
        """Get ready."""
        await run_warm_up(self.warming_up)

    def announce_healthy(self) -> None:
        """Ask clients to send."""
        self.runtime.announce_healthy()

    async def stopped(self) -> None:
        """Wait: nobody but `live` stops it."""
        await asyncio.Event().wait()

    def enter_lame_duck(self) -> None:
        """Ask clients to send elsewhere."""
        self.runtime.enter_lame_duck()

    async def drained(self) -> None:
        """Return when nobody sends any more, or time is up."""
        await self.runtime.drained()

    async def stop(self, grace: float | None) -> None:
        """Stop, and give what is left so many seconds; `None` is at once."""
        if self._listener is not None:
            self._listener.close()
        tasks = [task for peer in self._peers for task in peer.serving.values()]
        if tasks and grace is not None:
            await asyncio.wait(tasks, timeout=grace)
        peers = list(self._peers)
        for peer in peers:
            peer.hang_up()
        if peers:  # Until what was written has gone out, but no longer than that.
            await asyncio.wait([peer.task for peer in peers], timeout=_FLUSH_SECONDS)
        for peer in peers:
            peer.hang_up(at_once=True)
        await asyncio.gather(*(peer.task for peer in peers))

    def close(self) -> None:
        """Leave nothing behind."""
        self.runtime.stop()

    # Connections.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = Peer(self, writer, task)
        self._peers.add(peer)
        try:
            await peer.serve(reader)
        except OSError:
            pass  # The client has gone while it was written to.
        finally:
            await peer.close()
            self._peers.discard(peer)

    def _tell(self, _is_lame_duck: bool) -> None:
        """Tell every client at once that the state has changed."""
        for peer in self._peers:
            peer.say({})


async def serve(backend: Backend, *, grace_seconds: float = 5.0) -> None:
    """Serve until SIGTERM or Ctrl-C: then lame duck, drain, and leave."""
    interruptions: Interruptions = asyncio.Queue()
    with signals_to(interruptions):
        await live(backend, interruptions, grace_seconds=grace_seconds)
