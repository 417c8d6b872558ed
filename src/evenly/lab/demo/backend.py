"""Be one backend of the demo: `python -m evenly.lab.demo.backend SETTINGS`.

It is a backend like any other, with `evenly.grpc.server` or `evenly.http.Middleware`.  Its work is
emulated (`evenly.lab.demo.machine`), and so it records `cpu` and `runnable` itself; `is_real_cpu`
burns CPU instead, and leaves the signals to evenly.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from typing import Any, Final, final

from prometheus_client import start_http_server

import evenly
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.observer import Observer
from evenly.core.overload.cost import CostConfig
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.demo.lines import Lines, settings
from evenly.lab.demo.machine import Machine
from evenly.lab.demo.talk import Broken, serve
from evenly.observe.prometheus import PrometheusObserver
from evenly.observe.tee import tee
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig

__all__ = ["Backend"]

_SIGNAL_SECONDS: Final = 0.1
# What is shown is averaged: a machine of two cores is idle or full from one moment to the next.
_SHOWN_SECONDS: Final = 3.0
_UNLIMITED: Final = 1e6


@final
class _Tally(Observer):
    """Count for the page what Prometheus counts for everyone."""

    def __init__(self) -> None:
        self.ok = 0
        self.failed = 0
        self.rejected: dict[str, Counter[str]] = {}

    def request_rejected(self, request: Request, reason: Reason) -> None:
        """Count it by reason and criticality."""
        self.rejected.setdefault(reason.name, Counter())[request.criticality.name] += 1

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        """Count it by outcome."""
        del request, cost, seconds
        if outcome is Outcome.OK:
            self.ok += 1
        else:
            self.failed += 1


@final
class Backend:
    """Work, obey, and say how it is."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._tally = _Tally()
        self._speed = float(given["speed"])
        self._machine = Machine(int(given["slots"]), self._speed, self._changed)
        self._factor = 1.0
        self._is_failing = False
        self._is_protected = bool(given["is_protected"])
        self._runtime: BackendRuntime | None = None
        self._lines = Lines(self._obey, self._report)
        self._worked_seconds = 0.0
        self._read_at = self._began_at = time.monotonic()
        self._utilization = 0.0
        self._metrics = PrometheusObserver(service="demo", customers=list(given["customers"]))

    async def run(self) -> None:
        """Serve until SIGTERM."""
        await self._lines.start()
        given = self._given
        await serve(
            given["transport"],
            self._burn if given["is_real_cpu"] else self._answer,
            host=given["host"],
            port=given["port"],
            config=self._config(),
            observer=tee(self._metrics, self._tally),
            ready=self._ready,
        )
        self._lines.stop()

    def _config(self) -> BackendConfig:
        given = self._given
        is_real_cpu = bool(given["is_real_cpu"])
        task = BackendTaskConfig(
            cores=1.0 if is_real_cpu else float(given["slots"]),
            cost=CostConfig(compute_units=self._speed),
            quota=QuotaConfig(limits=given["customers"], default_limit=given["default_limit"]),
            drain_seconds=10.0,
        )
        return BackendConfig(task=task, own_signals=() if is_real_cpu else ("cpu", "runnable"))

    def _ready(self, port: int, runtime: BackendRuntime) -> None:
        self._runtime = runtime
        self._protect(is_on=self._is_protected)
        self._metrics.watch_backend(runtime)
        server, _thread = start_http_server(0, addr=self._given["host"])
        self._lines.write(
            {
                "is": "listening",
                "port": port,
                "metrics_port": server.server_port,
                "pid": os.getpid(),
            }
        )
        self._tick()
        self._lines.begin_reports()

    # Work.

    async def _answer(self) -> None:
        if self._is_failing:
            raise Broken("told to fail fast")
        seconds = await self._machine.work(self._given["work_seconds"])
        evenly.charge(seconds)

    async def _burn(self) -> None:
        if self._is_failing:
            raise Broken("told to fail fast")
        end = time.thread_time() + self._given["work_seconds"] * self._factor / self._speed
        while time.thread_time() < end:
            pass

    # Signals.

    def _changed(self) -> None:
        if self._runtime is not None and not self._given["is_real_cpu"]:
            machine = self._machine
            self._runtime.record_signal("runnable", machine.busy + machine.waiting)

    def _tick(self) -> None:
        asyncio.get_running_loop().call_later(_SIGNAL_SECONDS, self._tick)
        now = time.monotonic()
        worked_seconds = self._machine.worked_seconds()
        seconds = now - self._read_at
        if seconds <= 0.0:
            return
        value = (worked_seconds - self._worked_seconds) / seconds / self._machine.slots
        self._worked_seconds = worked_seconds
        self._read_at = now
        # A process that has just begun has no more than that to average over.
        over_seconds = min(_SHOWN_SECONDS, now - self._began_at)
        gain = 1.0 - math.exp(-seconds / over_seconds)
        self._utilization += gain * (value - self._utilization)
        if self._runtime is not None and not self._given["is_real_cpu"]:
            self._runtime.record_signal("cpu", value)
        self._changed()

    # What the supervisor says, and is told.

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "slow":
                self._factor = float(command["factor"])
                self._machine.speed = self._speed / self._factor
            case "fail":
                self._is_failing = bool(command["is_on"])
            case "protect":
                self._protect(is_on=bool(command["is_on"]))

    def _protect(self, *, is_on: bool) -> None:
        self._is_protected = is_on
        self._machine.keep_unwanted(is_on=not is_on)
        if self._runtime is not None:
            limits = dict(self._given["customers"])
            limits[""] = self._given["default_limit"]
            if not is_on:
                limits = dict.fromkeys(limits, _UNLIMITED)
            with self._runtime.lock:
                self._runtime.task.update_quotas(limits)
                self._runtime.task.limits_queue = is_on
            self._changed()

    def _report(self) -> dict[str, Any]:
        shown = None if self._runtime is None else self._runtime.snapshot().task
        utilization = self._utilization
        if self._given["is_real_cpu"] and shown is not None:
            utilization = shown.reported_utilization
        return {
            "is": "backend",
            "state": "healthy" if shown is not None and not shown.is_lame_duck else "lame duck",
            "utilization": round(utilization, 4),
            "active": 0 if shown is None else shown.active,
            "waiting": self._machine.waiting,
            "cut": 0.0 if shown is None else round(shown.cut, 4),
            "ok": self._tally.ok,
            "failed": self._tally.failed,
            "rejected": self._tally.rejected,
        }


async def _main() -> None:
    await Backend(settings()).run()


if __name__ == "__main__":
    asyncio.run(_main())
