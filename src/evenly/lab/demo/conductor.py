"""Do what the page's controls ask for, to real processes.

It holds what is set, the story that is played and the rolling restart that is under way.  What is
set goes to the processes only where it changes: a client that is configured anew forgets what it
has learnt of its backends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from evenly.errors import ConfigError
from evenly.lab.demo.controls import Settings, checked
from evenly.lab.demo.frames import SLOW_FACTOR
from evenly.lab.demo.member import Member
from evenly.lab.demo.plan import WILD_LOAD
from evenly.lab.demo.stories import STORIES, StoryFleet, play

__all__ = ["Conductor"]

_log = logging.getLogger(__name__)


@final
class Conductor:
    """Act on backends and clients; `tell_event` is told what was done, and by whom."""

    def __init__(
        self,
        *,
        backends: Mapping[str, Member],
        clients: Mapping[str, Member],
        capacity: float,
        settle_seconds: float,
        tell_event: Callable[[str, str], None],
    ) -> None:
        self.settings = Settings()
        self.story: dict[str, Any] | None = None
        """What the story says now."""
        self._backends = backends
        self._clients = clients
        self._capacity = capacity
        self._settle_seconds = settle_seconds
        self._is_quiet = False
        self._tell_event = tell_event
        self._playing: asyncio.Task[None] | None = None
        self._rolling: asyncio.Task[None] | None = None
        self._changing_story = asyncio.Lock()

    @property
    def rate(self) -> float:
        """What each client asks for, in requests per second."""
        if self._is_quiet:
            return 0.0
        return self.settings.load * self._capacity / max(1, len(self._clients))

    @property
    def wild_rate(self) -> float:
        """What each client asks for on top, for the customer that runs wild."""
        if not self.settings.is_wild:
            return 0.0
        return WILD_LOAD * self._capacity / max(1, len(self._clients))

    async def control(self, name: str, arguments: Mapping[str, object], stage: StoryFleet) -> None:
        """Do it, or raise `ConfigError`; `stage` is what a story is played on."""
        given = checked(name, arguments, backends=self._backends)
        match name:
            case "story":
                await self._begin_story(given["story"], stage)
            case "end_story":
                await self._end_story()
            case "reset":
                await self.reset()
            case "rolling_restart":
                self._begin_rolling_restart()
            case "kill" | "terminate" | "stop" | "cont" | "slow" | "fail":
                self._hurt(name, self._backends[given["backend"]], is_on=given.get("is_on", True))
            case _:
                self._set(name, given)

    def quiet(self, *, is_on: bool) -> None:
        """Have all clients ask for nothing, so that what is under way ends, or go on."""
        self._is_quiet = is_on
        self._tell_clients({"do": "load", "rate": self.rate})

    async def reset(self) -> None:
        """Make everything as at the start; a story that asks for it goes on."""
        if asyncio.current_task() is self._playing:
            await self._restore()
            return
        async with self._changing_story:
            await self._stop_story()
            await self._restore()
        self._say("everything is as at the start")

    async def close(self) -> None:
        """End what is under way, and leave the processes as they are."""
        await _cancel(self._playing, self._rolling)

    def tell(self, text: str, step: int, steps: int, panels: Sequence[str]) -> None:
        """Show what the story says now."""
        self.story = {
            "name": "" if self.story is None else self.story["name"],
            "step": step,
            "steps": steps,
            "text": text,
            "panels": list(panels),
        }

    # What is set.

    def _set(self, name: str, given: Mapping[str, Any]) -> None:
        is_on = bool(given.get("is_on"))
        match name:
            case "load":
                changed = replace(self.settings, load=float(given["load"]))
                text = f"load × {changed.load:g}"
            case "policy":
                changed = replace(self.settings, policy=given["policy"])
                text = f"policy {changed.policy}"
            case "throttle":
                changed = replace(self.settings, throttle=given["throttle"])
                text = f"throttle {changed.throttle}"
            case "protect":
                changed = replace(self.settings, is_protected=is_on)
                text = f"protection {'on' if is_on else 'off'}"
            case "wild":
                changed = replace(self.settings, is_wild=is_on)
                text = "customer “wild” runs wild" if is_on else "customer “wild” has gone"
            case _:
                raise AssertionError(name)
        self._say(text)
        self._apply(changed)

    def _apply(self, changed: Settings) -> None:
        before, self.settings = self.settings, changed
        if changed.is_protected != before.is_protected:
            for backend in self._backends.values():
                backend.command({"do": "protect", "is_on": changed.is_protected})
        if replace(changed, load=before.load, is_wild=before.is_wild) != before:
            self._tell_clients(
                {
                    "do": "configure",
                    "policy": changed.policy,
                    "throttle": changed.throttle,
                    "is_protected": changed.is_protected,
                }
            )
        if changed.load != before.load:
            self._tell_clients({"do": "load", "rate": self.rate})
        if changed.is_wild != before.is_wild:
            self._tell_clients({"do": "wild", "rate": self.wild_rate})

    def _tell_clients(self, command: Mapping[str, object]) -> None:
        for client in self._clients.values():
            client.command(command)

    async def _restore(self) -> None:
        await _cancel(self._rolling)
        for backend in self._backends.values():
            with contextlib.suppress(ConfigError):  # One that has ended is not stopped any more.
                backend.cont()
            if backend.is_slow:
                backend.slow(is_on=False)
            if backend.is_failing:
                backend.fail(is_on=False)
        self._apply(Settings())

    # What is done to a backend.

    def _hurt(self, name: str, backend: Member, *, is_on: bool) -> None:
        match name:
            case "slow":
                backend.slow(is_on=is_on)
                how = f"{SLOW_FACTOR:g} times slower" if is_on else "at its own speed again"
            case "fail":
                backend.fail(is_on=is_on)
                how = "fails everything at once" if is_on else "works again"
            case _:
                number = _SIGNALS[name]
                backend.signal(number)
                how = f"{number.name}"
        self._say(f"{backend.name}: {how}")

    def _begin_rolling_restart(self) -> None:
        if self._rolling is not None and not self._rolling.done():
            raise ConfigError(
                "rolling_restart must be the only one, not a second: one is under way"
            )
        self._say("rolling restart")
        self._rolling = asyncio.create_task(self._roll(), name="rolling restart")

    async def _roll(self) -> None:
        for backend in self._backends.values():
            await backend.restart()
            await asyncio.sleep(self._settle_seconds)
        self._tell_event("rolling restart: all backends are new", "fleet")

    # Stories.

    async def _begin_story(self, name: str, stage: StoryFleet) -> None:
        if asyncio.current_task() is self._playing:
            raise ConfigError(f"story must be begun by somebody else, not by a story: {name!r}")
        async with self._changing_story:
            await self._stop_story()
            await self._restore()
            self._say(f"story: {STORIES[name].title}")
            begins = STORIES[name]
            self.story = {"name": name}
            self.tell(begins.intro, 0, len(begins.steps), ())
            self._playing = asyncio.create_task(self._play(name, stage), name=f"story {name}")

    async def _end_story(self) -> None:
        if asyncio.current_task() is self._playing:
            return
        async with self._changing_story:
            if self.story is not None:
                self._say("the story is ended")
            await self._stop_story()
            await self._restore()

    async def _stop_story(self) -> None:
        await _cancel(self._playing)
        self._playing = None
        self.story = None

    async def _play(self, name: str, stage: StoryFleet) -> None:
        try:
            await play(STORIES[name], stage)
            self._say("the story is over")
        except Exception as error:  # noqa: BLE001 -- shown to whoever watches, and the fleet goes on
            _log.exception("story %s", name)
            self._tell_event(f"the story cannot go on: {error}", "story")
        finally:
            self.story = None

    def _say(self, text: str) -> None:
        is_story = asyncio.current_task() is self._playing and self._playing is not None
        self._tell_event(text, "story" if is_story else "user")


_SIGNALS: Final = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
}


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel what still runs, and wait until it has ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
