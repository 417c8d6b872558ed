"""Measure how much of its provisioned memory this process uses.

SRE book, chapter 21, "Utilization Signals": "the portion of the memory reserved that is currently
being used".  With a limit, it is the control group's memory, because that is what the kernel kills
for; the highest of the groups that have one:

    utilization = (memory in use − file cache that nobody used lately) / limit

Cache is left out as Kubernetes does it: the kernel takes it back before it refuses anything, and a
backend that reads files would otherwise look full for ever.  Without a limit:

    utilization = resident memory of this process / memory of the machine
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from evenly.signals import cgroup

__all__ = ["MemoryReader"]

# Version 1 says "no limit" by the largest multiple of the page size; no machine has an exbibyte.
_NO_LIMIT_BYTES = 2**60


@final
class MemoryReader:
    """Turn the control group's or the process's memory into a utilization; never raises."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root

    def utilization(self) -> float:
        """Return the part of the limit that is in use; 0 where nothing can be read."""
        limited = self._of_control_group()
        if limited is not None:
            return limited
        used = self._resident_bytes()
        machine = self._machine_bytes()
        return used / machine if used is not None and machine else 0.0

    def _of_control_group(self) -> float | None:
        group = cgroup.find("memory", "memory.max", self._root)
        if group is None:
            return None
        names = (
            ("memory.max", "memory.current", "inactive_file")
            if group.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        highest: float | None = None
        for directory in group.directories:
            limit = cgroup.read_number(directory / names[0])
            used = cgroup.read_number(directory / names[1])
            if used is None or not limit or limit >= _NO_LIMIT_BYTES:
                continue
            cached = _field(cgroup.read_text(directory / "memory.stat"), names[2]) or 0
            utilization = max(0, used - cached) / limit
            if highest is None or utilization > highest:
                highest = utilization
        return highest

    def _resident_bytes(self) -> int | None:
        # The second field of statm is the resident set, in pages (proc(5)).
        fields = (cgroup.read_text(self._root / "proc/self/statm") or "").split()
        pages = cgroup.parse_number(fields[1]) if len(fields) > 1 else None
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")

    def _machine_bytes(self) -> int | None:
        kibibytes = _field(cgroup.read_text(self._root / "proc/meminfo"), "MemTotal:")
        return None if kibibytes is None else kibibytes * 1024


def _field(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return cgroup.parse_number(words[1])
    return None
