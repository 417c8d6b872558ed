"""Be one backend with two emulated cores: `python -m tests.acceptance.live.backend SETTINGS`.

It writes `ready`, and from then on a line now and then: the time, and the core-seconds worked so
far.  `plain` is the same application without evenly, for HAProxy to protect.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import sys
import time
from typing import Any, Final

import uvicorn

import evenly
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import NO_OBSERVER
from evenly.lab.demo.machine import Machine
from evenly.lab.demo.talk import serve
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from tests.acceptance.live.settings import CORES, MEAN_SECONDS, SIGMA

_TICK_SECONDS: Final = 0.1
_CARDS: Final = 250


class _Deck:
    """Deal lognormal times from a shuffled deck of quantiles.

    With dice, half a minute of work would differ by 1.3 % from run to run: more than what separates
    the systems.  The longest card is 0.75 s, so no request misses its deadline by its own length.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        normal = statistics.NormalDist(0.0, SIGMA)
        cards = [math.exp(normal.inv_cdf((i + 0.5) / _CARDS)) for i in range(_CARDS)]
        scale = MEAN_SECONDS / statistics.fmean(cards)
        self._cards = [scale * card for card in cards]
        self._left: list[float] = []

    def deal(self) -> float:
        """Return how long the next request takes."""
        if not self._left:
            self._left = self._cards.copy()
            self._rng.shuffle(self._left)
        return self._left.pop()


class _Backend:
    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._deck = _Deck(random.Random(f"{given['seed']} {given['port']}"))
        self._machine = Machine(CORES, 1.0, self._changed)
        self._runtime: BackendRuntime | None = None
        self._worked_seconds = 0.0
        self._read_at = time.monotonic()

    async def run(self) -> None:
        given = self._given
        if given["system"] == "haproxy":
            await self._serve_plainly()
            return
        task = BackendTaskConfig(cores=float(CORES))
        await serve(
            given["system"],
            self._answer,
            host="127.0.0.1",
            port=given["port"],
            config=BackendConfig(task=task, own_signals=("cpu", "runnable")),
            observer=NO_OBSERVER,
            ready=self._ready,
        )

    async def _serve_plainly(self) -> None:
        async def app(scope: Any, _receive: Any, send: Any) -> None:
            await self._machine.work(self._deck.deal())
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        options: dict[str, Any] = {"lifespan": "off", "access_log": False, "log_level": "warning"}
        config = uvicorn.Config(app, port=self._given["port"], timeout_keep_alive=60, **options)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        self._ready(self._given["port"], None)
        await serving

    async def _answer(self) -> None:
        evenly.charge(await self._machine.work(self._deck.deal()))

    def _ready(self, _port: int, runtime: BackendRuntime | None) -> None:
        self._runtime = runtime
        print("ready", flush=True)
        self._tick()

    def _changed(self) -> None:
        if self._runtime is not None:
            self._runtime.record_signal("runnable", self._machine.busy + self._machine.waiting)

    def _tick(self) -> None:
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        now = time.monotonic()
        worked_seconds = self._machine.worked_seconds()
        if self._runtime is not None and now > self._read_at:
            used = (worked_seconds - self._worked_seconds) / (now - self._read_at)
            self._runtime.record_signal("cpu", used / CORES)
        self._worked_seconds = worked_seconds
        self._read_at = now
        print(json.dumps([now, worked_seconds]), flush=True)


async def _main() -> None:
    await _Backend(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    asyncio.run(_main())
