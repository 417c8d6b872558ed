"""Wait for what happens in other processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

__all__ = ["is_alive", "until"]

# No time that anything should take: only to end a test that would hang.
_GIVE_UP_SECONDS = 30.0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_GIVE_UP_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


def is_alive(pid: int | None) -> bool:
    """Whether there is a process, also one that has ended and that nobody has waited for."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
