"""Run the fleet: all processes, what is done to them, and what there is to see.

`Fleet` is what the page, the table and the script watch and act on (`evenly.lab.dashboard.source`):

    async with Fleet(Plan()) as fleet:
        await fleet.control("kill", {"backend": "b3"})
        async for frame in fleet.subscribe():
            ...

Everything runs on one event loop.  However it ends, it leaves no process and no file behind.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, final

from evenly.core.clock import Clock
from evenly.lab.demo.child import Line, python_module
from evenly.lab.demo.conductor import Conductor
from evenly.lab.demo.controls import Settings, description
from evenly.lab.demo.frames import FRAME_SECONDS, Frame, Frames, plan_clients
from evenly.lab.demo.gauges import GAUGES, metrics_page
from evenly.lab.demo.member import Member, Pace
from evenly.lab.demo.plan import BackendPlan, Plan
from evenly.lab.demo.ports import HeldPort
from evenly.lab.demo.totals import Totals

__all__ = ["Fleet", "Programs"]

_log = logging.getLogger(__name__)

# Two minutes, for whoever does not read them.
_KEPT_FRAMES: Final = 240

_EVENTS: Final = 1000
# Children take a core for half a second each to start; more at a time only take longer.
_AT_A_TIME: Final = 3
# A quarter of a frame after the even half seconds, near which nothing else happens by design.
_PHASE_SECONDS: Final = 0.125


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Say what is run; tests run something smaller."""

    backend: tuple[str, ...] = python_module("evenly.lab.demo.backend")
    client: tuple[str, ...] = python_module("evenly.lab.demo.client")


@final
class Fleet:
    """Start all processes, keep them running, and do what is asked for."""

    def __init__(
        self,
        plan: Plan,
        *,
        host: str = "127.0.0.1",
        clock: Clock = time.monotonic,
        programs: Programs | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.plan = plan
        self.host = host
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        """What was done and what happened: `t`, `text`, `kind`."""
        self._clock = clock
        self._programs = Programs() if programs is None else programs
        self._pace = Pace() if pace is None else pace
        self._starting = asyncio.Semaphore(_AT_A_TIME)
        self._began_at = clock()
        self._frames = Frames(plan, began_at=self._began_at, cpu_seconds=time.process_time())
        self._ports: list[HeldPort] = []
        self._backends: dict[str, Member] = {}
        self._clients: dict[str, Member] = {}
        self._latest: Frame = {}
        self._new_events: list[dict[str, Any]] = []
        self._subscribers: list[asyncio.Queue[Frame | None]] = []
        self._framing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._has_ended = False
        """Whether no frame will be made any more."""
        self._conductor = Conductor(
            backends=self._backends,
            clients=self._clients,
            capacity=plan.capacity,
            settle_seconds=self._pace.settle_seconds,
            tell_event=self._tell_event,
        )

    # Its life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the backends, then the clients; frames show it from the beginning.

        Raises `ChildError` if one of them cannot be started; then, and if this is cancelled,
        nothing is left.
        """
        try:
            self._make_members()
            self._framing = asyncio.create_task(self._make_frames(), name="frames")
            await _all(member.start() for member in self._backends.values())
            await _all(member.start() for member in self._clients.values())
            self._tell_event(
                f"{len(self._backends)} backends and {len(self._clients)} clients run", "fleet"
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End everything; it is done when this returns, and goes on if this is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._has_ended = True
        members = [*self._clients.values(), *self._backends.values()]
        # At first, and without waiting for anything: whatever comes between, these have ended.
        for member in members:
            member.kill()
        await self._conductor.close()
        if self._framing is not None:
            self._framing.cancel()
            await asyncio.gather(self._framing, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in members))
        for port in self._ports:
            port.close()
        self._ports.clear()
        self._end_subscribers()

    def _make_members(self) -> None:
        for backend in self.plan.backends:
            port = HeldPort(self.host)
            self._ports.append(port)
            self._backends[backend.name] = self._member(
                backend.name,
                self._programs.backend,
                functools.partial(self._backend_settings, backend, port.number),
                address=port.address,
            )
        for index, name in enumerate(plan_clients(self.plan)):
            self._clients[name] = self._member(
                name,
                self._programs.client,
                functools.partial(self._client_settings, name, index),
            )

    def _member(
        self,
        name: str,
        program: Sequence[str],
        settings: Callable[[], Mapping[str, object]],
        *,
        address: str = "",
    ) -> Member:
        return Member(
            name,
            program,
            settings,
            address=address,
            pace=self._pace,
            starting=self._starting,
            on_line=self._saw,
            on_event=lambda text: self._tell_event(text, "fleet"),
        )

    def _backend_settings(self, backend: BackendPlan, port: int) -> dict[str, object]:
        plan = self.plan
        customers = plan.limits_of(backend)
        return {
            "name": backend.name,
            "host": self.host,
            "port": port,
            "speed": backend.speed,
            "slots": backend.slots,
            "work_seconds": plan.work_seconds,
            "transport": plan.transport,
            "is_real_cpu": plan.is_real_cpu,
            "is_protected": self.settings.is_protected,
            "customers": customers,
            # Whoever is not listed is nobody's business here.
            "default_limit": max(customers.values()),
        }

    def _client_settings(self, name: str, index: int) -> dict[str, object]:
        plan, settings = self.plan, self.settings
        return {
            "name": name,
            "host": self.host,
            "index": index,
            "transport": plan.transport,
            "backends": {name: member.address for name, member in self._backends.items()},
            "subset_size": plan.subset_size,
            "rate": self._conductor.rate,
            "wild_rate": self._conductor.wild_rate,
            "timeout_seconds": plan.timeout_seconds,
            "policy": settings.policy,
            "throttle": settings.throttle,
            "is_protected": settings.is_protected,
            "seed": plan.seed,
        }

    # What is done.

    async def control(
        self, name: str, arguments: Mapping[str, object] | None = None, **more: object
    ) -> None:
        """Do one of the controls of the page (`lab.demo.controls`), or raise `ConfigError`."""
        await self._conductor.control(name, {**(arguments or {}), **more}, self)

    async def reset(self) -> None:
        """Make everything as at the start."""
        await self._conductor.reset()

    def quiet(self, *, is_on: bool) -> None:
        """Have all clients ask for nothing, or go on: for whoever counts what has ended."""
        self._conductor.quiet(is_on=is_on)

    def tell(self, text: str, step: int, steps: int, panels: Sequence[str]) -> None:
        """Show what the story says now, and which panels to look at."""
        self._conductor.tell(text, step, steps, panels)

    # What is to be seen.

    @property
    def settings(self) -> Settings:
        """What is set for the whole fleet now."""
        return self._conductor.settings

    def totals(self) -> Totals:
        """Return what all clients have counted since the start, exactly."""
        return self._frames.totals(self._clock())

    def client_ends(self) -> int:
        """Return how many client processes have ended; each took counts with it."""
        return sum(member.ends for member in self._clients.values())

    def targets(self, address: str) -> list[dict[str, Any]]:
        """Return where the metrics of all processes are, as Prometheus wants it.

        `address` is where our own are, host and port.
        """
        found: list[dict[str, Any]] = [
            {
                "targets": [f"{self.host}:{member.metrics_port}"],
                "labels": {"role": role, "name": name},
            }
            for role, members in (("backend", self._backends), ("client", self._clients))
            for name, member in members.items()
            if member.metrics_port is not None
        ]
        own = {"targets": [address], "labels": {"role": "fleet", "name": "demo"}}
        return [*found, own]

    def metrics(self) -> str:
        """Return our own metrics page."""
        settings, frame = self.settings, self._latest
        known = {name: float(frame[name]) for name in GAUGES if name in frame}
        return metrics_page(
            known
            | {
                "capacity": self.plan.capacity,
                "load": settings.load,
                "is_protected": float(settings.is_protected),
                "is_wild": float(settings.is_wild),
            }
        )

    def describe(self) -> dict[str, object]:
        """Return what a page needs once."""
        return description(self.plan)

    def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield each frame as it is made, from now on."""
        return self.subscribe()

    async def subscribe(self) -> AsyncGenerator[Frame, None]:
        """Yield each frame as it is made, until the fleet is closed or cannot make any more.

        Whoever is two minutes behind loses the oldest.
        """
        if self._has_ended:
            return
        queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._subscribers.append(queue)
        try:
            while (frame := await queue.get()) is not None:
                yield frame
        finally:
            self._subscribers.remove(queue)

    async def _make_frames(self) -> None:
        try:
            while True:
                now = self._clock()
                since = (now - _PHASE_SECONDS) / FRAME_SECONDS
                await asyncio.sleep((math.floor(since) + 1 - since) * FRAME_SECONDS)
                self._publish(self._frame())
        except Exception as error:
            _log.exception("no more frames can be made")
            self._tell_event(f"no more frames can be made: {error}", "fleet")
            self._has_ended = True
            self._end_subscribers()
            raise

    def _frame(self) -> Frame:
        events, self._new_events = self._new_events, []
        members = {**self._backends, **self._clients}
        return self._frames.make(
            self._clock(),
            settings=self.settings.describe(),
            standings={name: member.standing(self.host) for name, member in members.items()},
            cpu_seconds=time.process_time(),
            story=self._conductor.story,
            events=events,
        )

    def _publish(self, frame: Frame) -> None:
        self._latest = frame
        for queue in self._subscribers:
            if queue.qsize() >= _KEPT_FRAMES:
                queue.get_nowait()
            queue.put_nowait(frame)

    def _end_subscribers(self) -> None:
        for queue in self._subscribers:
            queue.put_nowait(None)

    def _saw(self, name: str, pid: int, line: Line) -> None:
        self._frames.saw(name, pid, line, self._clock())

    def _tell_event(self, text: str, kind: str) -> None:
        event = {"t": round(self._clock() - self._began_at, 3), "text": text, "kind": kind}
        self.events.append(event)
        self._new_events.append(event)


async def _all(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; the first error ends the waiting for the others."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
