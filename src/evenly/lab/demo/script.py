"""Play the scripted story of `evenly demo --seconds N`: everything that is promised, measured.

Warm-up, a rolling restart, a backend that fails fast, five times the capacity, and recovery.  What
the figures are made of, and their bounds, is in `evenly.lab.demo.verdict`.  After the restart and
at the end nobody asks for anything until all requests have ended: what has not by then never will.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

from evenly.core import check
from evenly.errors import EvenlyError
from evenly.lab.demo.bounds import LEAST_SECONDS, MOST_SECONDS
from evenly.lab.demo.plan import USUAL_LOAD, Plan
from evenly.lab.demo.played import Part, Played
from evenly.lab.demo.stories import Sleep, are_replaced
from evenly.lab.demo.totals import ENDINGS, Totals
from evenly.lab.demo.verdict import (
    Figure,
    Track,
    critical_plus,
    errors_fall,
    fast_fail_errors,
    never_ended,
    overload_goodput,
    recovery,
    restart_failures,
    restart_refused,
)

__all__ = [
    "Lengths",
    "Script",
    "ScriptedFleet",
]

Frame = Mapping[str, Any]

_OVERLOAD: Final = 5.0
_SAMPLE_SECONDS: Final = 0.25
# At 90 s: 8 for the warm-up, about 23 for the restart, and these for the rest.
_WARM_UP_RATIO: Final = 8.0 / 90.0
_SHARES: Final = (18.0, 10.0, 19.0, 13.0)
# Below these a part shows nothing: averages over seconds have to turn, recovery may take five, and
# what a sinkhole takes before it is known, two or three requests, would be too much of six seconds.
_LEAST: Final = (12.0, 8.0, 10.0, 7.0)
_LEAST_WARM_UP: Final = 4.0
_USUAL_SECONDS: Final = 4.0
# A process that takes longer than this to be replaced is stuck.
_RESTART_SECONDS_EACH: Final = 15.0
# The beginning of an overload is no part of its steady state.
_STEADY_AFTER_RATIO: Final = 0.25
# Children report every quarter of a second: what ended is known soon after.
_REPORT_SECONDS: Final = 0.5
# A busy machine may end a request some seconds after its timeout; later than that is never.
_LATE_SECONDS: Final = 5.0
_CRITICAL_PLUS: Final = "CRITICAL_PLUS"


class ScriptedFleet(Protocol):
    """Be what is played on: the fleet."""

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        """Do one of the controls of the page."""

    def totals(self) -> Totals:
        """Return what all clients have counted so far."""

    def client_ends(self) -> int:
        """Return how many client processes have ended so far."""

    def quiet(self, *, is_on: bool) -> None:
        """Have all clients ask for nothing, or go on."""

    def subscribe(self) -> AsyncGenerator[Any, None]:
        """Give each frame as it is made."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Say how long the parts after the restart are."""

    fast_fail: float
    repair: float
    overload: float
    recovery: float

    @classmethod
    def of(cls, left_seconds: float) -> Lengths:
        """Divide what is left in proportion, but give each part what it needs to show anything."""
        whole = sum(_SHARES)
        fast_fail, repair, overload, calm = (
            max(least, left_seconds * share / whole)
            for share, least in zip(_SHARES, _LEAST, strict=True)
        )
        return cls(fast_fail=fast_fail, repair=repair, overload=overload, recovery=calm)


@final
@dataclass(slots=True)
class _Seen:
    """Hold what the frames have shown, and no frame but the latest."""

    latest: Frame | None = None
    cores: float = 0.0
    frames: int = 0
    clients: dict[str, int] = field(default_factory=dict)
    """How many clients have each backend in their subset now."""
    served: Counter[str] = field(default_factory=Counter)
    """What each backend has served in this part."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def frame(self, frame: Frame) -> None:
        self.latest = frame
        self.frames += 1
        self.cores += float(frame["demo_cores"])
        for backend in frame["backends"]:
            name = backend["name"]
            self.clients[name] = backend["clients"]
            self.served[name] += backend["ok"] * frame["seconds"]
        self.changed.set()

    def has_share(self, backend: str) -> bool:
        return self.clients.get(backend, 0) > 0 and self.served[backend] >= 1


@final
class Script:
    """Play all parts on a fleet once, and judge them."""

    def __init__(
        self,
        stage: ScriptedFleet,
        plan: Plan,
        seconds: float,
        *,
        on_part: Callable[[str, str], None] = lambda _name, _text: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        check.number("seconds", seconds, LEAST_SECONDS, MOST_SECONDS)
        self._stage = stage
        self._plan = plan
        self._seconds = seconds
        self._on_part = on_part
        self._sleep = sleep
        self._began_at = 0.0
        self._parts: list[Part] = []
        self._seen = _Seen()

    async def play(self) -> Played:
        """Play it; the fleet is as at the start afterwards."""
        self._began_at = self._stage.totals().at
        watching = asyncio.create_task(self._watch())
        playing = asyncio.create_task(self._play())
        try:
            # A fleet that stops reporting must end the play, not be waited for.
            await asyncio.wait([playing, watching], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                watching.result()
                raise EvenlyError("the fleet has stopped reporting")
            figures = playing.result()
        finally:
            playing.cancel()
            watching.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)
        seen = self._seen
        return Played(
            seconds=self._now(),
            parts=self._parts,
            figures=figures,
            demo_cores=seen.cores / seen.frames if seen.frames else None,
        )

    async def _play(self) -> list[Figure]:
        await self._control("load", load=USUAL_LOAD)
        client_ends = self._stage.client_ends()
        warm_up = max(_LEAST_WARM_UP, _WARM_UP_RATIO * self._seconds)
        await self._part("warm-up", "clients get to know their backends", self._sleep(warm_up))
        figures = await self._rolling_restart()
        # A backend that fails when nobody asks yet is found out too cheaply.
        text = "all backends are new, and requests flow as before"
        await self._part("as usual", text, self._sleep(_USUAL_SECONDS))
        lengths = Lengths.of(self._seconds - self._now() - self._drain_seconds)
        figures += await self._fast_fail(lengths.fast_fail)
        await self._part(
            "repair", "the backend works again and gets its share back", self._sleep(lengths.repair)
        )
        figures += await self._overload(lengths.overload, lengths.recovery)
        client_ends = self._stage.client_ends() - client_ends
        return [*figures, never_ended(self._stage.totals().under_way, client_ends)]

    async def _rolling_restart(self) -> list[Figure]:
        is_complete = False
        client_ends = self._stage.client_ends()

        async def restart() -> None:
            nonlocal is_complete
            before = await self._frame()
            gives_up_at = self._now() + _RESTART_SECONDS_EACH * len(before["backends"])
            await self._control("rolling_restart")
            while not is_complete and self._now() < gives_up_at:
                is_complete = are_replaced(before, await self._frame())
            await self._drain()

        text = "SIGTERM to one backend after the other: nobody notices"
        counts = (await self._part("rolling restart", text, restart())).counts
        return [
            restart_failures(
                counts,
                is_complete=is_complete,
                never_ended=self._stage.totals().under_way,
                client_ends=self._stage.client_ends() - client_ends,
            ),
            restart_refused(counts, is_complete=is_complete),
        ]

    async def _fast_fail(self, seconds: float) -> list[Figure]:
        backends = self._plan.backends
        name = backends[min(2, len(backends) - 1)].name
        had_share = self._seen.has_share(name)
        began = middle = self._stage.totals()

        async def fail() -> None:
            nonlocal middle
            await self._control("fail", backend=name, is_on=True)
            await self._sleep(seconds / 2)
            middle = self._stage.totals()
            await self._sleep(seconds / 2)

        text = f"{name} answers everything with an error, at once: it is avoided"
        counts = (await self._part("fast-fail backend", text, fail())).counts
        ended = self._stage.totals()
        await self._control("fail", backend=name, is_on=False)
        return [
            fast_fail_errors(counts, had_share=had_share),
            errors_fall(middle - began, ended - middle, had_share=had_share),
        ]

    async def _overload(self, seconds: float, calm_seconds: float) -> list[Figure]:
        began = steady = self._stage.totals()

        async def overload() -> None:
            nonlocal steady
            await self._control("load", load=_OVERLOAD)
            await self._sleep(_STEADY_AFTER_RATIO * seconds)
            steady = self._stage.totals()
            await self._sleep((1 - _STEADY_AFTER_RATIO) * seconds)

        text = f"{_OVERLOAD:g} × the capacity: goodput stays, the least critical are refused first"
        counts = (await self._part("overload", text, overload())).counts
        goodput = overload_goodput(self._stage.totals() - steady, self._plan.capacity, _OVERLOAD)
        await self._control("load", load=USUAL_LOAD)
        recovered, after = await self._recovery(calm_seconds)
        await self._drain()
        stuck = _never_ended(self._stage.totals(), _CRITICAL_PLUS)
        return [goodput, critical_plus(counts, after - began, never_ended=stuck), recovered]

    async def _recovery(self, seconds: float) -> tuple[Figure, Totals]:
        """Return how long it took, and what was counted when all of the overload had ended."""
        after = self._stage.totals()
        samples: list[Totals] = []

        async def calm() -> None:
            nonlocal after
            await self._sleep(self._drain_seconds)
            after = self._stage.totals()
            await self._sleep(seconds - self._drain_seconds)

        text = f"the load is back at {USUAL_LOAD:g}: it should take less than 5 s"
        async with self._sampling(samples):
            part = await self._part("recovery", text, calm())
        return recovery(Track(samples), samples[0].at, part.ended_at), after

    @property
    def _drain_seconds(self) -> float:
        """How long after the last request all have ended, and that is known."""
        return self._plan.timeout_seconds + _REPORT_SECONDS

    async def _drain(self) -> None:
        """Let everything end that is under way: what then has not ended never will."""
        self._stage.quiet(is_on=True)
        try:
            await self._sleep(self._drain_seconds)
            gives_up_at = self._now() + _LATE_SECONDS
            while self._stage.totals().under_way and self._now() < gives_up_at:
                await self._sleep(_SAMPLE_SECONDS)
        finally:
            self._stage.quiet(is_on=False)

    async def _part(self, name: str, text: str, doing: Awaitable[None]) -> Part:
        self._on_part(name, text)
        self._seen.served.clear()
        first = self._stage.totals()
        await doing
        last = self._stage.totals()
        part = Part(name=name, began_at=first.at, ended_at=last.at, counts=last - first)
        self._parts.append(part)
        return part

    async def _control(self, name: str, **arguments: object) -> None:
        await self._stage.control(name, arguments)

    def _now(self) -> float:
        return self._stage.totals().at - self._began_at

    @asynccontextmanager
    async def _sampling(self, samples: list[Totals]) -> AsyncIterator[None]:
        """Take samples meanwhile, the first now and the last at the end."""

        async def sample() -> None:
            while True:
                samples.append(self._stage.totals().brief())
                await self._sleep(_SAMPLE_SECONDS)

        sampling = asyncio.create_task(sample())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def _frame(self) -> Frame:
        """Wait for the next frame."""
        while (frame := self._seen.latest) is None:
            await self._seen.changed.wait()
            self._seen.changed.clear()
        self._seen.latest = None
        return frame

    async def _watch(self) -> None:
        async with aclosing(self._stage.subscribe()) as frames:
            async for frame in frames:
                self._seen.frame(frame)


def _never_ended(totals: Totals, criticality: str) -> int:
    ended = sum(totals.of_criticality(ending, criticality) for ending in ENDINGS[1:])
    return totals.of_criticality("asked", criticality) - ended
