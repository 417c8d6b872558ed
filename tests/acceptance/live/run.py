"""Overload one system once, with real processes, and work out what its users saw."""

from __future__ import annotations

import asyncio
import bisect
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from evenly.core.criticality import Criticality
from tests.acceptance.live.haproxy import configuration
from tests.acceptance.live.settings import (
    BACKENDS,
    CALM_SECONDS,
    CLIENTS,
    CORES,
    DEADLINE_SECONDS,
    MEAN_SECONDS,
    MIX,
    OVERLOAD_ENDS_AT,
    OVERLOAD_SECONDS,
)
from tests.conformance.servers import program
from tests.suites.transports.processes import ROOT, free_port

_START_SECONDS: Final = 60.0
_LEAD_SECONDS: Final = 1.0
_BACK_RATIO: Final = 0.99


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    level: Criticality
    late_seconds: float
    seconds: float
    is_ok: bool

    @property
    def is_in_time(self) -> bool:
        return self.is_ok and self.seconds <= DEADLINE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Say how one system did; every ratio in [0, 1]."""

    critical_plus: float
    critical: float
    sheddable_plus: float
    sheddable: float
    useful: float
    """What was answered in time, times the mean time it takes, of what the backends can do."""
    vain: float
    """What the backends worked beyond that."""
    p50_seconds: float
    p99_seconds: float
    first_critical_plus: float
    """Success in the first second of the overload."""
    first_critical: float
    back_seconds: float
    """From the end of the overload to the first second in which 99 % succeed."""
    calm: float
    """Success before the overload, after a while to get going."""
    late_seconds: float
    """How late a client was at worst: from a tenth of a second, blame the machine."""


def median(runs: Sequence[Figures]) -> Figures:
    """Return the median of every figure."""
    names = [field.name for field in fields(Figures)]
    return Figures(**{n: statistics.median(getattr(run, n) for run in runs) for n in names})


async def overloaded(system: str, times: float, *, seed: int, folder: Path) -> Figures:
    """Offer a system `times` its capacity for a while; `http`, `grpc` or `haproxy`."""
    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(BACKENDS)]
        common: dict[str, object] = {"system": system, "seed": seed}
        backends = await _python(stack, "backend", [common | {"port": port} for port in ports])
        addresses = [f"127.0.0.1:{port}" for port in ports]
        if system == "haproxy":
            addresses = [await _haproxy(stack, addresses, folder)]
        common |= {"times": times, "addresses": addresses}
        seeds = [f"{seed} {index}" for index in range(CLIENTS)]
        clients = await _python(stack, "client", [common | {"seed": seed} for seed in seeds])
        begins_at = time.monotonic() + _LEAD_SECONDS
        said = await asyncio.gather(
            *(client.communicate(f"{begins_at!r}\n".encode()) for client in clients)
        )
        asked = sorted(
            (
                _Asked(at, Criticality(level), late, seconds, is_ok)
                for output, _ in said
                for at, level, late, seconds, is_ok in json.loads(output)
            ),
            key=lambda one: one.at,
        )
        for backend in backends:
            backend.kill()
        worked = [(await backend.communicate())[0] for backend in backends]
    busy_seconds = sum(_worked_seconds(output, begins_at) for output in worked)
    return _figures(asked, busy_seconds)


async def _python(
    stack: AsyncExitStack, module: str, settings: Sequence[Mapping[str, object]]
) -> list[asyncio.subprocess.Process]:
    """Start a process for each of these settings, and wait until all are ready."""
    # A group, so that nobody starts any more when the stack ends them.
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(_start(stack, module, given)) for given in settings]
    return [start.result() for start in starts]


async def _start(
    stack: AsyncExitStack, module: str, given: Mapping[str, object]
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"tests.acceptance.live.{module}",
        json.dumps(given),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    stack.push_async_callback(_end, process)
    assert process.stdout is not None
    async with asyncio.timeout(_START_SECONDS):
        assert await process.stdout.readline() == b"ready\n", f"a {module} did not start"
    return process


async def _haproxy(stack: AsyncExitStack, addresses: Sequence[str], folder: Path) -> str:
    port = free_port()
    file = folder / f"haproxy-{port}.cfg"
    file.write_text(configuration(port, addresses))
    process = await asyncio.create_subprocess_exec(program("haproxy"), "-db", "-f", str(file))
    stack.push_async_callback(_end, process)
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.returncode is None, "HAProxy does not start"
                await asyncio.sleep(0.02)
            else:
                writer.close()
                await writer.wait_closed()
                return f"127.0.0.1:{port}"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


def _worked_seconds(output: bytes, begins_at: float) -> float:
    """Return the core-seconds that one backend worked during the overload."""
    lines: list[list[float]] = [json.loads(line) for line in output.splitlines()]
    begin = bisect.bisect(lines, [begins_at + CALM_SECONDS])
    end = bisect.bisect(lines, [begins_at + OVERLOAD_ENDS_AT])
    (from_at, before), (to_at, after) = lines[begin], lines[end]
    return (after - before) / (to_at - from_at) * OVERLOAD_SECONDS


def _figures(asked: Sequence[_Asked], busy_seconds: float) -> Figures:
    over = [one for one in asked if CALM_SECONDS <= one.at < OVERLOAD_ENDS_AT]
    first = [one for one in over if one.at < CALM_SECONDS + 1.0]
    took = sorted(one.seconds for one in over if one.is_in_time)
    capacity_seconds = BACKENDS * CORES * OVERLOAD_SECONDS
    ended = sum(
        one.is_in_time and CALM_SECONDS <= one.at + one.seconds < OVERLOAD_ENDS_AT for one in asked
    )
    useful = ended * MEAN_SECONDS / capacity_seconds
    served = {level.name.lower(): _ratio(over, level) for level in MIX}
    return Figures(
        **served,
        useful=useful,
        vain=busy_seconds / capacity_seconds - useful,
        p50_seconds=took[len(took) // 2],
        p99_seconds=took[len(took) * 99 // 100],
        first_critical_plus=_ratio(first, Criticality.CRITICAL_PLUS),
        first_critical=_ratio(first, Criticality.CRITICAL),
        back_seconds=_back_seconds([one for one in asked if one.at >= OVERLOAD_ENDS_AT]),
        calm=_ratio([one for one in asked if 3.0 <= one.at < CALM_SECONDS - 1.0]),
        late_seconds=max(one.late_seconds for one in asked),
    )


def _ratio(asked: Sequence[_Asked], level: Criticality | None = None) -> float:
    ends = [one.is_in_time for one in asked if level is None or one.level is level]
    return sum(ends) / len(ends)


def _back_seconds(after: Sequence[_Asked]) -> float:
    """Return when the first sliding second begins in which enough succeed."""
    for first, one in enumerate(after):
        second = [other for other in after[first:] if other.at < one.at + 1.0]
        if _ratio(second) >= _BACK_RATIO:
            return 0.0 if first == 0 else one.at - OVERLOAD_ENDS_AT
    return float("inf")
