from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from evenly.runtime.sharing import Registry
from tests.runtime.driven import until


class Service:
    """Note what it is told."""

    def __init__(self, *, can_start: bool = True) -> None:
        self.users = 0
        self.can_start = can_start
        self.told: list[str] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.can_start:
            raise OSError("it cannot start")
        self.told.append("start")

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.told.append("stop")

    def abandon(self) -> None:
        self.told.append("abandon")


async def test_who_comes_with_the_same_key_gets_the_same_service_started_once() -> None:
    registry: Registry[Service] = Registry()
    loop = asyncio.get_running_loop()

    first = registry.share(loop, "a", Service)
    second = registry.share(loop, "a", Service)
    other = registry.share(loop, "b", Service)

    assert first is second
    assert other is not first
    assert first.told == ["start"]
    assert (first.users, other.users) == (2, 1)


async def test_only_the_last_user_stops_it_and_the_next_one_gets_another() -> None:
    registry: Registry[Service] = Registry()
    loop = asyncio.get_running_loop()
    service = registry.share(loop, "a", Service)
    registry.share(loop, "a", Service)

    await registry.release(loop, "a", service)
    assert service.told == ["start"]
    await registry.release(loop, "a", service)

    assert service.told == ["start", "stop"]
    assert registry.share(loop, "a", Service) is not service


async def test_who_comes_while_it_is_being_stopped_gets_another() -> None:
    registry: Registry[Service] = Registry()
    loop = asyncio.get_running_loop()
    service = registry.share(loop, "a", Service)
    release = asyncio.create_task(registry.release(loop, "a", service))
    await asyncio.sleep(0)

    other = registry.share(loop, "a", Service)
    await release

    assert other is not service
    assert service.told == ["start", "stop"]
    assert registry.share(loop, "a", Service) is other


async def test_one_that_cannot_start_is_nobodys() -> None:
    registry: Registry[Service] = Registry()
    loop = asyncio.get_running_loop()

    with pytest.raises(OSError, match="it cannot start"):
        registry.share(loop, "a", lambda: Service(can_start=False))

    assert registry.share(loop, "a", Service).told == ["start"]


async def test_a_use_that_was_dropped_in_another_thread_is_given_up() -> None:
    registry: Registry[Service] = Registry()
    loop = asyncio.get_running_loop()
    service = registry.share(loop, "a", Service)

    await loop.run_in_executor(None, registry.drop, loop, "a", service)

    await until(lambda: service.told == ["start", "stop"])


def test_every_loop_has_its_own_and_what_a_closed_loop_leaves_is_let_go() -> None:
    registry: Registry[Service] = Registry()

    async def share() -> tuple[asyncio.AbstractEventLoop, Service]:
        loop = asyncio.get_running_loop()
        return loop, registry.share(loop, "a", Service)

    first_loop, first = asyncio.run(share())
    assert first.told == ["start"]
    _, second = asyncio.run(share())

    assert first_loop.is_closed()
    assert second is not first
    assert first.told == ["start", "abandon"]


def test_to_drop_a_use_after_its_loop_was_closed_does_nothing() -> None:
    registry: Registry[Service] = Registry()

    async def share() -> tuple[asyncio.AbstractEventLoop, Service]:
        loop = asyncio.get_running_loop()
        return loop, registry.share(loop, "a", Service)

    loop, service = asyncio.run(share())
    registry.drop(loop, "a", service)

    assert service.told == ["start"]


def test_a_loop_is_not_kept_alive_by_what_it_shares() -> None:
    registry: Registry[Service] = Registry()

    async def share() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.get_running_loop()
        registry.share(loop, "a", Service)
        return weakref.ref(loop)

    loop = asyncio.run(share())
    gc.collect()

    assert loop() is None


def test_threads_with_loops_of_their_own_may_share_at_the_same_time() -> None:
    registry: Registry[Service] = Registry()
    threads: list[threading.Thread] = []

    class Loop:
        """Let somebody else come whenever it is looked at."""

        def is_closed(self) -> bool:
            if len(threads) < 3:
                loop: Any = Loop()
                loops.append(loop)
                threads.append(threading.Thread(target=registry.share, args=(loop, "a", Service)))
                threads[-1].start()
                threads[-1].join(0.05)  # It may have to wait for us.
            return False

    loops: list[Any] = [Loop()]
    registry.share(loops[0], "a", Service)
    registry.share(loops[0], "b", Service)
    for thread in threads:
        thread.join(20)

    assert len(threads) == 3
    assert all(registry.share(loop, "a", Service).users == 2 for loop in loops)
