from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.errors import ConfigError
from evenly.runtime.gate import StartGate

SLICE = 0.01
IDLE = 0.0003
CALM = 0.005
TICK = 0.000005


class TickingClock:
    """A clock on which looking takes 5 µs, as a turn of the loop does, and work what it takes."""

    def __init__(self) -> None:
        self.now = 1_000.25

    def __call__(self) -> float:
        self.now += TICK
        return self.now


@dataclass
class World:
    """Requests that arrive at a gate and then hold the loop for what they cost."""

    clock: TickingClock = field(default_factory=TickingClock)
    arrived: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    turn: int = 0
    worked: dict[int, float] = field(default_factory=dict)  # seconds per turn of the loop
    calm_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.gate = StartGate(
            slice_seconds=SLICE, idle_seconds=IDLE, calm_seconds=self.calm_seconds, clock=self.clock
        )

    async def request(self, number: int, cost: float) -> None:
        self.arrived.append(number)
        if not self.gate.try_enter():
            await self.gate.enter()
        self.begun.append(number)
        self.clock.now += cost
        self.worked[self.turn] = self.worked.get(self.turn, 0.0) + cost
        self.gate.left(cost)

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def settled(world: World, tasks: list[asyncio.Task[None]]) -> None:
    counting = asyncio.create_task(world.count_turns())
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30.0)
    for _ in range(200):  # A look that nobody waits for any more ends too.
        await asyncio.sleep(0)
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)


async def trained(world: World, cost: float) -> None:
    """Let the gate learn what requests cost, on an idle backend."""
    for _ in range(50):
        world.clock.now += 100 * max(cost, SLICE)
        assert world.gate.try_enter()
        world.gate.left(cost)
    world.gate._begin_slice(world.clock.now)  # as after a look


async def test_a_single_request_begins_at_once_and_schedules_nothing() -> None:
    gate = StartGate()

    assert gate.try_enter()
    assert gate.waiting == 0
    await asyncio.wait_for(StartGate().enter(), 1.0)


async def test_requests_begin_at_once_until_the_slice_is_used_up() -> None:
    world = World()
    await trained(world, 0.002)

    # 0.002 + 0.002 + 0.002 + 0.002 < 0.01, and the fifth brings it to 0.01.
    assert [world.gate.try_enter() for _ in range(6)] == [True] * 5 + [False]


async def test_the_requests_of_a_backend_that_is_mostly_idle_never_wait() -> None:
    world = World()
    for _ in range(100):
        assert world.gate.try_enter()
        world.gate.left(0.02)
        world.clock.now += 0.25  # 0.02 of 0.25 s: less than a tenth of the time


async def test_a_backend_that_works_a_fifth_of_the_time_looks_between() -> None:
    world = World()
    await trained(world, 0.02)

    assert world.gate.try_enter()
    world.clock.now += 0.1
    assert not world.gate.try_enter()


async def test_a_burst_runs_a_slice_per_turn_and_not_all_of_it() -> None:
    world = World()
    await trained(world, 0.002)
    tasks = [asyncio.create_task(world.request(i, 0.002)) for i in range(100)]

    await settled(world, tasks)

    assert world.begun == list(range(100))
    # 100 × 0.002 s in slices of 0.01 s; the last start of a slice may go over it by one request.
    assert max(world.worked.values()) <= SLICE + 0.002 + 1e-9
    assert len(world.worked) >= 100 * 0.002 / (SLICE + 0.002)


async def test_requests_longer_than_a_slice_run_one_per_turn_with_a_look_between() -> None:
    world = World()
    await trained(world, 0.02)
    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(10)]

    await settled(world, tasks)

    assert list(world.worked.values()) == pytest.approx([0.02] * 10)
    turns = list(world.worked)
    # The loop is idle for 0.0003 s, which are 60 turns of 5 µs, before the next one begins.
    idle_turns = round(IDLE / TICK)
    assert all(b - a >= idle_turns for a, b in pairwise(turns))


async def test_arrivals_are_looked_at_before_the_next_request_begins() -> None:
    world = World()
    await trained(world, 0.02)
    seen: list[tuple[int, int]] = []

    async def arrive(number: int) -> None:
        """Be read from a socket: that takes a tenth of a millisecond and a few turns."""
        for _ in range(4):
            await asyncio.sleep(0)
        world.clock.now += 0.0001
        seen.append((number, len(world.begun)))

    async def feed() -> None:
        for number in range(5):  # as gRPC reads them: one after the other
            await arrive(number)

    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(2)]
    tasks.append(asyncio.create_task(feed()))
    await settled(world, tasks)

    # The first request runs before anything has arrived; the second has to wait for all five.
    assert seen == [(number, 1) for number in range(5)]


async def test_a_look_lasts_no_longer_than_the_work_before_it() -> None:
    world = World()
    await trained(world, 0.02)
    world.gate._fastest_turn_seconds = TICK  # It has seen what an empty turn takes.

    async def flood() -> None:
        for _ in range(10_000):  # There is something to read for a second.
            world.clock.now += 0.0001
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(2)]
    flooding = asyncio.create_task(flood())
    before = world.clock.now
    await asyncio.wait_for(asyncio.gather(*tasks), 30.0)
    flooding.cancel()

    # 0.02 s of work, 0.02 s of looking and one turn more, and 0.02 s of work.
    assert 0.06 <= world.clock.now - before <= 0.061
    assert world.begun == [0, 1]


async def test_a_request_that_takes_more_than_others_uses_up_the_slice_when_it_ends() -> None:
    world = World()
    await trained(world, 0.001)
    assert world.gate.try_enter()

    world.gate.left(0.05)

    assert not world.gate.try_enter()


async def test_whoever_is_cancelled_while_waiting_holds_nobody_up() -> None:
    world = World()
    await trained(world, 0.02)
    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(6)]
    await asyncio.sleep(0)
    assert world.gate.waiting == 5

    for number in (1, 2, 5):
        tasks[number].cancel()
    await settled(world, tasks)

    assert world.begun == [0, 3, 4]
    assert world.gate.waiting == 0
    assert not world.gate._is_turning


async def test_a_request_cancelled_between_its_turn_and_its_first_step_frees_its_part() -> None:
    world = World()
    await trained(world, 0.004)
    for _ in range(3):
        assert world.gate.try_enter()  # The slice is used up: 0.012 s.
    waiting = [asyncio.create_task(world.request(i, 0.004)) for i in range(2)]
    await asyncio.sleep(0)
    assert world.gate.waiting == 2
    while world.gate._queue:  # until they are let through; they run one turn later
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await settled(world, waiting)

    assert world.begun == []
    assert world.gate.waiting == 0
    # Nothing has begun since the look, so three requests fit into the slice: 0.004 · 3 > 0.01.
    assert [world.gate.try_enter() for _ in range(4)] == [True, True, True, False]


async def test_requests_of_unknown_cost_begin_one_by_one() -> None:
    world = World()

    assert world.gate.mean_seconds == 0.0
    assert [world.gate.try_enter() for _ in range(2)] == [True, False]


def test_the_mean_follows_what_requests_took_but_not_a_long_stream() -> None:
    gate = StartGate()
    gate.left(0.02)
    assert gate.mean_seconds == 0.02

    gate.left(0.01)
    assert gate.mean_seconds == pytest.approx(0.02 + 0.1 * (0.01 - 0.02))

    gate.left(3600.0)  # counts as 0.1 s
    assert gate.mean_seconds == pytest.approx(0.019 + 0.1 * (0.1 - 0.019))


async def test_a_slow_machine_is_idle_too() -> None:
    # An empty turn takes 0.1 ms here: four times what is taken for one at first sight.
    world = World()
    await trained(world, 0.02)

    def slow_clock() -> float:
        world.clock.now += 0.0001
        return world.clock.now

    world.gate._clock = slow_clock
    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(3)]
    before = world.clock.now
    await settled(world, tasks)

    # Two looks of 0.0003 s and three times 0.02 s; looks up to the limit would take 0.04 s more.
    assert world.clock.now - before < 3 * 0.02 + 0.01


@pytest.mark.parametrize(
    ("calm_seconds", "cost", "waited"),
    [
        (CALM, 0.0002, 0),  # 20 · 0.0002 s are 0.8 of what is calm, a turn.
        (CALM, 0.0003, 750),  # 1.2 of it: as without, a slice in all.
        (0.0, 0.0002, 750),
    ],
)
async def test_turns_that_work_little_need_no_look(
    calm_seconds: float, cost: float, waited: int
) -> None:
    world = World(calm_seconds=calm_seconds)
    await trained(world, cost)
    refused = 0
    for _ in range(50):
        refused += [world.gate.try_enter() for _ in range(20)].count(False)
        await asyncio.sleep(0)

    if waited:
        # 1,000 ask, and a slice has room for 33 or 50.
        assert refused >= waited
        await world.gate.enter()  # After a look they begin again.
        assert world.gate.try_enter()
    else:
        assert refused == 0


@pytest.mark.parametrize(("lasts", "waits"), [(0.0099, False), (0.0101, True)])
async def test_a_turn_that_lasts_is_no_look_whatever_was_put_down(
    lasts: float, waits: bool
) -> None:
    world = World(calm_seconds=CALM)
    await trained(world, 0.0001)
    entered: list[bool] = []
    for _ in range(20):
        entered += [world.gate.try_enter() for _ in range(40)]  # 0.004 s: a look, by that.
        world.clock.now += lasts  # One of them was dear, and was not metered.
        await asyncio.sleep(0)

    assert (False in entered) is waits


async def test_calm_or_not_a_burst_runs_a_slice_per_turn() -> None:
    world = World(calm_seconds=CALM)
    await trained(world, 0.002)
    tasks = [asyncio.create_task(world.request(i, 0.002)) for i in range(100)]

    await settled(world, tasks)

    assert world.begun == list(range(100))
    assert max(world.worked.values()) <= SLICE + 0.002 + 1e-9


async def test_a_turn_that_works_long_is_no_look_for_who_is_still_connecting() -> None:
    world = World(calm_seconds=CALM)
    await trained(world, 0.02)
    seen: list[int] = []

    async def connect() -> None:
        for _ in range(5):  # turns, until a new connection was accepted and read
            await asyncio.sleep(0)
        seen.append(len(world.begun))

    tasks = [asyncio.create_task(world.request(i, 0.02)) for i in range(6)]
    tasks.append(asyncio.create_task(connect()))
    await settled(world, tasks)

    assert seen == [1]


async def test_a_note_of_a_turn_does_not_end_a_look() -> None:
    world = World(calm_seconds=CALM)
    await trained(world, 0.002)
    assert world.gate.try_enter()  # It asks for the next turn ...
    world.gate.left(0.05)  # ... and took more than a slice.
    waiting = asyncio.create_task(world.request(0, 0.002))
    for _ in range(3):
        await asyncio.sleep(0)

    assert world.begun == []  # 0.0003 s are 60 turns.
    await settled(world, [waiting])
    assert world.begun == [0]


def test_others_count_in_the_mean_at_what_they_are_put_down_at() -> None:
    all_metered, some = StartGate(), StartGate()
    for gate in (all_metered, some):
        gate.left(0.005)
    for _ in range(31):
        all_metered.left(0.0001)
    all_metered.left(0.0002)
    some.left(0.0002, 31, 0.0001)

    assert some.mean_seconds == pytest.approx(all_metered.mean_seconds)


def test_a_loop_that_was_closed_holds_nobody_up_on_the_next() -> None:
    world = World(calm_seconds=CALM)

    async def begin() -> list[bool]:
        # Closed before it turns: nobody hears of that.
        return [world.gate.try_enter() for _ in range(2)]

    async def begin_again() -> None:
        await asyncio.wait_for(world.request(1, 0.001), 5.0)
        await settled(world, [asyncio.create_task(world.request(2, 0.001))])

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(begin()) == [True, False]
    finally:
        loop.close()
    asyncio.run(begin_again())

    assert world.begun == [1, 2]


@pytest.mark.parametrize("value", [-1.0, math.nan, 0.0101])
def test_calm_is_a_part_of_a_slice(value: float) -> None:
    with pytest.raises(ConfigError, match="calm_seconds"):
        StartGate(calm_seconds=value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, 2.0])
def test_a_slice_out_of_bounds_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="slice_seconds"):
        StartGate(slice_seconds=value)


@settings(max_examples=60)
@given(
    costs=st.lists(st.sampled_from([0.0, 0.0001, 0.001, 0.004, 0.02, 0.15]), max_size=40),
    seed=st.integers(min_value=0, max_value=2**32),
    cancelled_ratio=st.sampled_from([0.0, 0.3, 0.9]),
    calm_seconds=st.sampled_from([0.0, CALM]),
)
def test_everyone_begins_once_in_the_order_of_arrival_and_nothing_is_left_behind(
    costs: list[float], seed: int, cancelled_ratio: float, calm_seconds: float
) -> None:
    luck = random.Random(seed)
    world = World(calm_seconds=calm_seconds)

    async def run() -> set[int]:
        tasks: list[asyncio.Task[None]] = []
        cancelled: set[int] = set()
        for number, cost in enumerate(costs):
            tasks.append(asyncio.create_task(world.request(number, cost)))
            for _ in range(luck.choice((0, 0, 1, 5, 80))):
                await asyncio.sleep(0)
            if luck.random() < cancelled_ratio:
                victim = luck.randrange(len(tasks))
                tasks[victim].cancel()
                cancelled.add(victim)
        await settled(world, tasks)
        return cancelled

    cancelled = asyncio.run(run())

    assert len(set(world.begun)) == len(world.begun)
    assert set(range(len(costs))) - cancelled <= set(world.begun)
    order = [number for number in world.arrived if number in set(world.begun)]
    assert world.begun == order
    assert world.gate.waiting == 0
    assert not world.gate._queue
    assert not world.gate._is_turning


async def test_when_nobody_waits_any_more_the_next_begins_at_once() -> None:
    world = World()
    world.gate.left(SLICE)
    assert world.gate.try_enter()  # The slice is used up now.
    assert not world.gate.try_enter()
    await world.gate.enter()

    assert world.gate.waiting == 0
    world.clock.now += 60.0
    assert world.gate.try_enter()
