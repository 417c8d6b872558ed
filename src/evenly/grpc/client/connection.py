"""One gRPC channel to one backend, from the first try to connect until its last call has ended.

A `grpc.aio.Channel` reconnects by itself, with a back-off of its own.  Here the core decides when
to connect, so a channel is used for one connection: when that breaks or could not be had, the
channel is dropped, and the next connection has a new one, which costs 23 KB.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol, final

import grpc
import grpc.aio

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.grpc.common.connections import State
from evenly.grpc.common.health_client import CHECK, EVERYTHING, UNANSWERED, WATCH, is_serving
from evenly.grpc.common.orca_client import ORCA_STREAM, OrcaFollower
from evenly.grpc.common.question import Question, serialize
from evenly.runtime.client import ClientRuntime

__all__ = ["Connection", "Owner", "Parked"]

# A watch that ends is begun again after about so long, for as long as the connection stands.
_WATCH_AGAIN_SECONDS = 5.0
_Ready = grpc.ChannelConnectivity.READY
_HOW_ARE_YOU = Question(EVERYTHING)


class Owner(Protocol):
    """Be told what becomes of a connection."""

    runtime: ClientRuntime

    def connection_ended(self, connection: Connection, event: ConnectionEvent) -> None:
        """Learn that it was refused, or is lost."""

    def connection_opened(self, connection: Connection) -> None:
        """Learn that it stands."""

    def heard_serving(self, connection: Connection, *, is_serving: bool) -> None:
        """Learn what the backend's health service says."""


class Parked(Protocol):
    """Be an attempt that waits for its connection."""

    def connected(self, connection: Connection) -> None:
        """Go on: it stands, or is gone."""

    def waited(self) -> float | None:
        """Go elsewhere, if that can be had; else return until when to wait on."""


@final
class Connection:
    """Hold one channel to one backend."""

    def __init__(
        self,
        backend: Backend,
        channel: grpc.aio.Channel,
        owner: Owner,
        *,
        connect_seconds: float,
        check_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.backend = backend
        self.state = State.CONNECTING
        self.active = 0
        """Calls that have not ended."""
        self._channel = channel
        self.owner = owner
        self._connect_seconds = connect_seconds
        self._check_seconds = check_seconds
        self._loop = loop
        self._parked: list[Parked] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._orca: OrcaFollower | None = None
        self._run(self._follow())

    def __repr__(self) -> str:
        return f"<Connection {self.backend} {self.state.name} active={self.active}>"

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel, to make callables of."""
        return self._channel

    def is_ready(self) -> bool:
        """Return whether calls can be sent now.

        The channel is asked too: between the moment at which it notices that it is broken and the
        one at which we are told, a call would fail that could have gone elsewhere, or waited for
        the next connection.
        """
        if self.state is not State.READY:
            return False
        if self._channel.get_state() is _Ready:
            return True
        self._end(ConnectionEvent.LOST)
        return False

    def park(self, parked: Parked, until: float) -> None:
        """Hold an attempt back until the connection stands or is gone, or patience ends."""
        self._parked.append(parked)
        if len(self._parked) == 1:
            self._loop.call_at(until, self._reconsider)

    def call_ended(self) -> None:
        """Count a call out."""
        self.active -= 1
        if self.active == 0 and self.state is State.GONE:
            self._close()

    def retire(self) -> None:
        """Use it for nothing new; close it when its last call has ended."""
        if self.state is not State.GONE:
            self.state = State.GONE
            self._leave()

    def check(self) -> None:
        """Ask the backend over this connection whether it serves."""
        if self.state is State.READY:
            self._run(self._check())

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left of it."""
        return self.state is State.GONE and not self.active and not self._tasks

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _close(self) -> None:
        self._run(self._channel.close())

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # In an empty context: the one that is current may belong to a request.
        task = Context().run(self._loop.create_task, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self) -> None:
        """Follow the channel's state until it ends."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                is_open = await self._reaches_ready()
        except TimeoutError:
            is_open = False
        if not is_open:
            self._end(ConnectionEvent.REFUSED)
            return
        self.state = State.READY
        self.owner.connection_opened(self)
        self._release()
        if self.state is State.READY:
            self._run(self._watch())
            self._orca = OrcaFollower(self.backend, self.owner.runtime, self._subscribe)
        await self._channel.wait_for_state_change(_Ready)
        self._end(ConnectionEvent.LOST)

    async def _reaches_ready(self) -> bool:
        state = self._channel.get_state(try_to_connect=True)
        while state is not _Ready:
            if state in (
                grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                grpc.ChannelConnectivity.SHUTDOWN,
            ):
                return False
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
        return True

    def _end(self, event: ConnectionEvent) -> None:
        if self.state is not State.GONE:
            self.state = State.GONE
            # First, so that what waited for it is not sent here again.
            self.owner.connection_ended(self, event)
            self._leave()

    def _leave(self) -> None:
        if self._orca is not None:
            self._orca.end()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._release()
        if self.active == 0:
            self._close()

    def _release(self) -> None:
        parked, self._parked = self._parked, []
        for attempt in parked:
            attempt.connected(self)

    def _reconsider(self) -> None:
        """Let what waits go elsewhere, if that can be had: this one may never come to stand."""
        if self.state is State.CONNECTING:
            parked, self._parked = self._parked, []
            for attempt in parked:
                until = attempt.waited()
                if until is not None:
                    self.park(attempt, until)

    async def _watch(self) -> None:
        """Hear the backend's health service, where it has one."""
        watch: Callable[..., Any] = self._channel.unary_stream(WATCH, serialize)
        while self.state is State.READY:
            try:
                async for data in watch(_HOW_ARE_YOU):
                    self._heard(data)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            await asyncio.sleep(_WATCH_AGAIN_SECONDS * random.uniform(0.5, 1.5))

    def _subscribe(self, orca: OrcaFollower) -> Callable[[], object]:
        return self._run(self._read(orca)).cancel

    async def _read(self, orca: OrcaFollower) -> None:
        """Hear what the backend says of its load out of band, where it does."""
        subscribe: Callable[..., Any] = self._channel.unary_stream(ORCA_STREAM, serialize)
        call = subscribe(Question(orca.message))
        code = grpc.StatusCode.CANCELLED  # gRPC raises no error of its own then.
        try:
            # Not by iterating: gRPC's iterator, left while it rests, would hold the call, and with
            # it the connection, until garbage is collected.
            while (data := await call.read()) is not grpc.aio.EOF:
                orca.heard(data)
                await asyncio.sleep(orca.pause_seconds)
            code = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            code = error.code()
        finally:
            call.cancel()  # This task may have been, while it did not wait for the call.
            orca.ended(code)

    async def _check(self) -> None:
        check: Callable[..., Any] = self._channel.unary_unary(CHECK, serialize)
        try:
            self._heard(await check(_HOW_ARE_YOU, timeout=self._check_seconds))
        except grpc.aio.AioRpcError as error:
            # That it does not know is an answer.
            if self.state is State.READY and error.code() not in UNANSWERED:
                self.owner.heard_serving(self, is_serving=True)

    def _heard(self, data: bytes) -> None:
        said = is_serving(data)
        if said is not None and self.state is State.READY:
            self.owner.heard_serving(self, is_serving=said)
