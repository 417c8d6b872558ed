"""Find the control groups that limit this process, and read their files.

A container's limits are in its control group and in those above it, each of which holds.  Version 2
has one tree, version 1 one per controller; a machine may have both, with each controller in one.

Nothing here raises: a file that is missing, unreadable or garbage reads as `None`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import final

__all__ = ["Cgroup", "find", "parse_number", "read_number", "read_text"]

_LONGEST_FILE = 65_536


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """Be where one controller's files for this process are."""

    version: int
    directories: tuple[Path, ...]
    """The process's own group first, then each one above it."""


def find(controller: str, file_v2: str, root: Path) -> Cgroup | None:
    """Return the groups of `controller` ("cpu", "memory"), or `None` where there are none.

    Version 2 is taken where it has `file_v2` somewhere on the way up: on hybrid machines its tree
    exists without the controller.  `root` is "/" except in tests.
    """
    mounts = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        # A line has hierarchy number, controllers and path (cgroups(7)); version 2 is number 0.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in (mounts, mounts / "unified"):
                group = Cgroup(version=2, directories=_directories(mount, path))
                if any(_is_file(directory / file_v2) for directory in group.directories):
                    return group
        elif controller in controllers.split(","):
            for name in (controllers, controller):
                if _is_directory(mounts / name):
                    return Cgroup(version=1, directories=_directories(mounts / name, path))
    return None


def read_text(path: Path) -> str | None:
    """Return what a small file says."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_LONGEST_FILE)
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number that is all of a file; "max" and anything else is `None`."""
    return parse_number(read_text(path))


def parse_number(text: str | None) -> int | None:
    """Return a whole number ≥ 0, or `None`; 20 digits are enough for 64 bits."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _directories(mount: Path, path: str) -> tuple[Path, ...]:
    # Inside a container the path may be the host's, and the mount already shows the container's
    # own group: then the levels that do not exist here are left out.
    own = PurePosixPath(path.strip("/"))
    if ".." in own.parts:  # The process's group lies outside of this cgroup namespace.
        return (mount,)
    levels = [mount / level for level in (own, *own.parents)]
    return tuple(level for level in levels if _is_directory(level))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
