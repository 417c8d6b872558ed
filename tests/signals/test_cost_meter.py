from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import math
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import pytest

import evenly
from evenly.context import (
    ContextThreadPoolExecutor,
    current_meter,
    current_request,
    request_context,
    run_in_thread,
)
from evenly.signals.cost_meter import CostMeter

T = TypeVar("T")


class FakeCpu:
    """A CPU clock of each thread that advances only when work is done in it."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self.reads = 0

    @property
    def nanoseconds(self) -> int:
        return getattr(self._thread, "nanoseconds", 7_000_000_123)

    def __call__(self) -> int:
        self.reads += 1
        return self.nanoseconds

    def work(self, nanoseconds: int) -> None:
        self._thread.nanoseconds = self.nanoseconds + nanoseconds


@pytest.fixture
def cpu() -> FakeCpu:
    return FakeCpu()


@pytest.fixture
async def loop() -> AsyncGenerator[asyncio.AbstractEventLoop, None]:
    running = asyncio.get_running_loop()
    yield running
    assert running.get_task_factory() is None


def spent(meter: CostMeter) -> int:
    return round(meter.cpu_seconds * 1e9)


async def steps(cpu: FakeCpu, *nanoseconds: int) -> str:
    for each in nanoseconds:
        cpu.work(each)
        await asyncio.sleep(0)
    return "done"


async def test_each_step_is_charged_and_the_loop_in_between_is_not(cpu: FakeCpu) -> None:
    meter = CostMeter(cpu)
    asyncio.get_running_loop().call_soon(cpu.work, 1_000_000)  # somebody else's callback

    assert await meter.run(steps(cpu, 10, 20, 30)) == "done"

    assert spent(meter) == 60
    assert cpu.nanoseconds - 7_000_000_123 == 1_000_060


async def test_interleaved_requests_are_told_apart(cpu: FakeCpu) -> None:
    first, second = CostMeter(cpu), CostMeter(cpu)

    await asyncio.gather(first.run(steps(cpu, 1, 2, 3)), second.run(steps(cpu, 100, 200, 300, 400)))

    assert (spent(first), spent(second)) == (6, 1000)


async def test_the_clock_is_read_twice_a_step(cpu: FakeCpu) -> None:
    await CostMeter(cpu).run(steps(cpu, 1, 1, 1))

    assert cpu.reads == 2 * 4  # three steps that end in an await, and the one that returns


async def test_child_tasks_and_theirs_are_charged(
    cpu: FakeCpu, loop: asyncio.AbstractEventLoop
) -> None:
    async def child() -> None:
        cpu.work(100)
        await asyncio.create_task(steps(cpu, 1000, 1000))

    async def handler() -> None:
        cpu.work(10)
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    meter = CostMeter(cpu)
    await meter.run(handler())
    await asyncio.create_task(steps(cpu, 7))  # outside: nobody's

    assert spent(meter) == 10 + 2 * 100 + 4 * 1000


async def test_a_task_in_a_context_of_its_own_is_not_charged(
    cpu: FakeCpu, loop: asyncio.AbstractEventLoop
) -> None:
    meter = CostMeter(cpu)

    async def handler() -> None:
        await loop.create_task(steps(cpu, 5), context=contextvars.Context())
        await loop.create_task(steps(cpu, 50), context=contextvars.copy_context())

    await meter.run(handler())

    assert spent(meter) == 50


async def test_a_child_cancelled_before_its_first_step_leaves_no_warning(
    cpu: FakeCpu, loop: asyncio.AbstractEventLoop
) -> None:
    async def handler() -> None:
        task = asyncio.create_task(steps(cpu, 5))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    meter = CostMeter(cpu)
    await meter.run(handler())
    gc.collect()  # pytest turns "coroutine was never awaited" into a failure

    assert spent(meter) == 0


async def test_a_childs_name_and_stack_read_as_without_a_meter(
    cpu: FakeCpu, loop: asyncio.AbstractEventLoop
) -> None:
    async def handler() -> tuple[str, str, list[str]]:
        task = loop.create_task(steps(cpu, 5), name="a child")
        await asyncio.sleep(0)
        found = (task.get_name(), repr(task), [frame.f_code.co_name for frame in task.get_stack()])
        await task
        return found

    name, representation, stack = await CostMeter(cpu).run(handler())

    assert name == "a child"
    assert "coro=<steps()" in representation
    assert stack == ["steps"]


async def test_a_meter_inside_a_meter_takes_its_part_over(cpu: FakeCpu) -> None:
    outer, inner = CostMeter(cpu), CostMeter(cpu)

    async def handler() -> None:
        cpu.work(1)
        await inner.run(steps(cpu, 10, 10))
        cpu.work(2)
        assert current_meter.get() is outer

    await outer.run(handler())

    assert (spent(outer), spent(inner)) == (3, 20)
    assert current_meter.get() is None


async def test_the_same_meter_twice_charges_once(cpu: FakeCpu) -> None:
    meter = CostMeter(cpu)

    async def handler() -> None:
        cpu.work(1)
        await meter.run(steps(cpu, 10, 10))

    await meter.run(handler())

    assert spent(meter) == 21


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_an_eager_childs_first_step_is_charged_once(cpu: FakeCpu) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    meter, other = CostMeter(cpu), CostMeter(cpu)

    async def handler() -> None:
        cpu.work(1)
        child = asyncio.create_task(steps(cpu, 10, 10))
        stranger = asyncio.create_task(other.run(steps(cpu, 500)))
        cpu.work(2)
        await child
        await stranger

    await meter.run(handler())

    assert (spent(meter), spent(other)) == (23, 500)
    assert loop.get_task_factory() is asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]


async def test_exceptions_pass_and_what_was_spent_stays(cpu: FakeCpu) -> None:
    error = KeyError("x")

    async def handler() -> None:
        await asyncio.sleep(0)
        cpu.work(40)
        raise error

    meter = CostMeter(cpu)
    with pytest.raises(KeyError) as caught:
        await meter.run(handler())

    assert caught.value is error
    assert spent(meter) == 40
    assert current_meter.get() is None


async def test_a_refused_wait_is_thrown_in_and_may_be_survived(cpu: FakeCpu) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handler() -> str:
        try:
            await future
        except OSError as error:
            cpu.work(9)
            await asyncio.sleep(0)
            return str(error)
        return "nothing was thrown"

    meter = CostMeter(cpu)
    task = asyncio.create_task(meter.run(handler()))
    await asyncio.sleep(0)
    future.set_exception(OSError("lost"))

    assert await task == "lost"
    assert spent(meter) == 9


def test_an_exception_thrown_in_leaves_no_reference_cycle(cpu: FakeCpu) -> None:
    class Lost(Exception):  # Only classes of one's own can be referred to weakly.
        pass

    reference: weakref.ref[Lost] | None = None
    running = CostMeter(cpu).run(steps(cpu, 1))
    running.send(None)
    gc.collect()
    gc.disable()
    try:
        running.throw(Lost())
    except Lost as error:
        reference = weakref.ref(error)
    finally:
        gc.enable()

    assert reference is not None
    assert reference() is None


async def test_cancellation_passes_and_the_clean_up_is_charged(cpu: FakeCpu) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cpu.work(5)
            await asyncio.sleep(0)
            cpu.work(6)

    meter = CostMeter(cpu)
    task = asyncio.create_task(meter.run(handler()))
    await asyncio.sleep(0)
    task.cancel("enough")

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert task.cancelled()
    assert spent(meter) == 11


async def test_a_timeout_inside_works(cpu: FakeCpu) -> None:
    async def handler() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(3600)
        except TimeoutError:
            return "late"
        return "in time"

    assert await CostMeter(cpu).run(handler()) == "late"


def test_a_dropped_coroutine_is_closed_and_its_clean_up_charged(cpu: FakeCpu) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            cpu.work(3)

    meter = CostMeter(cpu)
    running = meter.run(handler())
    running.send(None)
    running.close()

    assert spent(meter) == 3


async def test_context_variables_pass_in_both_directions(cpu: FakeCpu) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)

    async def handler() -> int:
        seen = variable.get()
        await asyncio.sleep(0)
        variable.set(2)
        return seen

    assert await CostMeter(cpu).run(handler()) == 1
    assert variable.get() == 2


def test_run_is_a_coroutine_function_as_grpc_wants_it(cpu: FakeCpu) -> None:
    running = CostMeter(cpu).run(steps(cpu, 1))

    assert inspect.iscoroutinefunction(CostMeter.run)
    assert inspect.iscoroutine(running)
    running.send(None)
    with pytest.raises(StopIteration, match="done"):
        running.send(None)


async def test_a_stream_is_charged_for_its_steps_and_not_for_its_readers(cpu: FakeCpu) -> None:
    received: list[object] = []

    async def numbers() -> AsyncGenerator[int, str]:
        try:
            cpu.work(1)
            received.append((yield 1))
            await asyncio.sleep(0)
            cpu.work(10)
            try:
                yield 2
            except KeyError:
                cpu.work(100)
                yield 3
        finally:
            cpu.work(1000)

    meter = CostMeter(cpu)
    stream = meter.stream(numbers())
    taken = [await anext(stream)]
    cpu.work(77_777)  # the reader's
    taken.append(await stream.asend("hello"))
    taken.append(await stream.athrow(KeyError("x")))
    await stream.aclose()

    assert taken == [1, 2, 3]
    assert received == ["hello"]
    assert spent(meter) == 1 + 10 + 100 + 1000
    assert [item async for item in meter.stream(numbers())] == [1, 2]


async def test_threads_are_charged_through_our_helpers(cpu: FakeCpu) -> None:
    executor = ContextThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()

    async def handler() -> None:
        cpu.work(1)
        await run_in_thread(cpu.work, 10)
        await loop.run_in_executor(executor, cpu.work, 100)
        with pytest.raises(TypeError):
            await run_in_thread(cpu.work, "no number")  # type: ignore[arg-type]

    meter = CostMeter(cpu)
    await meter.run(handler())
    executor.shutdown()

    assert (meter.loop_nanoseconds, meter.thread_nanoseconds) == (1, 110)
    assert spent(meter) == 111


def test_a_threaded_handler_is_charged_by_call(cpu: FakeCpu) -> None:
    def handler(amount: int, *, twice: bool) -> str:
        cpu.work(amount * (2 if twice else 1))
        asyncio.run(steps(cpu, 5))
        assert current_request().customer == "indexer"
        return "done"

    meter = CostMeter(cpu)
    with request_context(customer="indexer"):
        assert meter.call(handler, 10, twice=True) == "done"

    assert spent(meter) == 25
    assert current_meter.get() is None


async def test_a_call_inside_a_step_is_charged_once(cpu: FakeCpu) -> None:
    meter = CostMeter(cpu)

    async def handler() -> None:
        cpu.work(1)
        meter.call(cpu.work, 10)
        cpu.work(2)

    await meter.run(handler())

    assert (meter.loop_nanoseconds, meter.thread_nanoseconds) == (3, 10)


def test_many_threads_lose_nothing(cpu: FakeCpu) -> None:
    meter = CostMeter(cpu)

    def calls() -> None:
        for _ in range(500):
            meter.call(cpu.work, 3)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert spent(meter) == 4 * 500 * 3


async def test_the_loop_has_our_task_factory_only_while_something_is_metered(
    cpu: FakeCpu,
) -> None:
    loop = asyncio.get_running_loop()
    seen: list[object] = []

    async def handler() -> None:
        seen.append(loop.get_task_factory())
        await asyncio.sleep(0)

    await asyncio.gather(*(CostMeter(cpu).run(handler()) for _ in range(3)))

    assert len(set(map(id, seen))) == 1
    assert seen[0] is not None
    assert loop.get_task_factory() is None


async def test_children_are_charged_though_another_request_has_ended(cpu: FakeCpu) -> None:
    meter, quick = CostMeter(cpu), CostMeter(cpu)
    is_over = asyncio.Event()

    async def slow() -> None:
        await is_over.wait()
        await asyncio.create_task(steps(cpu, 100))

    running = asyncio.ensure_future(meter.run(slow()))
    await asyncio.sleep(0)
    await quick.run(steps(cpu, 1))
    is_over.set()
    await running

    assert spent(meter) == 100


async def test_another_task_factory_put_on_top_stays(cpu: FakeCpu) -> None:
    def other_factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **_: object,
    ) -> asyncio.Future[T]:
        raise AssertionError

    loop = asyncio.get_running_loop()

    async def handler() -> None:
        loop.set_task_factory(other_factory)

    await CostMeter(cpu).run(handler())

    assert loop.get_task_factory() is other_factory
    loop.set_task_factory(None)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    assert current_meter.get() is None


def test_what_is_charged_in_a_thread_reaches_the_request() -> None:
    meter = CostMeter()
    meter.call(evenly.charge, 0.25)

    assert meter.charged_seconds == 0.25
    assert meter.cpu_seconds >= 0.25


def test_a_charge_outside_of_a_request_does_nothing() -> None:
    evenly.charge(1.0)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e7])
def test_a_charge_that_is_no_cost_is_refused(seconds: float) -> None:
    with pytest.raises(evenly.ConfigError, match="cpu_seconds"):
        evenly.charge(seconds)
