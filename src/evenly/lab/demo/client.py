"""Be one client task of the demo: `python -m evenly.lab.demo.client SETTINGS`.

It asks at random intervals, whatever comes of it, as many independent users do: a client that
waited for its answers would spare the backends just when they are slow.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, final

from prometheus_client import start_http_server

import evenly
from evenly.core.balancing.membership import MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTaskConfig, ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.lab.demo.lines import Lines, settings
from evenly.lab.demo.plan import CUSTOMERS, MIX, WILD
from evenly.lab.demo.talk import Caller, caller
from evenly.lab.demo.tally import Tally, application_attempt
from evenly.observe.prometheus import PrometheusObserver
from evenly.observe.tee import tee
from evenly.runtime.client_config import ClientConfig

__all__ = ["Client"]

# Requests that one client has at one backend: so many keep it busy, and a plain client, whose
# requests pile up, does not swamp the machine that shows it.
_ACTIVE_LIMIT: Final = 40
_PLAIN_ATTEMPTS: Final = 3
_LEVELS: Final = tuple(MIX)
_LEVEL_PARTS: Final = tuple(MIX.values())
_NAMES: Final = tuple(CUSTOMERS)
_NAME_PARTS: Final = tuple(CUSTOMERS.values())


@final
class _Arrivals:
    """Call `arrive` at random intervals, so many times a second on average."""

    def __init__(self, rng: random.Random, arrive: Callable[[], None]) -> None:
        self._rng = rng
        self._arrive = arrive
        self._rate = 0.0
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def set_rate(self, rate: float) -> None:
        """Go on with this rate; 0 is none."""
        self._rate = rate
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if rate > 0.0:
            self._next_at = self._loop.time() + self._rng.expovariate(rate)
            self._timer = self._loop.call_at(self._next_at, self._due)

    def _due(self) -> None:
        now = self._loop.time()
        while self._next_at <= now:
            self._arrive()
            self._next_at += self._rng.expovariate(self._rate)
        self._timer = self._loop.call_at(self._next_at, self._due)


@final
class Client:
    """Ask, obey, and say what came of it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._rng = random.Random(f"{given['seed']} {given['name']}")
        self._tally = Tally()
        self._metrics = PrometheusObserver(service="demo", customers=[*CUSTOMERS, WILD])
        self._lines = Lines(self._obey, self._report)
        self._usual = _Arrivals(self._rng, self._ask_usual)
        self._wild = _Arrivals(self._rng, self._ask_wild)
        self._requests: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._policy = str(given["policy"])
        self._throttle = str(given["throttle"])
        self._is_protected = bool(given["is_protected"])
        self._stopped = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self._caller = self._make()

    async def run(self) -> None:
        """Ask until told to stop."""
        await self._caller.start()
        self._watch()
        await self._lines.start()
        server, _thread = start_http_server(0, addr=self._given["host"])
        self._lines.write({"is": "ready", "pid": os.getpid(), "metrics_port": server.server_port})
        self._lines.begin_reports()
        self._usual.set_rate(self._given["rate"])
        self._wild.set_rate(self._given["wild_rate"])
        following = asyncio.create_task(self._follow_changes())
        stopped = asyncio.create_task(self._stopped.wait())
        # A change that fails ends this process, and is seen to.
        await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        following.cancel()
        self._usual.set_rate(0.0)
        self._wild.set_rate(0.0)
        await asyncio.gather(*self._requests, return_exceptions=True)
        self._lines.stop()

    # Requests.

    def _ask_usual(self) -> None:
        level = self._rng.choices(_LEVELS, _LEVEL_PARTS)[0]
        self._spawn(level, self._rng.choices(_NAMES, _NAME_PARTS)[0])

    def _ask_wild(self) -> None:
        self._spawn(self._rng.choices(_LEVELS, _LEVEL_PARTS)[0], WILD)

    def _spawn(self, level: Criticality, customer: str) -> None:
        self._tally.begun(level, customer)
        task = asyncio.create_task(self._request(level, customer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _request(self, level: Criticality, customer: str) -> None:
        began_at = time.monotonic()
        error: Exception | None = None
        chosen = self._caller
        for attempt in range(1 if self._is_protected else _PLAIN_ATTEMPTS):
            application_attempt.set(attempt + 1)  # In a task of its own.
            try:
                with evenly.request_context(criticality=level, customer=customer):
                    await chosen.ask(self._given["timeout_seconds"])
            except evenly.NoBackend as raised:
                # Nothing was sent.  A plain client would wait for a connection, and in vain.
                error = raised if self._is_protected else TimeoutError("no free connection")
                break
            except Exception as raised:  # noqa: BLE001 -- every kind of failure is an outcome
                error = raised
            else:
                error = None
                break
        self._tally.ended(level, customer, error, time.monotonic() - began_at)

    # What is configured.

    def _make(self) -> Caller:
        plain = {"policy": "round_robin", "throttle": "off"}
        policy = self._policy if self._is_protected else plain["policy"]
        throttle = self._throttle if self._is_protected else plain["throttle"]
        task = ClientTaskConfig(
            policy=PolicyConfig(name=policy),
            throttle=ThrottleConfig(name=throttle),
            membership=MembershipConfig(
                subset_size=self._given["subset_size"], client_index=self._given["index"]
            ),
            active_limit=_ACTIVE_LIMIT,
        )
        if not self._is_protected:
            task = replace(task, retry=replace(task.retry, attempts=1))
        return caller(
            self._given["transport"],
            list(self._given["backends"].values()),
            ClientConfig(task=task),
            tee(self._metrics, self._tally),
        )

    def _watch(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch = self._metrics.watch_client(self._caller)

    def _configure(self, command: Mapping[str, Any]) -> None:
        self._policy = str(command["policy"])
        self._throttle = str(command["throttle"])
        self._is_protected = bool(command["is_protected"])
        self._changed.set()

    async def _follow_changes(self) -> None:
        """Ask through a caller of the newest configuration, and close the one before.

        One change at a time: two that came at once would wait for one another.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            made = self._make()
            await made.start()
            before, self._caller = self._caller, made
            self._watch()
            closing = asyncio.create_task(_close(before, set(self._requests)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "load":
                self._usual.set_rate(float(command["rate"]))
            case "wild":
                self._wild.set_rate(float(command["rate"]))
            case "configure":
                self._configure(command)
            case "stop":
                self._stopped.set()

    def _report(self) -> dict[str, Any]:
        shown = self._caller.snapshot()
        return {
            "is": "client",
            "policy": shown.policy,
            "throttle": self._throttle if self._is_protected else "off",
            "is_protected": self._is_protected,
            **self._tally.shown(),
            "subset": _subset(shown),
            "line": round(shown.throttle.line, 4),
            "throttle_probability": {
                level.name: round(shown.throttle.rejection_probabilities[level], 4)
                for level in Criticality
            },
            "retry_balance": shown.retry_balance,
        }


async def _close(before: Caller, waiting: set[asyncio.Task[None]]) -> None:
    """Close a caller when those that may use it have ended."""
    if waiting:
        await asyncio.wait(waiting)
    await before.close()


def _subset(shown: ClientTaskSnapshot) -> list[dict[str, Any]]:
    return [
        {
            "address": backend.address,
            "state": backend.state.value,
            "weight": round(backend.weight, 4),
            "active": backend.active,
        }
        for backend in shown.backends
        if backend.in_subset
    ]


async def _main() -> None:
    await Client(settings()).run()


if __name__ == "__main__":
    asyncio.run(_main())
