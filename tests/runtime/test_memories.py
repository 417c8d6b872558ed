from __future__ import annotations

import asyncio
import os
import random
import threading

from evenly.core.client_task import ClientTask, ClientTaskConfig, ClientTaskMemory
from evenly.core.overload.retry import RetryBudget, RetryConfig
from evenly.core.overload.throttle import NoThrottle
from evenly.runtime.client import ClientRuntime
from evenly.runtime.memories import MEMORIES, Memories
from tests.runtime.driven import Transport, configured

TARGET = "static:127.0.0.1:1"


def memory() -> ClientTaskMemory:
    return ClientTaskMemory(throttle=NoThrottle(), retry_budget=RetryBudget(RetryConfig()))


def test_it_keeps_what_a_list_would_within_its_bound_and_gives_each_to_one_only() -> None:
    for seed in range(20):
        luck = random.Random(seed)
        memories = Memories(max_memories=5)
        model: list[tuple[str, ClientTaskMemory]] = []
        for _ in range(200):
            key = luck.choice("abcdefgh")
            if luck.random() < 0.6:
                model.append((key, memory()))
                memories.leave(*model[-1])
                del model[:-5]
            else:
                last = next((left for left in reversed(model) if left[0] == key), None)
                assert memories.take(key) is (None if last is None else last[1]), f"seed {seed}"
                if last is not None:
                    model = [left for left in model if left[1] is not last[1]]
            assert len(memories) == len(model), f"seed {seed}"


def test_threads_that_ask_at_once_get_each_memory_once() -> None:
    memories = Memories()
    for _ in range(50):
        memories.leave("a", memory())
    taken: list[ClientTaskMemory | None] = []
    threads = [
        threading.Thread(target=lambda: taken.extend(memories.take("a") for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len({id(one) for one in taken if one is not None}) == 50
    assert taken.count(None) == 30


def test_a_forked_child_has_none_of_its_parents_even_if_somebody_held_the_lock() -> None:
    MEMORIES.leave("a", memory())
    with MEMORIES._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if MEMORIES.take("a") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert MEMORIES.take("a") is not None


def test_a_client_task_that_has_left_its_memory_does_not_touch_it_any_more() -> None:
    def made() -> ClientTask:
        return ClientTask(ClientTaskConfig(), clock=lambda: 0.0, rng=random.Random(1))

    first, second = made(), made()
    first._retry_budget.take()
    left = first.leave_memory()
    first._retry_budget.take()
    second.remember(left)

    assert (left.retry_budget.balance, second.snapshot().retry_balance) == (2.0, 2.0)
    assert first._throttle is not left.throttle


def begun(target: str = TARGET, part: object = None) -> ClientRuntime:
    runtime = ClientRuntime(target, configured(), part=part)
    transport = Transport()
    transport.runtime = runtime
    runtime.start(asyncio.get_running_loop(), transport)
    return runtime


async def ended(*runtimes: ClientRuntime) -> None:
    for runtime in runtimes:
        runtime.stop()
        await runtime.stopped()


async def test_runtimes_alive_at_once_share_nothing_and_the_next_has_the_last_ones() -> None:
    first, second = begun(), begun()
    assert first.task._throttle is not second.task._throttle
    throttle = first.task._throttle
    await ended(second, first)

    others = [begun("static:127.0.0.1:2"), begun(part="another host")]
    assert len(MEMORIES) == 2
    third = begun()
    assert third.task._throttle is throttle
    await ended(third, *others)
    third.abandon()  # Once is enough.
    assert len(MEMORIES) == 4


def test_what_a_closed_loop_leaves_is_kept_when_it_is_abandoned() -> None:
    async def leave_open() -> ClientRuntime:
        return begun()

    runtime = asyncio.run(leave_open())
    throttle = runtime.task._throttle
    assert len(MEMORIES) == 0
    runtime.abandon()

    async def come_next() -> bool:
        following = begun()
        is_same = following.task._throttle is throttle
        await ended(following)
        return is_same

    assert asyncio.run(come_next())
