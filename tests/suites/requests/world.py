"""A world: scripted backends that listen on loopback, and a client to them over one transport."""

from __future__ import annotations

import abc
import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from evenly.core.balancing.backend import Backend as Address
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.exchange import Requests
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.probe.config import ProbeConfig
from evenly.runtime.client_config import ClientConfig
from tests.suites.requests.script import Counts, Script, What

PATIENCE_SECONDS = 20.0
"""It only keeps a test that fails from hanging."""
# Everything ten to twenty times as fast as it is in earnest.
_QUICK = HealthConfig(
    check_seconds=0.1,
    connect_jitter_seconds=0.01,
    backoff_first_seconds=0.05,
    backoff_max_seconds=0.2,
)
UNTHROTTLED = ClientTaskConfig(throttle=ThrottleConfig(name="off"))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a world begins with."""

    backends: int = 1
    has_mute: bool = False
    """Whether there is a backend, too, that never answers who wants to connect."""
    is_listed: bool = True
    """Whether the client knows the scripted backends, and is connected to them."""
    task: ClientTaskConfig = field(default_factory=lambda: UNTHROTTLED)
    asks: bool = False
    """Whether its policy asks by UDP before it picks.  Nobody answers."""
    connect_seconds: float = 3600.0
    patience_seconds: float = 0.02
    discovery_seconds: float = 3600.0

    def config(self, idempotent_methods: tuple[str, ...] = ()) -> ClientConfig:
        """Return it as transports want it."""
        return ClientConfig(
            task=replace(self.task, membership=MembershipConfig(health=_QUICK)),
            probe=ProbeConfig(is_on=self.asks),
            connect_seconds=self.connect_seconds,
            patience_seconds=self.patience_seconds,
            discovery_seconds=self.discovery_seconds,
            idempotent_methods=idempotent_methods,
        )


class Backend(Protocol):
    """A backend that does what the script says."""

    @property
    def address(self) -> str: ...
    async def start(self) -> None:
        """Listen, on the same port as the last time if there was one."""

    async def stop(self) -> None:
        """Be killed."""


class Sent(Protocol):
    """A request that was sent."""

    @property
    def what(self) -> What | None:
        """How it ended, once it has."""

    def cancel(self) -> None:
        """Give it up, as its caller."""


class Listed:
    """A discovery that says what it is told, on any thread."""

    def __init__(self) -> None:
        self._lists: list[tuple[Address, ...]] = []

    def say(self, *addresses: str) -> None:
        self._lists.append(tuple(Address(address) for address in addresses))

    async def watch(self) -> AsyncIterator[Sequence[Address]]:
        told = 0
        while True:
            for backends in self._lists[told:]:
                yield backends
                told += 1
            await asyncio.sleep(0.005)


class World(abc.ABC):
    """One client and its backends; a transport says how they are made and how one sends."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.script = Script()
        self.counts = Counts()
        self.backends: list[Backend] = []
        self.mute = ""
        """The address of who never answers, if there is one."""

    @property
    @abc.abstractmethod
    def requests(self) -> Requests:
        """The line of those that wait."""

    @property
    def task(self) -> ClientTask:
        return self.requests.task

    @abc.abstractmethod
    def say(self, *addresses: str) -> None:
        """Tell the client which backends there are."""

    @abc.abstractmethod
    def send(
        self,
        name: str = "",
        *,
        is_idempotent: bool = False,
        is_patient: bool = False,
        seconds: float | None = None,
        is_stream: bool = False,
    ) -> Sent:
        """Send a request; `is_stream` makes it one that cannot be sent again."""

    @abc.abstractmethod
    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until something is so."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the client; a second time does nothing."""

    @property
    def addresses(self) -> list[str]:
        return [backend.address for backend in self.backends]

    @property
    def active(self) -> int:
        return self.task.snapshot().active

    def known(self) -> dict[str, State]:
        """Return the state of each backend that the client knows."""
        return {view.address: view.state for view in self.task.snapshot().backends}

    async def connected(self) -> None:
        """Wait until all backends are healthy to the client."""
        await self.until(
            lambda: (
                [self.known().get(one) for one in self.addresses]
                == [State.HEALTHY] * len(self.addresses)
            )
        )

    async def answered(self, *sent: Sent) -> list[What | None]:
        """Wait for the ends of requests."""
        await self.until(lambda: all(one.what is not None for one in sent))
        return [one.what for one in sent]

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        await self.until(lambda: self.active == self.requests.parked == 0)


class LoopWorld(World):
    """One of real sockets, on the event loop of the test."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.listed = Listed()
        self._listeners: list[socket.socket] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self.backends = [self.new_backend() for _ in range(self.setup.backends)]
        for backend in self.backends:
            await backend.start()
        if self.setup.has_mute:
            self.mute = await self.new_mute()
        await self.open()
        if self.setup.is_listed:
            self.say(*self.addresses)
            await self.connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.script.release()
        await self.close()
        for backend in self.backends:
            await backend.stop()
        for listener in self._listeners:
            listener.close()

    @abc.abstractmethod
    def new_backend(self) -> Backend:
        """Return a backend that does what the script says."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Open the client."""

    @abc.abstractmethod
    async def shut(self) -> None:
        """Close the client."""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.shut()

    async def new_mute(self) -> str:
        """Have the kernel accept connections and nobody say a word, as for a stopped process."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def say(self, *addresses: str) -> None:
        self.listed.say(*addresses)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)


class SentTask:
    """A request in a task of its own."""

    def __init__(self, task: asyncio.Task[What]) -> None:
        self._task = task

    @property
    def what(self) -> What | None:
        if not self._task.done():
            return None
        return What.CANCELLED if self._task.cancelled() else self._task.result()

    def cancel(self) -> None:
        self._task.cancel()
