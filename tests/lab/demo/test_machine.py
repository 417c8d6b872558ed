from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.lab.demo.machine import Machine

# Short, but long against what a loop needs to notice the end of a sleep.
WORK = 0.02


def machine(slots: int = 2, speed: float = 1.0) -> Machine:
    return Machine(slots, speed, lambda: None)


async def ended(*tasks: asyncio.Task[float]) -> list[float]:
    return await asyncio.wait_for(asyncio.gather(*tasks), 10.0)


async def test_a_machine_works_on_as_many_requests_as_it_has_slots() -> None:
    made = machine(slots=2)
    tasks = [asyncio.create_task(made.work(WORK)) for _ in range(5)]
    await asyncio.sleep(0)

    assert (made.busy, made.waiting) == (2, 3)
    await ended(*tasks)
    assert (made.busy, made.waiting) == (0, 0)


async def test_work_takes_what_it_costs_over_the_speed() -> None:
    slow = machine(slots=1, speed=0.5)

    assert await slow.work(WORK) == pytest.approx(2 * WORK)
    assert slow.worked_seconds() == pytest.approx(2 * WORK, rel=0.01)


async def test_work_takes_what_the_machine_is_when_it_begins() -> None:
    made = machine(slots=1)
    first, second = (asyncio.create_task(made.work(WORK)) for _ in range(2))
    await asyncio.sleep(0)
    made.speed = 0.5

    assert await ended(first, second) == pytest.approx([WORK, 2 * WORK])


async def test_a_late_timer_costs_no_capacity() -> None:
    made = machine(slots=1)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    tasks = [asyncio.create_task(made.work(WORK)) for _ in range(4)]
    await asyncio.sleep(0)
    while loop.time() < began_at + 10 * WORK:  # The loop is blocked, as on a busy laptop ...
        pass
    for _ in range(20):
        await asyncio.sleep(0)

    # ... and all four slots of time have passed: nobody has to wait for them again.
    assert all(task.done() for task in tasks)


async def test_whoever_leaves_the_line_is_not_worked_on() -> None:
    made = machine(slots=1)
    first, left, last = (asyncio.create_task(made.work(WORK)) for _ in range(3))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)

    assert made.waiting == 1
    await ended(first, last)
    assert made.worked_seconds() == pytest.approx(2 * WORK, rel=0.05)


async def test_what_has_begun_is_finished_whoever_leaves() -> None:
    made = machine(slots=1)
    begun = asyncio.create_task(made.work(WORK))
    await asyncio.sleep(0)
    begun.cancel()
    await asyncio.sleep(0)

    assert made.busy == 1
    await ended(asyncio.create_task(made.work(WORK)))
    assert made.worked_seconds() == pytest.approx(2 * WORK, rel=0.05)


async def test_a_plain_machine_works_for_clients_that_have_left() -> None:
    made = machine(slots=1)
    made.keep_unwanted(is_on=True)
    tasks = [asyncio.create_task(made.work(WORK)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)

    assert made.waiting == 2
    await ended(tasks[0], tasks[2])
    assert made.worked_seconds() == pytest.approx(3 * WORK, rel=0.05)


async def test_protection_drops_those_who_have_left_already() -> None:
    made = machine(slots=1)
    made.keep_unwanted(is_on=True)
    tasks = [asyncio.create_task(made.work(WORK)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[1:]:
        task.cancel()
    await asyncio.sleep(0)
    assert made.waiting == 9

    made.keep_unwanted(is_on=False)

    assert made.waiting == 0
    await ended(tasks[0])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), slots=st.integers(1, 4), plain=st.booleans())
def test_whatever_leaves_and_comes_nothing_is_left_in_the_end(
    seed: int, slots: int, plain: bool
) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        made = machine(slots=slots)
        made.keep_unwanted(is_on=plain)
        tasks: list[asyncio.Task[float]] = []
        for _ in range(40):
            tasks.append(asyncio.create_task(made.work(rng.choice((0.0, 0.0001, 0.001)))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.1:
                made.keep_unwanted(is_on=rng.random() < 0.5)
            assert 0 <= made.busy <= slots
            assert made.waiting >= 0
            await asyncio.sleep(rng.choice((0, 0, 0.0005)))
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10.0)
        await ended(asyncio.create_task(made.work(0.0)))
        # What has begun for someone who left is still being finished.
        while made.busy:
            await asyncio.sleep(0.001)
        assert made.waiting == 0

    asyncio.run(story())
