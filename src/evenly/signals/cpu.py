"""Measure how much of its provisioned CPU this process uses.

SRE book, chapter 21, "Utilization Signals": "utilization is just a measurement of the CPU rate
(i.e., the current CPU rate divided by the total CPUs reserved for the task)".

    utilization = (CPU seconds used / seconds passed) / cores

    cores = min(CPUs this process may run on, quota / period of each control group)

In a container the quota is what counts: half a core on a machine of 64 is exhausted at 0.8 % of it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from evenly.core.clock import Clock
from evenly.signals import cgroup

__all__ = ["CpuReader", "effective_cores"]

# The kernel's least quota is 1 ms, its longest period 1 s.
_LEAST_CORES = 0.001
_QUOTA_SECONDS = 1.0


def effective_cores(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use at once; a fraction where the quota is one.

    Without a control group, without a quota ("max", −1), or where the files are garbage: the CPUs
    of the process's affinity mask.  Never raises, never returns zero.
    """
    cores = float(_allowed_cpus())
    group = cgroup.find("cpu", "cpu.max", root)
    if group is not None:
        for directory in group.directories:
            quota = _quota_v2(directory) if group.version == 2 else _quota_v1(directory)
            if quota is not None and quota < cores:
                cores = quota
    return max(cores, _LEAST_CORES)


@final
class CpuReader:
    """Turn the process's CPU clock into a utilization.

    The quota is looked up anew each second, since containers are resized while they run; that takes
    0.1 ms and more.  Several workers in one container share its quota; each sees its own part of
    the utilization, and their sum is the container's.
    """

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock: Clock = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._root = root
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._read_at = clock()
        self._used_seconds = cpu_clock()
        self._utilization = 0.0
        self._cores = 0.0
        self._cores_until = -math.inf

    def utilization(self) -> float:
        """Return the utilization since the last reading, 0 and up; 1 is all that is provisioned.

        If no time has passed, it is the last one again, at first 0.
        """
        now = self._clock()
        used_seconds = self._cpu_clock()
        passed_seconds = now - self._read_at
        if passed_seconds > 0.0:
            if now >= self._cores_until:
                self._cores = effective_cores(self._root)
                self._cores_until = now + _QUOTA_SECONDS
            rate = max(0.0, used_seconds - self._used_seconds) / passed_seconds
            self._utilization = rate / self._cores
            self._read_at = now
            self._used_seconds = used_seconds
        return self._utilization


def _allowed_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1


def _quota_v2(directory: Path) -> float | None:
    quota, _, period = (cgroup.read_text(directory / "cpu.max") or "").strip().partition(" ")
    return _ratio(cgroup.parse_number(quota), cgroup.parse_number(period))


def _quota_v1(directory: Path) -> float | None:
    return _ratio(
        cgroup.read_number(directory / "cpu.cfs_quota_us"),
        cgroup.read_number(directory / "cpu.cfs_period_us"),
    )


def _ratio(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota and period else None
