"""A client runtime with a transport that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.exchange import Ended, Exchange, Step
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.probe.config import ProbeConfig
from evenly.probe.responder import ProbeResponder
from evenly.runtime.client import ClientRuntime
from evenly.runtime.client_config import ClientConfig

A, B, C = Backend("127.0.0.1:1"), Backend("127.0.0.1:2"), Backend("127.0.0.1:3")
HEALTH = HealthConfig(
    check_seconds=0.02,
    connect_jitter_seconds=0.0,
    backoff_first_seconds=0.02,
    backoff_max_seconds=0.02,
)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


class Listed:
    """Be a discovery that says what the test says."""

    def __init__(self, *first: Sequence[Backend] | Exception) -> None:
        self.watched = 0
        self._lists: asyncio.Queue[Sequence[Backend] | Exception] = asyncio.Queue()
        for backends in first:
            self._lists.put_nowait(backends)

    def say(self, *backends: Backend) -> None:
        self._lists.put_nowait(backends)

    async def watch(self) -> AsyncIterator[Sequence[Backend]]:
        self.watched += 1
        while True:
            said = await self._lists.get()
            if isinstance(said, Exception):
                raise said
            yield said


class Transport:
    """Connect at once to everyone who is not in `closed`."""

    def __init__(self) -> None:
        self.runtime: ClientRuntime | None = None
        self.closed: set[Backend] = set()
        self.connects: list[Backend] = []
        self.disconnects: list[Backend] = []
        self.checks: list[Backend] = []

    def connect(self, backend: Backend) -> None:
        self.connects.append(backend)
        event = ConnectionEvent.OPENED if backend not in self.closed else ConnectionEvent.REFUSED
        assert self.runtime is not None
        loop = asyncio.get_running_loop()
        loop.call_soon(self.runtime.connection_changed, backend, event)

    def disconnect(self, backend: Backend) -> None:
        self.disconnects.append(backend)

    def check(self, backend: Backend) -> None:
        self.checks.append(backend)


class Requests:
    """Begin requests by name, and keep how each went on, in order."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self.runtime = runtime
        self.settles = False
        self.gone_on: list[tuple[str, Attempt | Ended]] = []
        self.exchanges: dict[str, Exchange] = {}

    def begin(self, name: str, *, is_patient: bool = False) -> None:
        exchange = Exchange(self.runtime.requests, Request(), is_patient)
        self.exchanges[name] = exchange
        self._take(name, self.runtime.begin(exchange))

    def _take(self, name: str, step: Step) -> None:
        if not isinstance(step, (Attempt, Ended)):
            self.runtime.hold(self.exchanges[name], step, lambda step: self._take(name, step))
            return
        self.gone_on.append((name, step))
        if self.settles:
            self.runtime.follow_up()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.gone_on]

    def step(self, name: str) -> Attempt | Ended:
        return dict(self.gone_on)[name]

    def reason(self, name: str) -> Reason:
        step = self.step(name)
        assert isinstance(step, Ended)
        assert step.rejection is not None
        return step.rejection.reason

    def finish(self, name: str) -> None:
        assert self.exchanges[name].ended(Outcome.OK) == Ended(Outcome.OK)
        self.runtime.follow_up()

    def cannot_send(self, name: str) -> None:
        step: Step = self.exchanges[name].not_sent()
        while isinstance(step, Attempt):
            step = self.exchanges[name].not_sent()  # Nor there.
        self._take(name, step)
        self.runtime.follow_up()


def configured(
    *,
    policy: str = "round_robin",
    active_limit: int = 100,
    ask_seconds: float = 0.05,
    is_probing: bool = True,
    discovery_seconds: float = 3600.0,
    health: HealthConfig = HEALTH,
) -> ClientConfig:
    task = ClientTaskConfig(
        policy=PolicyConfig(name=policy),
        membership=MembershipConfig(health=health),
        active_limit=active_limit,
        ask_seconds=ask_seconds,
    )
    return ClientConfig(
        task=task, probe=ProbeConfig(is_on=is_probing), discovery_seconds=discovery_seconds
    )


@contextlib.asynccontextmanager
async def started(
    discovery: Listed, config: ClientConfig | None = None, *, closed: Sequence[Backend] = ()
) -> AsyncIterator[tuple[ClientRuntime, Transport, Requests]]:
    runtime = ClientRuntime(discovery, configured() if config is None else config)
    transport = Transport()
    transport.runtime = runtime
    transport.closed.update(closed)
    runtime.start(asyncio.get_running_loop(), transport)
    try:
        yield runtime, transport, Requests(runtime)
    finally:
        runtime.stop()
        await runtime.stopped()


def healthy(runtime: ClientRuntime) -> int:
    return sum(view.state is State.HEALTHY for view in runtime.task.snapshot().backends)


@contextlib.contextmanager
def silent_backend() -> Iterator[Backend]:
    """Be a backend whose UDP port takes questions and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield Backend(f"127.0.0.1:{sock.getsockname()[1]}")


@contextlib.contextmanager
def answering_backend(report: LoadReport) -> Iterator[Backend]:
    responder = ProbeResponder(lambda: report)
    port = responder.bind("127.0.0.1", 0)
    responder.start(asyncio.get_running_loop())
    try:
        yield Backend(f"127.0.0.1:{port}")
    finally:
        responder.stop()
