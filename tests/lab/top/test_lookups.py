"""Threads that look up names: none holds up another, and none is left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from evenly.lab.top import lookups as lookups_module
from evenly.lab.top.lookups import Lookups

PATIENT = 20.0


async def test_lookups_that_hang_hold_up_nobody() -> None:
    loop = asyncio.get_running_loop()
    lookups = Lookups()
    is_over = threading.Event()
    began = []

    def hang(name: str) -> str:
        began.append(name)
        is_over.wait(60)
        return name

    hanging: list[Any] = [loop.run_in_executor(lookups, hang, f"n{n % 20}") for n in range(40)]
    async with asyncio.timeout(PATIENT):
        assert await loop.run_in_executor(lookups, str.upper, "good") == "GOOD"
    lookups.shutdown()  # It does not wait.
    hanging[0].cancel()  # Who gives up does not take the answer from who asked for the same.
    is_over.set()
    async with asyncio.timeout(PATIENT):
        assert await asyncio.gather(*hanging[1:]) == [f"n{n % 20}" for n in range(1, 40)]
    assert sorted(began) == sorted({f"n{n}" for n in range(20)})  # Each was asked for once.


async def test_a_lookup_that_fails_says_so() -> None:
    loop = asyncio.get_running_loop()

    with pytest.raises(ValueError, match="no number"):
        await loop.run_in_executor(Lookups(), _fail)


def _fail() -> None:
    raise ValueError("no number")


async def test_lookups_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups_module, "LOOKUPS_MAX", 2)
    loop = asyncio.get_running_loop()
    lookups = Lookups()
    is_over = threading.Event()
    hanging: list[Any] = [loop.run_in_executor(lookups, is_over.wait, 60 + n) for n in range(2)]

    with pytest.raises(OSError, match="more than 2 names are being looked up"):
        await loop.run_in_executor(lookups, is_over.wait, 62)
    assert lookups.under_way == 2
    is_over.set()
    async with asyncio.timeout(PATIENT):
        assert await asyncio.gather(*hanging) == [True, True]
        assert await loop.run_in_executor(lookups, str.upper, "good") == "GOOD"
    with pytest.raises(ValueError, match="no number"):
        await loop.run_in_executor(lookups, _fail)
    assert lookups.under_way == 0
